"""The command ``run``: a study, on processes of this host or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.cli.options import (
    DONE,
    FAILED,
    HEADINGS,
    STOPPED,
    AllowChanges,
    AsJson,
    AuditFlags,
    ClusterFlags,
    Config,
    LimitFlags,
    LogFlags,
    SlurmFlags,
    StudyPath,
    TimeoutFlags,
    flat,
    given,
    open_study,
    print_json,
    write_page,
)
from dasktune.errors import ConfigurationError
from dasktune.storage.files.private import open_private

if TYPE_CHECKING:
    from distributed import Client

    from dasktune._study.study import Study
    from dasktune.cli.target import RunSettings

Connecting = Callable[[], "AbstractContextManager[Client | None]"]

AUDITS = HEADINGS["AuditFlags"]

INTERRUPTED = "interrupted; the same command goes on where it was"


@flat
def run(
    file: StudyPath,
    *,
    cluster: ClusterFlags,
    jobs: SlurmFlags,
    timeouts: TimeoutFlags,
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
    limits: LimitFlags,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Do not end if the first 10 trials fail alike.",
            rich_help_panel="Limits",
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Check an unchecked trainer before it is merged.",
            rich_help_panel="Check and audit",
        ),
    ] = True,
    allow_failed_check: Annotated[
        bool,
        typer.Option(
            "--allow-failed-check",
            help="Merge although the check failed.",
            rich_help_panel="Check and audit",
        ),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Train failed trials again.")
    ] = False,
    retrain_withdrawn: Annotated[
        bool,
        typer.Option(
            "--retrain-withdrawn",
            help="Train again, alone, the trials an audit has withdrawn.",
            rich_help_panel="Check and audit",
        ),
    ] = False,
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="database: the sampler also learns from other studies of this database.",
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a live page on loopback; print its address.")
    ] = False,
    allow_changes: AllowChanges = False,
    audits: AuditFlags,
    log: LogFlags,
) -> None:
    """Run a study; go on where it was interrupted.

    Exit code 1 if a trial failed or rests on a withdrawn metric. Ctrl-C saves what runs first, as
    the end by a limit does; the same command goes on, after a limit with a larger one. Where it
    runs, dasktune.toml beside FILE may say: [run] has flags of this command, [slurm] what its
    jobs need.
    """
    from dasktune._engine.limits import Limits
    from dasktune.cli.target import run_settings
    from dasktune.logs import configure

    failures = {"alike_failures": None} if keep_going else {}
    if allow_changes and not dashboard:
        raise ConfigurationError("--allow-changes must come with --dashboard")
    limits_of_run = Limits(**given(limits), **failures)
    settings = run_settings(file.parent, given(cluster, timeouts, audits, log))
    connect, timeouts_of_run = settings.connecting(file.parent, given(jobs)), settings.timeouts()
    _check_writable(report)
    started_in = Path.cwd()
    with configure(*settings.log):
        is_run_here = settings.is_local and settings.local_gpus is None
        study, tuner = open_study(file, config, is_run_here=is_run_here)
        optimize = partial(
            study.optimize,
            tuner,
            workers=settings.local_workers,
            gpus_per_worker=settings.local_gpus,
            trials_per_gpu=settings.most_per_gpu,
            limits=limits_of_run,
            timeouts=timeouts_of_run,
            progress=progress,
            check=check,
            allow_failed_check=allow_failed_check,
            audit=settings.audit,
            transfer=transfer,
        )
        if retry_failed:
            study.retry_failed()
        if retrain_withdrawn:
            study.retrain_withdrawn()
        if dashboard:
            local = {"workers": None, "gpus_per_worker": None, "trials_per_gpu": 1}
            optimize = partial(optimize, **local)
            optimize = partial(_with_page, study, settings, optimize, allows_changes=allow_changes)
        _optimize(study, optimize, connect)
    page = None if no_report else write_page(study, report, started_in)
    raise typer.Exit(_print_results(study, page, as_json=as_json))


def _print_results(study: Study, page: Path | None, *, as_json: bool) -> int:
    """Print the results of a study; return the exit code."""
    from dasktune.cli.results import as_json as results_json
    from dasktune.cli.results import as_text, failed

    trials = study.trials
    if as_json:
        print_json(results_json(study, trials, page))
    else:
        typer.echo(as_text(study, trials))
        if page is not None:
            typer.echo(f"report: {page}")
    is_wrong = failed(trials) or study.summary()["withdrawn"]["trials"]
    return FAILED if is_wrong else DONE


def _optimize(study: Study, optimize: Callable[..., None], client: Connecting) -> None:
    from dasktune._driver.interrupt import interruptible

    try:
        with interruptible(study.stop), client() as connected:
            optimize(client=connected, last_line=False)
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED, err=True)
        raise typer.Exit(STOPPED) from None


def _with_page(
    study: Study,
    settings: RunSettings,
    optimize: Callable[..., None],
    *,
    client: Client | None,
    allows_changes: bool,
    **more: Any,
) -> None:
    """Optimize while a process of its own serves the live page; print its address and Dask's."""
    from dasktune._dashboard.process import served
    from dasktune._driver.run import cluster_of, gpus_per_local_worker

    needs = study.results.options.needs
    gpus = gpus_per_local_worker(client, settings.local_gpus, settings.most_per_gpu, needs)
    with (
        served(
            study.study_config.database_url, study.name, allows_changes=allows_changes
        ) as address,
        cluster_of(
            *(client, settings.local_workers, gpus, settings.most_per_gpu), dashboard=True
        ) as connected,
    ):
        typer.echo(f"page: {address}", err=True)
        if connected.dashboard_link:
            typer.echo(f"Dask: {connected.dashboard_link}", err=True)
        optimize(client=connected, **more)


def _check_writable(report: Path | None) -> None:
    """Refuse an unwritable path for the report, before hours of training."""
    if report is None:
        return
    if report.is_dir():
        raise ConfigurationError(f"--report must be a file, got the folder {str(report)!r}")
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        with open(report, "a", opener=open_private):
            pass
    except OSError as error:
        raise ConfigurationError(f"--report must be writable: {error}") from error
