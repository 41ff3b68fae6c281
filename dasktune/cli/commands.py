"""The commands and their options. Heavy modules are imported only when a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import typer
from typer.core import TyperGroup

from dasktune import __version__
from dasktune.cli.check import check
from dasktune.cli.doctor import doctor
from dasktune.cli.fingerprint import fingerprint
from dasktune.cli.help import HelpfulCommand, summaries
from dasktune.cli.options import (
    DONE,
    FAILED,
    MISUSED,
    AllowChanges,
    AsJson,
    Config,
    StoreFlags,
    StudyPath,
    Target,
    Targets,
    chosen_study,
    flat,
    open_results,
    open_study,
    possible,
    print_json,
    write_page,
)
from dasktune.cli.pools import PoolOptions
from dasktune.cli.predict import predict
from dasktune.cli.run import run
from dasktune.cli.simulate import simulate
from dasktune.cli.submit import PASSED_ON, submit
from dasktune.cli.trace import trace
from dasktune.errors import (
    ConfigurationError,
    DasktuneError,
    InternalError,
    TrainerError,
    UnknownValueError,
    refuse,
)


class Printable(Protocol):
    """A result with a text (``str``) and a JSON document."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON document."""


class Commands(TyperGroup):
    """The group of all commands: prints a message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _explained():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line or more for each command."""
        with formatter.section("Commands"):
            formatter.write_dl(summaries(dict(self.commands)))


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"dasktune {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version."),
    ] = False,
) -> None:
    """Tune hyper-parameters on a Dask cluster; never train the same steps twice."""


app.command()(run)


@app.command()
@flat
def preview(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Python files that define study and tuner.", callback=possible
        ),
    ],
    *,
    pool: PoolOptions,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show the cost of the trials, before any is trained.

    Of several files also the cost of their studies together, and the merge rate q over all.
    """
    from dasktune.cli.preview import costs_of_files, in_words, to_json

    costs, in_full = costs_of_files(files, config or (), pool=pool)
    if not in_full:
        typer.echo("at most, as if every trial were trained to its end:", err=True)
    if as_json:
        print_json(to_json(files, costs))
    else:
        typer.echo(in_words(files, costs))


@app.command()
def status(
    target: Target,
    study: Annotated[str | None, typer.Option(help="Only the study of this name.")] = None,
    every: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.1, help="Again and again, until ctrl-C."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Leave nothing out; with tracebacks.")
    ] = False,
    trial: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="What happened to this trial alone.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what runs, failed and waits, and whether the driver lives.

    Of several studies one line each, the running ones first; --study NAME shows one in full, and
    --trial N what was decided about one trial, and which stages trained it.
    Reads the database alone, and changes nothing: from any terminal, while they run or later.
    """
    from dasktune.cli.status import in_words, read, story

    if trial is not None and as_json:
        raise typer.BadParameter("--trial N is a text, it has no --json")

    def text() -> str:
        if trial is not None:
            return story(target, trial, study, config or ())
        studies = read(target, study, config or ())
        if as_json:
            indent = 2 if every is None else None
            return json.dumps([status.to_json() for status in studies], indent=indent)
        return in_words(studies, verbose=verbose)

    if every is None:
        typer.echo(text())
    else:
        from dasktune.cli.watch import watch

        watch(text, every)


