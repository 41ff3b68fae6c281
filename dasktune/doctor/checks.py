"""Findings on the cluster, the versions and the trainer, and the list of all checks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dask.utils import parse_timedelta

from dasktune.cluster.local import LOCAL_SETTINGS
from dasktune.doctor import host_checks
from dasktune.doctor.facts import Facts, Look, Role, Trip, WorkerFacts
from dasktune.doctor.findings import Finding, Group, Status, folded

CLUSTER = Group("cluster")

SLOW_TRIP, SLOW_GAP = 1.0, 0.2
"""Limits in seconds of an empty task, and of the gap between two; normal are few ms."""

LOOPBACK = re.compile(r"127\.|localhost|\[?::1\]?")
ENCRYPTED = ("tls", "wss")
ADDRESS = re.compile(r"(?P<protocol>\w+)://(?P<host>.*):(?P<port>\d+)")


def presence(facts: Facts) -> Iterator[Finding]:
    """Find missing workers and calls without an answer."""
    if facts.absent:
        yield CLUSTER.finding(
            Status.WARNING if facts.workers else Status.PROBLEM,
            "workers",
            found=f"not all are there: {facts.absent}",
            mend="look into the logs of the workers that are missing",
        )
    for pool in facts.pools:
        if pool.workers:
            yield CLUSTER.ok("pool", str(pool))
        else:
            mend = "read the reason, squeue and the logs of the jobs"
            yield CLUSTER.warning("pool", str(pool), mend)
    if facts.scheduler is None:
        yield CLUSTER.problem(
            "scheduler",
            f"the scheduler did not answer within {facts.limit:g} s",
            "restart it; if it answers later, something keeps its event loop busy",
        )
    for worker in facts.workers:
        for check, reason in worker.unanswered.items():
            yield CLUSTER.problem(
                "answers",
                f"asked to {check}: {reason}",
                "restart the worker if it hangs; give more time with --seconds if it is slow",
                (worker.address,),
            )


def settings(facts: Facts) -> Iterator[Finding]:
    """Find settings of the scheduler that delay the detection of failures."""
    if facts.scheduler_role is None:
        return
    problems = list(_settings(facts.scheduler_role))
    yield from problems
    if not problems:
        yield CLUSTER.ok("settings", "the scheduler's settings suit a study")


def slots(facts: Facts) -> Iterator[Finding]:
    """Find workers with unused threads, and workers that cannot start processes."""
    for worker in facts.workers:
        role = worker.role
        if role is None:
            continue
        if role.slots > 1:
            yield CLUSTER.warning(
                "slots",
                f"a worker has {role.slots} threads, of which a study uses one",
                "start more workers of one thread each instead (--nworkers, --nthreads 1)",
                (worker.address,),
            )
        if role.is_daemon:
            yield CLUSTER.warning(
                "processes",
                "data loaders cannot start processes under this nanny",
                "set distributed.worker.daemon: false for the workers, or start with --no-nanny",
                (worker.address,),
            )


def ports(facts: Facts) -> Iterator[Finding]:
    """Find ports that other hosts can reach without TLS."""
    roles: list[tuple[str, tuple[str, ...], Role | None]]
    roles = [("the scheduler", (), facts.scheduler_role)]
    roles += [("a worker", (worker.address,), worker.role) for worker in facts.workers]
    is_open = False
    for who, workers, role in roles:
        for protocol in () if role is None else _open(role):
            is_open = True
            if protocol == "http":
                words = f"the page of {who} is open beyond this host, and not encrypted"
                mend = "start it with --dashboard-address 127.0.0.1:0"
            else:
                words = f"{who} listens beyond this host without TLS: who reaches it runs code"
                mend = "start scheduler and workers with TLS (distributed.comm.require-encryption)"
            yield CLUSTER.warning("ports", words, mend, workers)
    if not is_open and facts.scheduler_role is not None:
        yield CLUSTER.ok("ports", "on loopback only, or encrypted")


def trips(facts: Facts) -> Iterator[Finding]:
    """Find slow workers, by the times of empty tasks."""
    known = [(each.address, each.trip) for each in facts.workers if each.trip is not None]
    slow = [each for each in known if _is_slow(each[1])]
    if slow:
        mend = "look for what else loads these hosts or the network, or train longer stages"
        yield CLUSTER.warning("tasks", *_trips(slow, mend))
    if fine := [each for each in known if each not in slow]:
        words, _, workers = _trips(fine, "")
        yield CLUSTER.ok("tasks", words, workers)


def _is_slow(trip: Trip) -> bool:
    return trip.seconds > SLOW_TRIP or trip.gap > SLOW_GAP


def _trips(trips: Sequence[tuple[str, Trip]], mend: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the longest times of some workers in words, with `mend` and the addresses."""
    longest = max(trip.seconds for _, trip in trips)
    gap = max(trip.gap for _, trip in trips)
    words = f"at most {longest * 1e3:.0f} ms for an empty one, {gap * 1e3:.0f} ms between two"
    return words, mend, tuple(worker for worker, _ in trips)


