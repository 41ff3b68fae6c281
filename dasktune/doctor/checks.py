"""Findings on the cluster, the versions and the trainer, and the list of all checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dask.utils import parse_timedelta

from dasktune._cluster.local import LOCAL_SETTINGS
from dasktune.doctor import host_checks
from dasktune.doctor.facts import Facts, Look, WorkerFacts
from dasktune.doctor.findings import Finding, Status, folded, ok, problem, warning

LOOPBACK = re.compile(r"127\.|localhost|\[?::1\]?")
CLOSED = ("tls", "wss", "inproc")
ADDRESS = re.compile(r"(?P<protocol>\w+)://(?P<host>.*):(?P<port>\d+)")

SETTINGS = {
    "allowed-failures": "Dask starts stages of lost workers again by itself",
    "work-stealing": "Dask tries to move stages, which stay where they are",
    "worker-ttl": "a worker that hangs is not taken for lost {time}",
    "no-workers-timeout": "a stage whose worker is lost waits {time}",
}
"""The consequence of a value above that of a local cluster, by setting of the scheduler."""


def presence(facts: Facts) -> Iterator[Finding]:
    """Find missing workers and calls without an answer."""
    if facts.absent:
        report = warning if facts.workers else problem
        mend = "look into the logs of the workers that are missing"
        yield report("workers", f"not all are there: {facts.absent}", mend)
    for pool in facts.pools:
        if pool.workers:
            yield ok("pool", str(pool))
        else:
            yield warning("pool", str(pool), "read the reason, squeue and the logs of the jobs")
    if facts.scheduler is None:
        yield problem(
            "scheduler",
            f"the scheduler did not answer within {facts.limit:g} s",
            "restart it; if it answers later, something keeps its event loop busy",
        )
    mend = "restart the worker if it hangs; give more time with --seconds if it is slow"
    for worker in facts.workers:
        for check, reason in worker.unanswered.items():
            yield problem("answers", f"asked to {check}: {reason}", mend, worker)


def settings(facts: Facts) -> Iterator[Finding]:
    """Find settings of the scheduler that delay the detection of failures."""
    if facts.scheduler is None:
        return
    is_good = True
    for name, words in SETTINGS.items():
        wanted = LOCAL_SETTINGS[f"distributed.scheduler.{name}"]
        limit = float(parse_timedelta(str(wanted))) if wanted else 0.0
        value = facts.scheduler.settings.get(name)
        if value is None or value > limit:
            is_good = False
            time = "for ever" if value is None else f"for {value:g} s"
            mend = f"set distributed.scheduler.{name}: {str(wanted).lower()} there"
            yield warning("settings", f"{name}: {words.format(time=time)}", mend)
    if is_good:
        yield ok("settings", "the scheduler's settings suit a study")


def slots(facts: Facts) -> Iterator[Finding]:
    """Find workers with unused threads, and workers that cannot start processes."""
    for worker, look in facts.looks:
        if look.slots > 1:
            words = f"a worker has {look.slots} threads, of which a study uses one"
            mend = "start more workers of one thread each instead (--nworkers, --nthreads 1)"
            yield warning("slots", words, mend, worker)
        if look.is_daemon:
            mend = "set distributed.worker.daemon: false for the workers, or start with --no-nanny"
            words = "data loaders cannot start processes under this nanny"
            yield warning("processes", words, mend, worker)


def ports(facts: Facts) -> Iterator[Finding]:
    """Find ports that other hosts can reach without TLS."""
    if facts.scheduler is None:
        return
    scheduler = list(_open_ports("the scheduler", facts.scheduler))
    workers = [
        each for worker, look in facts.looks for each in _open_ports("a worker", look, worker)
    ]
    yield from scheduler + workers
    if not scheduler + workers:
        yield ok("ports", "on loopback only, or encrypted")


def _open_ports(who: str, look: Look, *workers: WorkerFacts) -> Iterator[Finding]:
    for address in filter(None, map(ADDRESS.fullmatch, look.listening)):
        if LOOPBACK.match(address["host"]) or address["protocol"] in CLOSED:
            continue
        if address["protocol"] == "http":
            words = f"the page of {who} is open beyond this host, and not encrypted"
            mend = "start it with --dashboard-address 127.0.0.1:0"
        else:
            words = f"{who} listens beyond this host without TLS: who reaches it runs code"
            mend = "start scheduler and workers with TLS (distributed.comm.require-encryption)"
        yield warning("ports", words, mend, *workers)


# ------------------------------------------------------------- versions and trainer

SERIES = ("python", "dasktune", "dask", "distributed")
"""Packages whose protocol or format may change with the second number of a version."""

SPOKEN = ("python", "dasktune", "dask", "distributed", "cloudpickle", "msgpack")
"""Packages that the scheduler must have in the driver's version."""


