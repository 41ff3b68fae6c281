"""The command ``run``: a study, on processes of this host or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import (
    DONE,
    FAILED,
    STOPPED,
    AsJson,
    Config,
    StudyPath,
    open_study,
    print_json,
)
from dasktune.errors import ConfigurationError

if TYPE_CHECKING:
    from distributed import Client

    from dasktune.study.study import Study

Connecting = Callable[[], "AbstractContextManager[Client | None]"]

INTERRUPTED = "interrupted; the same command goes on where it was"

Pem = Annotated[str | None, typer.Option(metavar="PEM", help="For tls://, as for dask worker.")]
SlurmText = Annotated[str | None, typer.Option(help="With --slurm: as for sbatch.")]


def run(
    file: StudyPath,
    workers: Annotated[
        str | None,
        typer.Option(metavar="N", help="Worker processes on this host; with --slurm also as 2-8."),
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs that each worker has for itself, or its share such as 0.5."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this Dask cluster, tls://host:port.")
    ] = None,
    scheduler_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Run on the one that has written this.")
    ] = None,
    tls_ca: Pem = None,
    tls_cert: Pem = None,
    tls_key: Pem = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Use tcp:// although others could run code there."),
    ] = None,
    slurm: Annotated[
        bool | None,
        typer.Option("--slurm/--no-slurm", help="Run in jobs of SLURM."),
    ] = None,
    partition: SlurmText = None,
    account: SlurmText = None,
    qos: SlurmText = None,
    walltime: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --slurm: of each job, 4:00:00.")
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
    step_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Longest time of one step; its worker is replaced."),
    ] = None,
    silence_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A worker silent for so long counts as lost."),
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
    log_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Append to this what happens.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: an object a line.")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR, and what is graver.")
    ] = None,
) -> None:
    """Run a study; go on where it was interrupted.

    Exit code 1 if a trial failed. Ctrl-C saves what runs first, as the end by a limit does;
    the same command goes on, after a limit with a larger one. Where it runs, dasktune.toml
    beside FILE may say: [run] has flags of this command, [slurm] what its jobs need.
    """
    from dasktune.cli.target import place_of
    from dasktune.engine.limits import Limits

    limits = Limits(target=target, seconds=seconds, worker_seconds=worker_seconds, steps=steps)
    of_slurm = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "walltime": walltime,
        "cpus_per_worker": cpus_per_worker,
        "memory": memory,
        "interface": interface,
        "directives": tuple(directive) if directive else None,
    }
    place = place_of(
        file.parent,
        {
            "workers": workers,
            "gpus_per_worker": gpus_per_worker,
            "scheduler": scheduler,
            "scheduler_file": scheduler_file,
            "tls_ca": tls_ca,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "insecure": insecure,
            "slurm": slurm,
            "step_timeout": step_timeout,
            "silence_timeout": silence_timeout,
            "log_file": log_file,
            "log_format": log_format,
            "log_level": log_level,
        },
    )
    client, timeouts = place.connecting(file.parent, of_slurm), place.timeouts()
    from dasktune.cli.results import as_json as results_json
    from dasktune.cli.results import as_text, failed
    from dasktune.logs import configure

    _check_writable(report)
    with configure(*place.log):
        study, tuner = open_study(file, config)
        optimize = partial(
            study.optimize,
            tuner,
            workers=place.local_workers,
            gpus_per_worker=place.local_gpus,
            limits=limits,
            timeouts=timeouts,
            progress=progress,
            allow_failed_check=allow_failed_check,
        )
        _optimize(study, optimize, client)
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
    from dasktune.driver.interrupt import interruptible

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