def _settings(role: Role) -> Iterator[Finding]:
    known = role.settings
    if (known.get("allowed-failures") or 0) > _ours("allowed-failures"):
        yield _setting(
            "allowed-failures",
            "Dask starts stages of lost workers again by itself",
            role,
        )
    if known.get("work-stealing"):
        yield _setting(
            "work-stealing", "Dask tries to move stages, which stay where they are", role
        )
    for name, words in (
        ("worker-ttl", "a worker that hangs is not taken for lost"),
        ("no-workers-timeout", "a stage whose worker is lost waits"),
    ):
        if (limit := known.get(name)) is None or limit > _ours(name):
            long = "for ever" if limit is None else f"for {limit:g} s"
            yield _setting(name, f"{words} {long}", role)


def _setting(name: str, words: str, role: Role) -> Finding:
    value = LOCAL_SETTINGS[f"distributed.scheduler.{name}"]
    shown = str(value).lower() if isinstance(value, bool) else value
    return CLUSTER.warning(
        "settings", f"{name}: {words}", f"set distributed.scheduler.{name}: {shown} there", ()
    )


def _ours(name: str) -> float:
    """Return the value of a local cluster."""
    return float(parse_timedelta(str(LOCAL_SETTINGS[f"distributed.scheduler.{name}"])))


def _open(role: Role) -> list[str]:
    """Return the protocols of the ports that other hosts can reach without encryption."""
    addresses = (ADDRESS.fullmatch(address) for address in role.listening)
    return [
        address["protocol"]
        for address in addresses
        if address is not None
        and not LOOPBACK.match(address["host"])
        and address["protocol"] not in (*ENCRYPTED, "inproc")
    ]


# ------------------------------------------------------------- versions and trainer

SOFTWARE = Group("software")

SERIES = ("python", "dask", "distributed")
"""Packages whose protocol or format may change with the second number of a version."""

SPOKEN = ("python", "dasktune", "dask", "distributed", "cloudpickle", "msgpack")
"""Packages that the scheduler must have in the driver's version."""


def versions(facts: Facts) -> Iterator[Finding]:
    """Compare the versions on workers and scheduler with the driver's."""
    here = _versions(facts.driver)
    good = []
    for worker in facts.workers:
        if worker.look is None:
            continue
        differences = list(_differences(here, _versions(worker.look), (worker.address,)))
        yield from differences
        if not differences:
            good.append(worker.address)
    if facts.scheduler is not None:
        spoken = {name: version for name, version in here.items() if name in SPOKEN}
        yield from _differences(spoken, _versions(facts.scheduler), (), " on the scheduler")
    if good:
        words = ", ".join(
            f"{name} {version}" for name, version in here.items() if version is not None
        )
        yield SOFTWARE.ok("versions", f"{words}, as here", tuple(good))