def versions(facts: Facts) -> Iterator[Finding]:
    """Compare the versions on workers and scheduler with the driver's."""
    here = {name: version for name, version in facts.driver.packages.items() if version is not None}
    for worker, look in facts.looks:
        differences = list(_differences(here, look, "", worker))
        yield from differences
        if not differences:
            words = ", ".join(f"{name} {version}" for name, version in here.items())
            yield ok("versions", f"{words}, as here", worker)
    if facts.scheduler is not None:
        spoken = {name: version for name, version in here.items() if name in SPOKEN}
        yield from _differences(spoken, facts.scheduler, " on the scheduler")


def _differences(
    here: Mapping[str, str], look: Look, where: str, *workers: WorkerFacts
) -> Iterator[Finding]:
    for name, version in here.items():
        there = look.packages.get(name)
        status = Status.PROBLEM if there is None else severity(name, version, there)
        if status is not None:
            report = problem if status is Status.PROBLEM else warning
            words = f"{there or 'not installed'}{where}, here {version}"
            yield report(name, words, f"install {name} {version} there", *workers)


def severity(name: str, here: str, there: str) -> Status | None:
    """Return how serious a difference of versions is, if there is any.

    Examples
    --------
    >>> severity("numpy", "2.4.6", "2.3.0"), severity("numpy", "2.4.6", "1.26.4")
    (<Status.WARNING: 'warning'>, <Status.PROBLEM: 'problem'>)
    >>> severity("python", "3.11.7", "3.12.7")
    <Status.PROBLEM: 'problem'>
    """
    if here == there:
        return None
    numbers_here, numbers_there = re.findall(r"\d+", here), re.findall(r"\d+", there)
    # Before 1.0, the second number of a version announces incompatible changes.
    count = 2 if name in SERIES or numbers_here[:1] == ["0"] else 1
    return Status.WARNING if numbers_here[:count] == numbers_there[:count] else Status.PROBLEM


def trainer(facts: Facts) -> Iterator[Finding]:
    """Find workers that cannot open the trainer, or have other code, data or files."""
    for worker in facts.workers:
        if worker.opened:
            mend = "install what it needs on the workers, or start them where it is installed"
            yield problem("trainer", worker.opened, mend, worker)
        elif worker.differing:
            words = f"what decides results differs there: {', '.join(worker.differing)}"
            mend = "bring the same code and data there, or states are kept under a wrong name"
            yield problem("trainer", words, mend, worker)
        elif worker.opened is not None:
            yield ok("trainer", f"{facts.trainer.name} opens and is the driver's", worker)
    for worker, look in facts.looks:
        for path in look.missing:
            mend = "copy it to each worker's host, or keep it in a folder that all see"
            yield warning("config", f"{path} exists here, and not there", mend, worker)


def resumes(facts: Facts) -> Iterator[Finding]:
    """Find whether `check_resume` has shown that the trainer resumes exactly."""
    name = facts.trainer.name
    match facts.trainer.checked:
        case True:
            yield ok("resume", f"{name} was found to resume exactly")
        case False:
            mend = "mend its state_dict until 'dasktune check FILE' is content, or use merge=False"
            yield problem("resume", f"{name} was found not to resume exactly", mend)
        case None:
            mend = (
                "'dasktune check FILE' shows whether it resumes exactly; if not, the first run does"
            )
            yield warning("resume", f"{name} was never checked", mend)


# ---------------------------------------------------------------------- all checks

GROUPS: dict[str, tuple[Callable[[Facts], Iterator[Finding]], ...]] = {
    "cluster": (presence, settings, slots, ports),
    "software": (versions, trainer, resumes),
    "storage": (host_checks.store, host_checks.database, host_checks.disks),
    "machines": (
        *(host_checks.clocks, host_checks.memory, host_checks.cores, host_checks.classes),
        *(host_checks.gpus, host_checks.resources),
    ),
}
"""All checks by group, in the order of their findings."""


def diagnose(facts: Facts) -> list[Finding]:
    """Return the findings of all checks; equal findings of several workers are merged."""
    return folded(
        replace(finding, group=group)
        for group, rules in GROUPS.items()
        for rule in rules
        for finding in rule(facts)
    )
