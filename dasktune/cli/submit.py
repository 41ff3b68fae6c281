"""The command ``submit``: the driver itself as a job of SLURM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dasktune.cli.options import AsJson, StudyPath, open_study, print_json
from dasktune.cli.target import Place, place_of
from dasktune.errors import ConfigurationError, InternalError, refuse

if TYPE_CHECKING:
    from dasktune.slurm import SlurmOptions

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of this command: what it does not know itself is for `run`."""

DriverText = Annotated[str | None, typer.Option(help="Of the driver's job: as for sbatch.")]


def submit(
    context: typer.Context,
    file: StudyPath,
    driver_partition: DriverText = None,
    driver_account: DriverText = None,
    driver_qos: DriverText = None,
    driver_cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of the driver's job; 1 if not given.")
    ] = None,
    driver_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the driver's job, 2GB.")
    ] = None,
    driver_walltime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of the driver's job; the partition's longest."),
    ] = None,
    driver_margin: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long before its walltime it begins to save."),
    ] = None,
    driver_directive: Annotated[
        list[str] | None,
        typer.Option(help="Further option of sbatch for the driver's job. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a study in SLURM, its driver too: FILE, then the flags of run.

    Before its walltime the driver saves what runs, its job is requeued, and it goes on from
    there until the study is done. Nothing has to run where this was called.
    """
    from dasktune.slurm.submit import driver_options_for
    from dasktune.slurm.submit import submit as submit_driver
    from dasktune.slurm.workers import check_accepted

    asked = _asked_of_run(context, file)
    flags = {
        "partition": driver_partition,
        "account": driver_account,
        "qos": driver_qos,
        "cpus": driver_cpus,
        "memory": driver_memory,
        "walltime": driver_walltime,
        "margin": driver_margin,
        "directives": tuple(driver_directive) if driver_directive else None,
    }
    driver, workers = _all_at_once(
        lambda: driver_options_for(file.parent, flags), lambda: _workers(file.parent, asked)
    )
    shared = Path(workers.shared_directory).expanduser().absolute()
    shared.mkdir(parents=True, exist_ok=True)
    check_accepted(workers, shared)
    settings = [word for one in asked["config"] or () for word in ("--config", one)]
    made = submit_driver(
        driver,
        workers,
        name=_open(file, asked["config"]),
        run=["run", str(file), *context.args, "--slurm"],
        status=["status", str(file), *settings],
    )
    if as_json:
        print_json({"job": made.job, "log": str(made.log)})
    else:
        typer.echo(f"job {made.job}, which says in {made.log} what happens")


def _asked_of_run(context: typer.Context, file: Path) -> Mapping[str, Any]:
    """Return what `run` would take from the arguments that are for it; refuse as it would."""
    group = context.parent and context.parent.command
    run = group.get_command(context, "run") if isinstance(group, TyperGroup) else None
    if run is None:
        raise InternalError("submit must be a command beside run")
    arguments = [str(file), *context.args, "--slurm"]
    with run.make_context("run", arguments, parent=context.parent) as asked:
        return asked.params


def _workers(folder: Path, asked: Mapping[str, Any]) -> SlurmOptions:
    """Return what the workers' jobs ask for, as `run` would."""
    from dasktune.slurm import SlurmOptions

    places = {one.name for one in fields(Place)}
    others = {one.name for one in fields(SlurmOptions)} - places
    place = place_of(folder, {name: asked[name] for name in places & asked.keys()})
    flags: dict[str, object] = {name: asked[name] for name in others & asked.keys()}
    if asked["directive"]:
        flags["directives"] = tuple(asked["directive"])
    return place.slurm_options(folder, flags)


def _all_at_once(*makers: Callable[[], Any]) -> list[Any]:
    """Return what several functions make, or refuse the problems of all."""
    made: list[Any] = []
    problems: list[str] = []
    for make in makers:
        try:
            made.append(make())
        except ConfigurationError as error:
            problems += error.problems
    refuse(problems)
    return made


def _open(file: Path, config: list[str] | None) -> str:
    """Open a study as the lives of its driver will, one after the other; return its job's name."""
    from dasktune.slurm.submit import job_name

    for _ in range(2):
        study, _tuner = open_study(file, config)
        study.close()
    return job_name(study.name, store=study.store.check())
