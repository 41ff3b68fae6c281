"""Arguments and options that several commands share, exit codes, and how a study is opened.

An option group is a frozen dataclass whose fields are annotated with `typer.Option`. A command
takes a whole group as one parameter: `flat` gives it an option for each field.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from dasktune.errors import ConfigurationError, shown, unknown

if TYPE_CHECKING:
    from dasktune._results.results import StudyResults
    from dasktune._study.study import Study
    from dasktune.algos.base import Tuner
    from dasktune.cli.ls import Places
    from dasktune.storage.database.database import Database

Group = TypeVar("Group")

DONE, FAILED, MISUSED, STOPPED = 0, 1, 2, 130
"""Exit codes."""

HEADINGS = {
    "ClusterFlags": "Cluster",
    "SlurmFlags": "SLURM jobs (with --slurm)",
    "DriverFlags": "Job of the driver",
    "TimeoutFlags": "Limits",
    "LimitFlags": "Limits",
    "AuditFlags": "Check and audit",
    "LogFlags": "Log",
}
"""Headings in the help by option group; options of other groups stand under Options."""

# --------------------------------------------------------------------------- single options

Given = TypeVar("Given")


def possible(given: Given) -> Given:
    """Return the targets; refuse targets that cannot be names of files."""
    for target in map(str, given if isinstance(given, list) else [given]):
        try:
            if "://" not in target:
                Path(target).is_dir()
        except OSError as error:
            raise typer.BadParameter(
                f"must be a file name that this system accepts, got {shown(target)}: "
                f"{error.strerror}"
            ) from None
    return given


StudyPath = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Python file that defines study and tuner.", callback=possible
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        help="Study file, storage folder or URL, or a database's file or URL.",
        callback=possible,
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(
        help="Study files, storage folders or URLs, databases' files or URLs; folders of stores.",
        callback=possible,
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="Argument for the file's study() and tuner(), as JSON or text. May be repeated.",
    ),
]
AllowChanges = Annotated[
    bool,
    typer.Option(
        "--allow-changes",
        help="The page may stop runs, have failed trials trained again, and queue trials.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Pem = Annotated[
    str | None,
    typer.Option(metavar="PEM", help="For tls://, as for dask worker.", rich_help_panel="Security"),
]
SlurmText = Annotated[str | None, typer.Option(help="As for sbatch.")]

# ---------------------------------------------------------------------------- option groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags:
    """The cluster that runs a study: fields of `dasktune.cli.target.RunSettings`."""

    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN-MAX",
            help="Workers on this host, or in jobs (--slurm); in a range, as many as are of use.",
        ),
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs that each worker has for itself, or its share such as 0.5."),
    ] = None
    trials_per_gpu: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Up to N trials share a GPU, as many as pay by measurement.",
        ),
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this Dask cluster, tls://host:port.")
    ] = None
    scheduler_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Run on the one that has written this.")
    ] = None
    tls_ca: Pem = None
    tls_cert: Pem = None
    tls_key: Pem = None
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure",
            help="Use tcp:// although others could run code there.",
            rich_help_panel="Security",
        ),
    ] = None
    slurm: Annotated[
        bool | None,
        typer.Option("--slurm/--no-slurm", help="Run in jobs of SLURM."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmFlags:
    """The workers' jobs: fields of `dasktune.slurm.SlurmOptions`."""

    partition: SlurmText = None
    account: SlurmText = None
    qos: SlurmText = None
    walltime: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of each job, such as 4:00:00.")
    ] = None
    cpus_per_worker: Annotated[int | None, typer.Option(min=1, help="Cores of each job.")] = None
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of each job, such as 16GB.")
    ] = None
    interface: Annotated[str | None, typer.Option(help="Network interface, such as ib0.")] = None
    directives: Annotated[
        list[str] | None,
        typer.Option("--directive", help="Further option of sbatch. May be repeated."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutFlags:
    """Longest times of a run's parts, in seconds: fields of `dasktune.cli.target.RunSettings`."""

    step_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest time of one step; its worker is replaced."),
    ] = None
    silence_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A worker silent for so long counts as lost."),
    ] = None
    workers_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest wait for a worker if there is none."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFlags:
    """The audits of a run: fields of `dasktune.cli.target.RunSettings`."""

    audit: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of resumes that are trained again: 0 to 1."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlags:
    """The log of a run: fields of `dasktune.cli.target.RunSettings`."""

    log_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Append to this what happens.")
    ] = None
    log_format: Annotated[str | None, typer.Option(help="text, or json: an object a line.")] = None
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR, and what is graver.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFlags:
    """The limits of a run: the fields of `dasktune.Limits`."""

    target: Annotated[
        float | None, typer.Option(help="End once the (first) metric is as good as this.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option(help="End after so much time, all runs together.")
    ] = None
    worker_seconds: Annotated[
        float | None, typer.Option(help="End after so much time of all workers together.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="End after so many trained steps.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFlags:
    """The store and the database of a command's target, and the config of its study file."""

    storage: Annotated[str | None, typer.Option(metavar="URL", help="The store of a database.")] = (
        None
    )
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="The database of a store.")
    ] = None
    config: Config = None

    def places(self, target: str, study: str | None = None) -> Places:
        """Return the store, the database and the study that a target means."""
        from dasktune.cli.ls import places_of

        return places_of(
            target,
            storage=self.storage,
            database=self.database,
            study=study,
            settings=self.config or (),
        )


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its option groups.

    Typer makes a command's options from the signature of its function. The function that this
    returns has a flat signature; it builds the groups from its arguments and calls `command`.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is not None:
            parameters += _parameters_of(group)
        else:
            hint = hints[parameter.name]
            parameters.append(
                parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint)
            )

    @wraps(command)
    def call(**given: Any) -> None:
        own = {field.name for kind in groups.values() for field in fields(kind)}
        made: dict[str, Any] = {name: group_of(kind, given) for name, kind in groups.items()}
        command(**made, **{name: value for name, value in given.items() if name not in own})

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def group_of(kind: type[Group], values: Mapping[str, Any]) -> Group:
    """Return an option group from the values of a command's flat options."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def given(*groups: Any) -> dict[str, Any]:
    """Return the options of groups that the command line names, by field."""
    values = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    return {name: value for name, value in values.items() if value is not None and value != []}


def _parameters_of(group: type) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        heading = HEADINGS.get(group.__name__)
        for option in getattr(hints[field.name], "__metadata__", ()):
            if heading is not None and option.rich_help_panel is None:
                option.rich_help_panel = heading
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )


# --------------------------------------------------------------------------------- studies


def open_study(
    file: Path, config: Sequence[str] | None, *, is_run_here: bool = False
) -> tuple[Study, Tuner]:
    """Return the study and the tuner of a study file; `is_run_here` starts what its workers need.

    The tuner is made first: if that fails, no study has been created yet.
    """
    from dasktune._cluster import fork_server
    from dasktune.cli.study_file import load

    loaded = load(file, config or ())
    if is_run_here:
        fork_server.start_ahead(loaded.module.__name__)
    tuner = loaded.tuner()
    return loaded.study(), tuner


def write_page(study: StudyResults | Study, path: Path | None, started_in: Path) -> Path:
    """Write the report of a study; return its path for a reader in the folder of the command.

    The study file may have changed the folder since the command `started_in` it.
    """
    from dasktune._dashboard.saved import write_report

    if started_in == Path.cwd():
        return write_report(study, path)
    return write_report(study, path and started_in / path).absolute()


@contextmanager
def open_results(places: Places) -> Iterator[StudyResults]:
    """Open the results of one study, read-only, and close them at the end.

    Raises
    ------
    ConfigurationError
        If there is no database or no study in it, or `places` names none of several studies.
    """
    from dasktune._results.results import StudyResults
    from dasktune._study.memory import StudyMemory
    from dasktune.graph.attempts import DispatchOptions
    from dasktune.storage.checkpoints import CheckpointStore

    with _database(places) as database:
        rows = {row.name: row for row in database.studies()}
        row = rows[_chosen(places.study, rows)]
        options = DispatchOptions(merge=bool(row.spec.get("merge")))
        yield StudyResults(StudyMemory(row, database, CheckpointStore(places.store), options))


def chosen_study(places: Places) -> tuple[Places, str]:
    """Return places and the name of the one study that they mean.

    Raises
    ------
    ConfigurationError
        As `open_results`.
    """
    with _database(places) as database:
        return places, _chosen(places.study, [row.name for row in database.studies()])


@contextmanager
def _database(places: Places) -> Iterator[Database]:
    from dasktune.storage.database.database import Database

    if places.database is None:
        raise ConfigurationError(f"{places.store} has no database; say where it is: --database")
    database = Database(places.database, create=False)
    try:
        yield database
    finally:
        database.close()


def _chosen(name: str | None, known: Collection[str]) -> str:
    """Return the name of the study to open; without a name, the only study."""
    if not known:
        raise ConfigurationError("the database holds no study")
    if name is None and len(known) > 1:
        raise ConfigurationError(f"--study must be one of {', '.join(sorted(known))}")
    if name is not None and name not in known:
        raise ConfigurationError(unknown("study", name, known))
    return next(iter(known)) if name is None else name


# ---------------------------------------------------------------------------------- output


def print_json(document: object) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(document, indent=2))


def picture_problems(path: Path | None) -> list[str]:
    """Return the problems of the path that ``--plot`` gives, if any."""
    if path is None or (path.suffix == ".svg" and path.parent.is_dir() and not path.is_dir()):
        return []
    return [f"--plot must be an .svg in a folder that exists, got {str(path)!r}"]