def trainer(facts: Facts) -> Iterator[Finding]:
    """Find workers that cannot open the trainer, or have other code or data."""
    for worker in facts.workers:
        if worker.opened:
            yield SOFTWARE.problem(
                "trainer",
                found=worker.opened,
                mend="install what it needs on the workers, or start them where it is installed",
                workers=(worker.address,),
            )
        elif worker.differing:
            yield _differs(worker)
    same = [
        worker.address for worker in facts.workers if worker.opened == "" and not worker.differing
    ]
    if same:
        yield SOFTWARE.ok("trainer", f"{facts.trainer.name} opens and is the driver's", tuple(same))


def config_paths(facts: Facts) -> Iterator[Finding]:
    """Find paths of the trainer's config that workers lack."""
    for worker in facts.workers:
        for path in worker.look.missing if worker.look is not None else ():
            yield SOFTWARE.warning(
                "config",
                found=f"{path} exists here, and not there",
                mend="copy it to each worker's host, or keep it in a folder that all see",
                workers=(worker.address,),
            )


def resumes(facts: Facts) -> Iterator[Finding]:
    """Find whether `check_resume` has shown that the trainer resumes exactly."""
    name = facts.trainer.name
    if facts.trainer.checked:
        yield SOFTWARE.ok("resume", f"{name} was found to resume exactly")
        return
    is_unknown = facts.trainer.checked is None
    yield SOFTWARE.finding(
        Status.WARNING if is_unknown else Status.PROBLEM,
        "resume",
        found=f"{name} {'was never checked' if is_unknown else 'was found not to resume exactly'}",
        mend=(
            "'dasktune check FILE' shows whether it resumes exactly; if not, the first run does"
            if is_unknown
            else "mend its state_dict until 'dasktune check FILE' is content, or use merge=False"
        ),
    )


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
    if name == "dasktune":
        return Status.PROBLEM
    numbers_here, numbers_there = _numbers(here), _numbers(there)
    # Before 1.0, the second number of a version announces incompatible changes.
    count = 2 if name in SERIES or numbers_here[:1] == ("0",) else 1
    return Status.WARNING if numbers_here[:count] == numbers_there[:count] else Status.PROBLEM


def _differences(
    here: Mapping[str, str | None],
    there: Mapping[str, str | None],
    workers: tuple[str, ...],
    where: str = "",
) -> Iterator[Finding]:
    for name, version in here.items():
        version_there = there.get(name)
        if version is None:
            continue
        status = Status.PROBLEM if version_there is None else severity(name, version, version_there)
        if status is not None:
            yield Finding(
                group=SOFTWARE.name,
                check=name,
                status=status,
                found=f"{version_there or 'not installed'}{where}, here {version}",
                mend=f"install {name} {version} there",
                workers=workers,
            )


def _versions(look: Look) -> dict[str, str | None]:
    return {"python": look.python, **look.packages}


def _numbers(version: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", version))


def _differs(worker: WorkerFacts) -> Finding:
    return SOFTWARE.problem(
        "trainer",
        found=f"what decides results differs there: {', '.join(worker.differing)}",
        mend="bring the same code and data there, or states are kept under a wrong name",
        workers=(worker.address,),
    )


# ---------------------------------------------------------------------- all checks

RULES = (
    *(presence, settings, slots, ports, trips),
    *(versions, trainer, config_paths, resumes),
    *(
        host_checks.store,
        host_checks.speed,
        host_checks.leftovers,
        host_checks.database,
        host_checks.disks,
    ),
    *(host_checks.clocks, host_checks.memory, host_checks.cores, host_checks.classes),
    *(host_checks.packing, host_checks.gpus),
)
"""All checks, in the order of their findings."""


def diagnose(facts: Facts) -> list[Finding]:
    """Return the findings of all checks; equal findings of several workers are merged."""
    return folded(finding for rule in RULES for finding in rule(facts))