@app.command()
@flat
def logs(
    target: Target,
    trial: Annotated[int, typer.Option(metavar="N", min=0, help="Which trial.")],
    *,
    study: Annotated[
        str | None, typer.Option(help="The study; needed if there are several.")
    ] = None,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Show the logs of a trial's stages, also while it runs.

    A log has the last lines that a stage printed. Trials that share a stage share its log. Reads
    the database alone, and changes nothing.
    """
    from dasktune.report.formats import printable

    with open_results(stores.places(target, study)) as results:
        shown = results.stage_logs(trial)
    if as_json:
        print_json([log.to_json() for log in shown])
        return
    if not shown:
        typer.echo(f"trial {trial}: its stages have printed nothing", err=True)
    for log in shown:
        typer.echo(f"--- {printable(log.heading)}")
        typer.echo("\n".join(map(printable, log.text.splitlines())))


@app.command()
def dashboard(
    targets: Targets,
    study: Annotated[str | None, typer.Option(help="Only the study of this name.")] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on loopback; any free one if 0.")
    ] = 0,
    allow_changes: AllowChanges = False,
    config: Config = None,
) -> None:
    """Serve a live page about the studies of one store or several, on loopback, until ctrl-C.

    Reads the database alone, while the studies run, or later; changes nothing without
    --allow-changes. Only the printed address opens the page, since its token is part of it.
    """
    from dasktune.cli.dashboard import show

    show(targets, study, config or (), port=port, allows_changes=allow_changes)


@app.command()
def migrate(
    target: Annotated[
        str,
        typer.Argument(
            help="Storage folder or URL, or a database's file or URL.", callback=possible
        ),
    ],
) -> None:
    """Bring the database of an older version up to date.

    A SQLite file is copied first. To open a study does the same.
    """
    from dasktune.cli.status import migrate as bring_up_to_date

    bring_up_to_date(target)
    typer.echo("up to date")


@app.command()
@flat
def ls(
    target: Target,
    *,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Single checkpoints in place of studies.")
    ] = False,
    sort: Annotated[str, typer.Option(help="By study, size, cost or age.")] = "study",
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most so many.")] = None,
    study: Annotated[str | None, typer.Option(help="Only the study of this name.")] = None,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """List the stored checkpoints, what they took to train, and which studies they serve.

    Reads store and database, and changes nothing.
    """
    from dasktune.cli.ls import View, read

    view = View(checkpoints=checkpoints, sort=sort, limit=limit)
    _print(read(stores.places(target, study), view), as_json=as_json)


@app.command()
@flat
def gc(
    target: Target,
    *,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most bytes that stay, such as 20GB.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="best:N, all or none, in place of what each study keeps.")
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="What is younger stays: another may load it.")
    ] = "1h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go or stay, and why.")
    ] = False,
    emptied: Annotated[
        bool,
        typer.Option("--emptied", help="Only forget what was removed from the store by hand."),
    ] = False,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Bring a store under a budget, and remove what no study needs.

    Dead uploads, commits without data and leases that ended long ago go in any case. It may
    run while studies do. Exit code 1 if the store is over the budget still.
    """
    from dasktune.cli.gc import collect, forget, request_of

    places = stores.places(target)
    if emptied:
        given = {"--budget": budget, "--keep": keep, "--dry-run": dry_run, "--json": as_json}
        refuse(f"{name} must not be given with --emptied" for name, on in given.items() if on)
        typer.echo(forget(places))
        return
    request = request_of(places, budget=budget, keep=keep, grace=grace, removes=not dry_run)
    collected = collect(request)
    _print(collected, as_json=as_json)
    raise typer.Exit(DONE if collected.is_done else FAILED)


@app.command()
@flat
def rm(
    target: Target,
    *,
    study: Annotated[
        str | None, typer.Option(help="The study; needed if there are several.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go and stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Delete a study, and the checkpoints that no other study uses.

    Its trials, log and metrics are lost. It is refused while a driver runs the study.
    """
    from dasktune._study.deletion import delete_study

    places, name = chosen_study(stores.places(target, study))
    delete = partial(delete_study, name, storage=places.store, database=places.database)
    if not dry_run and not yes:
        typer.echo(str(delete(dry_run=True)), err=True)
        if not sys.stdin.isatty():
            raise ConfigurationError("rm asks first in a terminal; elsewhere it must have --yes")
        typer.confirm("Delete it?", abort=True, err=True)
    _print(delete(dry_run=dry_run), as_json=as_json)


@app.command()
@flat
def stop(
    target: Target,
    *,
    study: Annotated[
        str | None, typer.Option(help="The study; needed if there are several.")
    ] = None,
    stores: StoreFlags,
) -> None:
    """Ask the driver of a study to save what runs and to end, from any host.

    It is a note in the database, which the driver reads with its next heartbeat. Its command then
    prints the results so far; the same command goes on later.
    """
    from dasktune.cli.stop import stop_study_at

    places, name = chosen_study(stores.places(target, study))
    typer.echo(stop_study_at(places, name))


@app.command()
@flat
def rename(
    target: Target,
    name: Annotated[str, typer.Argument(help="The new name.")],
    *,
    study: Annotated[
        str | None, typer.Option(help="The study; needed if there are several.")
    ] = None,
    stores: StoreFlags,
) -> None:
    """Give a study another name; all that is stored stays.

    The study file must use the new name, too. It is refused while a driver runs the study.
    """
    from dasktune._study.deletion import rename_study

    places, old = chosen_study(stores.places(target, study))
    rename_study(old, name, storage=places.store, database=places.database)
    typer.echo(f"study {old!r} is {name!r} now; its study file must say name={name!r}")


@app.command()
@flat
def export(
    target: Target,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where to; model.pt if not given. .pt or .pth for torch, .npz for NumPy; .ckpt "
            "for Lightning, .json or .ubj for XGBoost, .txt for LightGBM.",
        ),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Which trial; the best one if not given.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP",
            help="After how many steps; all if not given. 'best' is the step with the best metric.",
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PART", help="Just this part of the state, such as model.")
    ] = None,
    optuna: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Write the study into this Optuna storage instead, such as sqlite:///optuna.db.",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="With --optuna: the study; needed if there are several.")
    ] = None,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Write the model of a trial to a plain file, or a study into an Optuna storage.

    The model needs the study file. A state that is not stored any more is trained again first,
    here and on the CPU. With --optuna nothing is trained, and the study may run meanwhile: its
    trials so far take the place of those that an earlier call has written.
    """
    from dasktune.cli.export import ModelFile, export_state, export_study

    model = ModelFile(out=out, trial=trial, step=step, only=only)
    if optuna is not None:
        _print(export_study(stores.places(target, study), optuna, model), as_json=as_json)
        return
    if study or stores.storage or stores.database:
        raise ConfigurationError("--study, --storage and --database of export need --optuna")
    opened, _ = open_study(Path(target), stores.config)
    _print(export_state(opened, model), as_json=as_json)


@app.command()
@flat
def report(
    target: Target,
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to; in the storage if not given.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="The study; needed if there are several.")
    ] = None,
    stores: StoreFlags,
) -> None:
    """Write the HTML report of a study."""
    started_in = Path.cwd()
    places = stores.places(target, study)
    database = str(places.database)
    if target.endswith(".py") and "://" not in database and not Path(database).exists():
        raise ConfigurationError(f"study {places.study!r} has no trials yet: run it first")
    with open_results(places) as results:
        if not results.history.count_trials():
            raise ConfigurationError(f"study {results.name!r} has no trials yet: run it first")
        typer.echo(str(write_page(results, output, started_in)))


@app.command()
def replay(
    file: StudyPath,
    log: Annotated[
        bool, typer.Option("--log", help="First print every decision with its cause.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Derive every decision of a tuner again from its reports, and compare.

    Says "identical" or shows the first decision that comes out otherwise (exit code 1).
    """
    from dasktune._engine.event_log import in_words
    from dasktune._engine.tuner_records import read_record

    study, tuner = open_study(file, config)
    result = study.replay(tuner)
    events = study.log(tuner) if log else []
    if as_json:
        names = ("identical", "calls", "difference")
        head = {name: getattr(result, name) for name in names}
        print_json({**head, "log": events} if log else head)
    else:
        typer.echo("\n".join([*map(in_words, map(read_record, events)), str(result)]))
    raise typer.Exit(DONE if result.identical else FAILED)


app.command()(check)
app.command()(doctor)
app.command()(fingerprint)
app.command()(predict)
app.command()(simulate)
app.command()(trace)
app.command(context_settings=PASSED_ON)(submit)

for registered in app.registered_commands:
    registered.cls = HelpfulCommand


def main() -> None:
    """Run the command that the arguments ask for."""
    app()


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors that are no bugs of dasktune into their text and an exit code."""
    try:
        yield
    except InternalError:
        raise
    except (ConfigurationError, UnknownValueError) as error:
        _refuse(str(error), MISUSED)
    except TrainerError as error:
        _refuse(error.traceback or str(error), FAILED)
    except DasktuneError as error:
        _refuse("\n".join([str(error), *getattr(error, "__notes__", ())]), FAILED)


def _print(result: Printable, *, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        typer.echo(str(result))


def _refuse(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"error: {text}\n")
    raise typer.Exit(code) from None
