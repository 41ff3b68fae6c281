"""The commands: what each takes, calls and prints. What is heavy is imported when one runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from dasktune.cli.fingerprint import fingerprint
from dasktune.cli.simulate import simulate
from dasktune.cli.torture import torture
from dasktune.errors import (
    ClusterError,
    ConfigurationError,
    DasktuneError,
    InternalError,
    TrainerError,
)
from dasktune.types import Register, Step

if TYPE_CHECKING:
    from distributed import Client

    from dasktune.algos.base import Tuner
    from dasktune.study import Study

Connecting = Callable[[], "AbstractContextManager[Client | None]"]

INTERRUPTED = "interrupted; the same command goes on where it was"

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
"""Exit codes."""

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

StudyPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="Python file that defines study and tuner.")
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="Argument for the file's study() and tuner(), as JSON or text. May be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SlurmText = Annotated[str | None, typer.Option(help="With --slurm: as for sbatch.")]


@app.command()
def run(
    file: StudyPath,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Processes of the local cluster; with --slurm jobs, also as 2-8."
        ),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this Dask cluster, tcp://...")
    ] = None,
    slurm: Annotated[
        bool,
        typer.Option("--slurm", help="Run in jobs of SLURM; dasktune.toml may say what they need."),
    ] = False,
    partition: SlurmText = None,
    account: SlurmText = None,
    qos: SlurmText = None,
    walltime: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --slurm: of each job, 4:00:00.")
    ] = None,
    gpus_per_worker: Annotated[
        int | None, typer.Option(min=0, help="With --slurm: GPUs of each job.")
    ] = None,
    cpus_per_worker: Annotated[
        int | None, typer.Option(min=1, help="With --slurm: cores of each job.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --slurm: memory of each job, 16GB.")
    ] = None,
    interface: Annotated[
        str | None, typer.Option(help="With --slurm: network interface, such as ib0.")
    ] = None,
    directive: Annotated[
        list[str] | None,
        typer.Option(help="With --slurm: further option of sbatch. May be repeated."),
    ] = None,
    config: Config = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Live display; on in a terminal."),
    ] = None,
    as_json: AsJson = False,
    report: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where the HTML report goes.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    target: Annotated[
        float | None, typer.Option(help="End once the (first) metric is as good as this.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="End after so much time, all runs together.")
    ] = None,
    worker_seconds: Annotated[
        float | None, typer.Option(help="End after so much time of all workers together.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="End after so many trained steps.")] = None,
    allow_failed_check: Annotated[
        bool, typer.Option("--allow-failed-check", help="Merge although the check failed.")
    ] = False,
) -> None:
    """Run a study; go on where it was interrupted.

    Exit code 1 if a trial failed. Ctrl-C saves what runs first, as the end by a limit does;
    the same command goes on, after a limit with a larger one.
    """
    from dasktune.limits import Limits

    limits = Limits(target=target, seconds=seconds, worker_seconds=worker_seconds, steps=steps)
    flags = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "walltime": walltime,
        "gpus_per_worker": gpus_per_worker,
        "cpus_per_worker": cpus_per_worker,
        "memory": memory,
        "interface": interface,
        "directives": tuple(directive) if directive else None,
    }
    place = _place(file, workers, scheduler, flags if slurm else None)
    if not slurm and (given := [name for name, value in flags.items() if value is not None]):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"{names} must come with --slurm")
    from dasktune.cli.results import as_json as results_json
    from dasktune.cli.results import as_text, failed

    _check_writable(report)
    study, tuner = _open(file, config)
    optimize = partial(
        study.optimize,
        tuner,
        workers=place.workers,
        limits=limits,
        progress=progress,
        allow_failed_check=allow_failed_check,
    )
    _optimize(study, optimize, place.client)
    page = None if no_report else study.report(report)
    trials = study.trials
    if as_json:
        _print_json(results_json(study, trials, page))
    else:
        typer.echo(as_text(study, trials))
        if page is not None:
            typer.echo(f"report: {page}")
    raise typer.Exit(FAILED if failed(trials) else DONE)


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
        _print_json(to_json(files, costs))
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

    study, tuner = _open(file, config)
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
        _print_json({"ok": found.ok, "differences": differences, "trial": trial, **figures})
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
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say how studies stand, also while they run.

    Reads the database alone, and changes nothing.
    """
    from dasktune.cli.status import read

    found = read(target, study, config or ())
    if as_json:
        _print_json([one.to_json() for one in found])
    else:
        typer.echo("\n".join(map(str, found)) or "no studies")


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
        _print_json(found.to_json())
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
        _print_json(found.to_json())
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

    study, _ = _open(file, config)
    found = export_state(study, trial, out, step=step, only=only)
    if as_json:
        _print_json(found.to_json())
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
    study, _ = _open(file, config)
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
    from dasktune.log import in_words

    study, tuner = _open(file, config)
    found = study.replay(tuner)
    records = study.log(tuner) if log else []
    if as_json:
        head = {"identical": found.identical, "calls": found.calls, "difference": found.difference}
        _print_json({**head, "log": records} if log else head)
    else:
        typer.echo("\n".join([*map(in_words, records), str(found)]))
    raise typer.Exit(DONE if found.identical else FAILED)


