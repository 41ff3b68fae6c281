"""The commands: what each takes, calls and prints. What is heavy is imported when one runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from dasktune.cli.doctor import doctor
from dasktune.cli.fingerprint import fingerprint
from dasktune.cli.options import (
    DONE,
    FAILED,
    MISUSED,
    AsJson,
    Config,
    StudyPath,
    open_study,
    print_json,
)
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
)
from dasktune.types import Register, Step

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner

MOST_CHECKED = 6
"""Steps that `check` trains unless told otherwise."""


class Commands(TyperGroup):
    """The group of all commands: says what went wrong in place of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _speaking():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Tune hyper-parameters on a Dask cluster; never train the same steps twice.",
)

app.command()(run)


@app.command()
def preview(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Python files that define study and tuner."),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Workers to bound the time for.")] = 1,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what the trials cost, before any is trained.

    Of several files also what their studies cost together, and the merge rate q over all.
    """
    from dasktune.cli.preview import costs_of_files, in_words, to_json

    costs, in_full = costs_of_files(files, config or (), workers=workers)
    if not in_full:
        typer.echo("at most, as if every trial were trained to its end:", err=True)
    if as_json:
        print_json(to_json(files, costs))
    else:
        typer.echo(in_words(files, costs))


@app.command()
def check(
    file: StudyPath,
    split: Annotated[
        int | None, typer.Option(help="Steps before the new process; half of all if not given.")
    ] = None,
    total: Annotated[
        int | None, typer.Option(help=f"Steps in all; {MOST_CHECKED} if a trial has as many.")
    ] = None,
    trial: Annotated[int, typer.Option(min=0, help="Which of the tuner's trials.")] = 0,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Check that the trainer resumes exactly.

    Trains in one go and with a new process in between, and compares bit for bit.
    """
    from dasktune.trainer import check_resume

    study, tuner = open_study(file, config)
    chosen = _trial(tuner, trial)
    total = min(MOST_CHECKED, chosen.max_steps) if total is None else total
    _check_horizon(total, chosen.max_steps)
    split = total // 2 if split is None else split
    found = check_resume(
        study.trainer,
        chosen.sequences,
        split=split,
        total=total,
        config=study.config,
        seed=study.seed,
    )
    study.record_check(found.ok, str(found))
    if as_json:
        differences = [str(difference) for difference in found.differences]
        figures = {"split": found.split, "total": found.total, "tolerance": found.tolerance}
        print_json({"ok": found.ok, "differences": differences, "trial": trial, **figures})
    else:
        typer.echo(str(found))
    raise typer.Exit(DONE if found.ok else FAILED)


