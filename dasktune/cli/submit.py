"""The command ``submit``: the driver itself as a job of SLURM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dasktune.cli.options import (
    AsJson,
    AuditFlags,
    ClusterFlags,
    LogFlags,
    SlurmFlags,
    StudyPath,
    TimeoutFlags,
    flat,
    given,
    group_of,
    open_study,
    print_json,
)
from dasktune.cli.target import run_settings
from dasktune.errors import ConfigurationError, InternalError, refuse

if TYPE_CHECKING:
    from dasktune.slurm import SlurmOptions

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of this command: what it does not know itself is for `run`."""

DriverText = Annotated[str | None, typer.Option(help="Of the driver's job: as for sbatch.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFlags:
    """The driver's job: fields of `dasktune.slurm.submit.DriverOptions`, with ``driver_``."""

    driver_partition: DriverText = None
    driver_account: DriverText = None
    driver_qos: DriverText = None
    driver_cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of the driver's job; 1 if not given.")
    ] = None
    driver_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the driver's job, 2GB.")
    ] = None
    driver_walltime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of the driver's job; the partition's longest."),
    ] = None
    driver_margin: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long before its walltime it begins to save."),
    ] = None
    driver_directives: Annotated[
        list[str] | None,
        typer.Option(
            "--driver-directive",
            help="Further option of sbatch for the driver's job. May be repeated.",
        ),
    ] = None


@flat
def submit(
    context: typer.Context, file: StudyPath, *, driver: DriverFlags, as_json: AsJson = False
) -> None:
    """Run a study in SLURM, its driver too: FILE, then the flags of run.

    Before its walltime the driver saves what runs, its job is requeued, and it goes on from
    there until the study is done. Nothing has to run where this was called.
    """
    from dasktune.slurm.submit import driver_options_for
    from dasktune.slurm.submit import submit as submit_driver
    from dasktune.slurm.workers import check_accepted, shared_folder

    run_options = _run_options(context, file)
    flags = {name.removeprefix("driver_"): value for name, value in given(driver).items()}
    driver_options, pools = _all_at_once(
        lambda: driver_options_for(file.parent, flags), lambda: _pools(file.parent, run_options)
    )
    check_accepted(pools, shared_folder(pools))
    config = run_options["config"] or ()
    job = submit_driver(
        driver_options,
        next(iter(pools.values())),
        name=_open(file, config),
        run=["run", str(file), *context.args, "--slurm"],
        status=[
            "status",
            str(file),
            *(word for setting in config for word in ("--config", setting)),
        ],
    )
    if as_json:
        print_json({"job": job.job, "log": str(job.log)})
    else:
        typer.echo(f"job {job.job}, which says in {job.log} what happens")


def _run_options(context: typer.Context, file: Path) -> Mapping[str, Any]:
    """Return the options of `run` from the arguments that are for it; refuse as it would."""
    group = context.parent and context.parent.command
    run = group.get_command(context, "run") if isinstance(group, TyperGroup) else None
    if run is None:
        raise InternalError("submit must be a command beside run")
    arguments = [str(file), *context.args, "--slurm"]
    with run.make_context("run", arguments, parent=context.parent) as run_context:
        return run_context.params


def _pools(folder: Path, run_options: Mapping[str, Any]) -> dict[str, SlurmOptions]:
    """Return the options of each pool of workers' jobs, as `run` would make them."""
    cluster, jobs = group_of(ClusterFlags, run_options), group_of(SlurmFlags, run_options)
    timeouts, log = group_of(TimeoutFlags, run_options), group_of(LogFlags, run_options)
    audits = group_of(AuditFlags, run_options)
    settings = run_settings(folder, given(cluster, timeouts, audits, log))
    return settings.slurm_pools(folder, given(jobs))


def _all_at_once(*makers: Callable[[], Any]) -> list[Any]:
    """Return the results of several functions, or refuse the problems of all."""
    results: list[Any] = []
    problems: list[str] = []
    for make in makers:
        try:
            results.append(make())
        except ConfigurationError as error:
            problems += error.problems
    refuse(problems)
    return results


def _open(file: Path, config: Sequence[str]) -> str:
    """Create the study, open it again as a requeued driver will, and return its job's name."""
    from dasktune.slurm.submit import job_name

    for _ in range(2):
        study, _tuner = open_study(file, config)
        study.close()
    return job_name(study.name, store=study.store.check())