app.command()(fingerprint)
app.command()(simulate)
app.command()(torture)


def main() -> None:
    """Run the command that the arguments ask for."""
    app()


def _open(file: Path, config: Sequence[str] | None) -> tuple[Study, Tuner]:
    """Return a file's study and tuner; the tuner first, since it makes nothing."""
    from dasktune.cli.study_file import load

    loaded = load(file, config or ())
    tuner = loaded.tuner()
    return loaded.study(), tuner


def _optimize(study: Study, optimize: Callable[..., None], client: Connecting) -> None:
    from dasktune.interrupt import interruptible

    try:
        with interruptible(study.stop), client() as connected:
            optimize(client=connected, last_line=False)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        raise typer.Exit(STOPPED) from None


def _check_writable(report: Path | None) -> None:
    """Refuse a place for the report that cannot be written, before hours of training."""
    if report is None:
        return
    if report.is_dir():
        raise ConfigurationError(f"--report must be a file, got the folder {str(report)!r}")
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        with report.open("a"):
            pass
    except OSError as error:
        raise ConfigurationError(f"--report must be writable: {error}") from error


class _Place(NamedTuple):
    """Where a study is run: processes of this host, or what a client is connected to."""

    workers: int | None
    client: Connecting


def _place(
    file: Path, workers: str | None, scheduler: str | None, slurm: Mapping[str, object] | None
) -> _Place:
    """Return where a study file shall be run, checked as far as nothing need be started for it."""
    if slurm is not None and scheduler is not None:
        raise typer.BadParameter("--slurm starts a cluster, --scheduler says which one is there")
    if slurm is not None:
        from dasktune.slurm import options_for, slurm_client

        options = options_for(file.parent, {**slurm, "workers": workers})
        return _Place(None, partial(slurm_client, options))
    if workers is not None and scheduler is not None:
        raise typer.BadParameter("--workers is for a local cluster, not for one of --scheduler")
    if workers is not None and not (workers.isdecimal() and int(workers) >= 1):
        raise typer.BadParameter(
            f"must be a number >= 1, got {workers!r}", param_hint="'--workers'"
        )
    return _Place(None if workers is None else int(workers), partial(_client, scheduler))


def _client(scheduler: str | None) -> AbstractContextManager[Client | None]:
    if scheduler is None:
        return nullcontext()
    from distributed import Client

    try:
        return Client(scheduler)
    except (OSError, ValueError) as error:
        raise ClusterError(f"cannot reach the scheduler {scheduler}: {error}") from error


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


def _print_json(document: object) -> None:
    typer.echo(json.dumps(document, indent=2))


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
        _refuse(str(error), FAILED)


def _refuse(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"error: {text}\n")
    raise typer.Exit(code) from None
