"""What the versions, the trainer and its data on workers mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dasktune.doctor.facts import Facts, Look, WorkerFacts
from dasktune.doctor.findings import Finding, Group, Status

GROUP = Group("software")

SERIES = ("python", "dask", "distributed")
"""What speaks or is read otherwise in each version of two numbers."""

SPOKEN = ("python", "dasktune", "dask", "distributed", "cloudpickle", "msgpack")
"""What a scheduler must have as the driver has it."""


def versions(facts: Facts) -> Iterator[Finding]:
    """Compare the versions on workers and scheduler with the driver's."""
    here = _versions(facts.driver)
    good = []
    for worker in facts.workers:
        if worker.look is None:
            continue
        found = list(_differences(here, _versions(worker.look), (worker.address,)))
        yield from found
        if not found:
            good.append(worker.address)
    if facts.scheduler is not None:
        spoken = {name: one for name, one in here.items() if name in SPOKEN}
        yield from _differences(spoken, _versions(facts.scheduler), (), " on the scheduler")
    if good:
        told = ", ".join(f"{name} {one}" for name, one in here.items() if one is not None)
        yield GROUP.ok("versions", f"{told}, as here", tuple(good))


def trainer(facts: Facts) -> Iterator[Finding]:
    """Say where the trainer can be opened, and whether it is the same there."""
    for worker in facts.workers:
        if worker.opened:
            yield GROUP.problem(
                "trainer",
                found=worker.opened,
                mend="install what it needs on the workers, or start them where it is installed",
                workers=(worker.address,),
            )
        elif worker.differing:
            yield _differs(worker)
    same = [one.address for one in facts.workers if one.opened == "" and not one.differing]
    if same:
        yield GROUP.ok("trainer", f"{facts.trainer.name} opens and is the driver's", tuple(same))


def config_paths(facts: Facts) -> Iterator[Finding]:
    """Say which paths of the trainer's config do not exist on workers."""
    for worker in facts.workers:
        for path in worker.look.missing if worker.look is not None else ():
            yield GROUP.warning(
                "config",
                found=f"{path} exists here, and not there",
                mend="copy it to each worker's host, or keep it in a folder that all see",
                workers=(worker.address,),
            )


def resumes(facts: Facts) -> Iterator[Finding]:
    """Say whether the trainer is known to resume exactly."""
    name = facts.trainer.name
    if facts.trainer.checked:
        yield GROUP.ok("resume", f"{name} was found to resume exactly")
        return
    is_unknown = facts.trainer.checked is None
    yield GROUP.finding(
        Status.WARNING if is_unknown else Status.PROBLEM,
        "resume",
        found=f"{name} {'was never checked' if is_unknown else 'was found not to resume exactly'}",
        mend=(
            "'dasktune check FILE' shows whether it resumes exactly, which merging rests on"
            if is_unknown
            else "mend its state_dict until 'dasktune check FILE' is content, or use merge=False"
        ),
    )


def severity(name: str, here: str, there: str) -> Status | None:
    """Return how much a difference of versions matters; None if there is none.

    Examples
    --------
    >>> severity("numpy", "2.4.6", "2.3.0"), severity("numpy", "2.4.6", "1.26.4")
    (<Status.WARNING: 'warning'>, <Status.PROBLEM: 'problem'>)
    >>> severity("python", "3.11.7", "3.12.7")
    <Status.PROBLEM: 'problem'>
    """
    if here == there:
        return None
    if name == "dasktune":
        return Status.PROBLEM
    ours, theirs = _numbers(here), _numbers(there)
    # What has not come to 1.0 yet breaks with its second number.
    count = 2 if name in SERIES or ours[:1] == ("0",) else 1
    return Status.WARNING if ours[:count] == theirs[:count] else Status.PROBLEM


def _differences(
    here: Mapping[str, str | None],
    there: Mapping[str, str | None],
    workers: tuple[str, ...],
    where: str = "",
) -> Iterator[Finding]:
    for name, ours in here.items():
        theirs = there.get(name)
        if ours is None:
            continue
        status = Status.PROBLEM if theirs is None else severity(name, ours, theirs)
        if status is not None:
            yield Finding(
                group=GROUP.name,
                check=name,
                status=status,
                found=f"{theirs or 'not installed'}{where}, here {ours}",
                mend=f"install {name} {ours} there",
                workers=workers,
            )


def _versions(look: Look) -> dict[str, str | None]:
    return {"python": look.python, **look.packages}


def _numbers(version: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", version))


def _differs(worker: WorkerFacts) -> Finding:
    return GROUP.problem(
        "trainer",
        found=f"what decides results differs there: {', '.join(worker.differing)}",
        mend="bring the same code and data there, or states are kept under a wrong name",
        workers=(worker.address,),
    )