@app.command()
def status(
    target: Annotated[
        str,
        typer.Argument(help="Study file, storage folder or URL, or a database's file or URL."),
    ],
    study: Annotated[str | None, typer.Option(help="Only the study of this name.")] = None,
    every: Annotated[
        float | None,
        typer.Option("--watch", metavar="SECONDS", min=0.1, help="Again and again, until ctrl-C."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Leave nothing out; with tracebacks.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say how studies stand: what runs, failed and is waited for, and whether the driver lives.

    Reads the database alone, and changes nothing: from any terminal, while they run or later.
    """
    from dasktune.cli.status import read

    def text() -> str:
        found = read(target, study, config or ())
        if as_json:
            indent = 2 if every is None else None
            return json.dumps([one.to_json() for one in found], indent=indent)
        return "\n".join(one.in_words(verbose=verbose) for one in found) or "no studies"

    if every is None:
        typer.echo(text())
    else:
        from dasktune.cli.watch import watch

        watch(text, every)


@app.command()
def migrate(
    target: Annotated[
        str, typer.Argument(help="Storage folder or URL, or a database's file or URL.")
    ],
) -> None:
    """Bring the database of an older version up to date.

    A SQLite file is copied first. To open a study does the same.
    """
    from dasktune.cli.status import migrate as bring_up_to_date

    bring_up_to_date(target)
    typer.echo("up to date")


@app.command()
def ls(
    target: Annotated[
        str,
        typer.Argument(help="Study file, storage folder or URL, or a database's file or URL."),
    ],
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Single checkpoints in place of studies.")
    ] = False,
    sort: Annotated[str, typer.Option(help="By study, size, cost or age.")] = "study",
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most so many.")] = None,
    study: Annotated[str | None, typer.Option(help="Only the study of this name.")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The store of a database.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="The database of a store.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what is stored, what it took to train, and which studies it serves.

    Reads store and database, and changes nothing.
    """
    from dasktune.cli.ls import View, places_of, read

    view = View(checkpoints=checkpoints, sort=sort, limit=limit)
    places = places_of(
        target, storage=storage, database=database, study=study, settings=config or ()
    )
    found = read(places, view)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))


@app.command()
def gc(
    target: Annotated[
        str,
        typer.Argument(help="Study file, storage folder or URL, or a database's file or URL."),
    ],
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
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The store of a database.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="The database of a store.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Bring a store under a budget, and remove what is nobody's.

    Dead uploads, commits without data and leases that ended long ago go in any case. It may
    run while studies do. Exit code 1 if the store is over the budget still.
    """
    from dasktune.cli.gc import collect, request_of
    from dasktune.cli.ls import places_of

    places = places_of(target, storage=storage, database=database, settings=config or ())
    request = request_of(places, budget=budget, keep=keep, grace=grace, removes=not dry_run)
    found = collect(request)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))
    raise typer.Exit(DONE if found.is_done else FAILED)


@app.command()
def export(
    file: StudyPath,
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="Where to: .pt or .pth for torch, .npz for NumPy.")
    ] = Path("model.pt"),
    trial: Annotated[
        int | None, typer.Option(min=0, help="Which trial; the best one if not given.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="After how many steps; all if not given.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PART", help="Just this part of the state, such as model.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of a trial to a plain file.

    A state that is not stored any more is trained again first, here and on the CPU.
    """
    from dasktune.cli.export import export_state

    study, _ = open_study(file, config)
    found = export_state(study, trial, out, step=step, only=only)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))


@app.command()
def report(
    file: StudyPath,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to; in the storage if not given.")
    ] = None,
    config: Config = None,
) -> None:
    """Write the HTML report of a study."""
    study, _ = open_study(file, config)
    if not study.trials:
        raise ConfigurationError(f"study {study.name!r} has no trials yet: run it first")
    typer.echo(str(study.report(output)))


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
    from dasktune.engine.event_log import in_words

    study, tuner = open_study(file, config)
    found = study.replay(tuner)
    records = study.log(tuner) if log else []
    if as_json:
        head = {"identical": found.identical, "calls": found.calls, "difference": found.difference}
        print_json({**head, "log": records} if log else head)
    else:
        typer.echo("\n".join([*map(in_words, records), str(found)]))
    raise typer.Exit(DONE if found.identical else FAILED)


app.command()(doctor)
app.command()(fingerprint)
app.command()(predict)
app.command()(simulate)
app.command()(trace)
app.command(context_settings=PASSED_ON)(submit)


def main() -> None:
    """Run the command that the arguments ask for."""
    app()


def _trial(tuner: Tuner, number: int) -> Register:
    """Return one of the trials that a tuner registers at first."""
    found = [one for one in tuner.ask(1) if isinstance(one, Register)]
    for one in found:
        if one.trial == number:
            return one
    raise ConfigurationError(f"trial must be one of 0 to {len(found) - 1}, got {number}")


def _check_horizon(total: Step, max_steps: Step) -> None:
    if total > max_steps:
        raise ConfigurationError(f"total must be <= {max_steps}, the trial's steps, got {total}")


@contextmanager
def _speaking() -> Iterator[None]:
    """Turn errors that are not our bugs into their text and an exit code."""
    try:
        yield
    except InternalError:
        raise
    except ConfigurationError as error:
        _refuse(str(error), MISUSED)
    except TrainerError as error:
        _refuse(error.traceback or str(error), FAILED)
    except DasktuneError as error:
        _refuse("\n".join([str(error), *getattr(error, "__notes__", ())]), FAILED)


def _refuse(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"error: {text}\n")
    raise typer.Exit(code) from None
