"""The command ``doctor``: what is wrong with all that a study needs, and what to mend."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from dasktune.cli.options import DONE, FAILED, print_json
from dasktune.cli.run import run

if TYPE_CHECKING:
    from dasktune.doctor.subject import Subject

OF_A_RUN = frozenset(
    {
        *("progress", "report", "no_report", "target", "seconds", "worker_seconds", "steps"),
        *("allow_failed_check", "step_timeout", "silence_timeout"),
        *("log_file", "log_format", "log_level"),
    }
)
"""Options of ``run`` that do not say where it runs."""

Seconds = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="Each check's longest time on each worker."),
]


def doctor(**given: Any) -> None:
    """Say what is wrong with all that a study needs, and what to mend.

    Starts or uses the cluster that run would, with the same flags, and looks on every worker at
    versions, trainer, store, clock, memory, cores and GPUs. Trains nothing and leaves nothing
    behind. Exit code 1 if there is a problem.
    """
    from dasktune.cli.study_file import load
    from dasktune.doctor import examine
    from dasktune.doctor.subject import subject_of

    file, config = given.pop("file"), given.pop("config")
    seconds, as_json = given.pop("seconds"), given.pop("as_json")
    with (
        subject_of(lambda: load(file, config or ()).study()) as subject,
        _cluster(file, given, subject) as client,
    ):
        found = examine(subject, client, seconds=seconds)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))
    raise typer.Exit(DONE if found.ok else FAILED)


def _cluster(file: Path, flags: dict[str, Any], subject: Subject) -> AbstractContextManager[Any]:
    """Return the cluster that the flags, and ``dasktune.toml``, name."""
    from dataclasses import fields

    from dasktune.cli.target import Place, place_of
    from dasktune.doctor.visiting import local_cluster

    directives = flags.pop("directive")
    flags["directives"] = tuple(directives) if directives else None
    names = {one.name for one in fields(Place)}
    place = place_of(file.parent, {name: flags.pop(name) for name in names & flags.keys()})
    connecting = place.connecting(file.parent, flags)
    if place.is_local:
        return local_cluster(subject, place.local_workers, place.local_gpus)
    return connecting()


def _signature() -> inspect.Signature:
    """Return the options of ``run`` that say where it runs, and this command's own."""
    hints = get_type_hints(run, include_extras=True)
    kept = [
        one.replace(annotation=hints[one.name])
        for one in inspect.signature(run).parameters.values()
        if one.name not in OF_A_RUN
    ]
    own = inspect.Parameter(
        "seconds", inspect.Parameter.KEYWORD_ONLY, default=30.0, annotation=Seconds
    )
    return inspect.Signature([*kept, own], return_annotation=None)


# Typer reads options from here: those of ``run`` are written once.
doctor.__signature__ = _signature()  # type: ignore[attr-defined]
doctor.__annotations__ = {
    name: one.annotation
    for name, one in doctor.__signature__.parameters.items()  # type: ignore[attr-defined]
}
