"""The command ``run``: a study, on processes of this host or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dasktune.cli.conventions import (
    DONE,
    FAILED,
    STOPPED,
    AsJson,
    Config,
    StudyPath,
    open_study,
    print_json,
)
from dasktune.errors import ClusterError, ConfigurationError

if TYPE_CHECKING:
    from distributed import Client

    from dasktune.study import Study

Connecting = Callable[[], "AbstractContextManager[Client | None]"]

INTERRUPTED = "interrupted; the same command goes on where it was"

SlurmText = Annotated[str | None, typer.Option(help="With --slurm: as for sbatch.")]


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
    study, tuner = open_study(file, config)
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
        print_json(results_json(study, trials, page))
    else:
        typer.echo(as_text(study, trials))
        if page is not None:
            typer.echo(f"report: {page}")
    raise typer.Exit(FAILED if failed(trials) else DONE)


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
