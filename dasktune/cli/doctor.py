"""The command ``doctor``: check all that a study needs, and say what to mend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.cli.options import (
    DONE,
    FAILED,
    AsJson,
    ClusterFlags,
    Config,
    SlurmFlags,
    StudyPath,
    flat,
    given,
    print_json,
)

if TYPE_CHECKING:
    from dasktune.doctor.study import CheckedStudy

Seconds = Annotated[
    float,
    typer.Option(min=1, metavar="SECONDS", help="Each check's longest time on each worker."),
]


@flat
def doctor(
    file: StudyPath,
    *,
    cluster: ClusterFlags,
    jobs: SlurmFlags,
    config: Config = None,
    as_json: AsJson = False,
    seconds: Seconds = 30.0,
) -> None:
    """Check all that a study needs, and say what to mend.

    Starts or uses the cluster that run would, with the same flags, and looks on every worker at
    versions, trainer, store, clock, memory, cores and GPUs. Trains nothing and leaves nothing
    behind. Exit code 1 if there is a problem.
    """
    from dasktune.cli.study_file import load
    from dasktune.doctor import examine
    from dasktune.doctor.study import study_of

    with (
        study_of(lambda: load(file, config or ()).study()) as checked,
        _client(file.parent, checked, cluster, jobs) as client,
    ):
        diagnosis = examine(checked, client, seconds=seconds)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        typer.echo(str(diagnosis))
    raise typer.Exit(DONE if diagnosis.ok else FAILED)


def _client(
    folder: Path, checked: CheckedStudy, cluster: ClusterFlags, jobs: SlurmFlags
) -> AbstractContextManager[Any]:
    """Return a client of the cluster that the flags, and ``dasktune.toml``, name."""
    from dasktune.cli.target import run_settings
    from dasktune.doctor.diagnosis import local_cluster

    settings = run_settings(folder, given(cluster))
    connect = settings.connecting(folder, given(jobs))
    if settings.is_local:
        return local_cluster(
            checked, settings.local_workers, settings.local_gpus, settings.most_per_gpu
        )
    return connect()
