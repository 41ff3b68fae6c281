"""What was seen of Dask means: who answers, its settings, its ports, its speed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dask.utils import parse_timedelta

from dasktune.cluster.local import LOCAL_SETTINGS
from dasktune.doctor.facts import Facts, Role, Trip
from dasktune.doctor.findings import Finding, Group, Status

GROUP = Group("cluster")

SLOW_TRIP, SLOW_GAP = 1.0, 0.2
"""Seconds: a stage is begun, and the next one, in far less."""

LOOPBACK = re.compile(r"127\.|localhost|\[?::1\]?")
ENCRYPTED = ("tls", "wss")
ADDRESS = re.compile(r"(?P<protocol>\w+)://(?P<host>.*):(?P<port>\d+)")


def presence(facts: Facts) -> Iterator[Finding]:
    """Say who is not there, and who did not answer."""
    if facts.absent:
        yield GROUP.finding(
            Status.WARNING if facts.workers else Status.PROBLEM,
            "workers",
            found=f"not all are there: {facts.absent}",
            mend="look into the logs of the workers that are missing",
        )
    if facts.scheduler is None:
        yield GROUP.problem(
            "scheduler",
            f"the scheduler did not answer within {facts.limit:g} s",
            "restart it; if it answers later, something keeps its event loop busy",
        )
    for worker in facts.workers:
        for check, reason in worker.unanswered.items():
            yield GROUP.problem(
                "answers",
                f"asked to {check}: {reason}",
                "restart the worker if it hangs; give more time with --seconds if it is slow",
                (worker.address,),
            )


def settings(facts: Facts) -> Iterator[Finding]:
    """Say which settings of a scheduler keep failures from being seen in time."""
    if facts.scheduler_role is None:
        return
    found = list(_settings(facts.scheduler_role))
    yield from found
    if not found:
        yield GROUP.ok("settings", "the scheduler's settings suit a study")


def slots(facts: Facts) -> Iterator[Finding]:
    """Say which workers have threads that stay unused, or cannot start processes."""
    for worker in facts.workers:
        role = worker.role
        if role is None:
            continue
        if role.slots > 1:
            yield GROUP.warning(
                "slots",
                f"a worker has {role.slots} threads, of which a study uses one",
                "start more workers of one thread each instead (--nworkers, --nthreads 1)",
                (worker.address,),
            )
        if role.is_daemon:
            yield GROUP.warning(
                "processes",
                "data loaders cannot start processes under this nanny",
                "set distributed.worker.daemon: false for the workers, or start with --no-nanny",
                (worker.address,),
            )


def ports(facts: Facts) -> Iterator[Finding]:
    """Say which ports can be reached from other hosts without TLS."""
    roles: list[tuple[str, tuple[str, ...], Role | None]]
    roles = [("the scheduler", (), facts.scheduler_role)]
    roles += [("a worker", (one.address,), one.role) for one in facts.workers]
    is_open = False
    for who, workers, role in roles:
        for protocol in () if role is None else _open(role):
            is_open = True
            if protocol == "http":
                found = f"the page of {who} is open beyond this host, and not encrypted"
                mend = "start it with --dashboard-address 127.0.0.1:0"
            else:
                found = f"{who} listens beyond this host without TLS: who reaches it runs code"
                mend = "start scheduler and workers with TLS (distributed.comm.require-encryption)"
            yield GROUP.warning("ports", found, mend, workers)
    if not is_open and facts.scheduler_role is not None:
        yield GROUP.ok("ports", "on loopback only, or encrypted")


def trips(facts: Facts) -> Iterator[Finding]:
    """Say how fast workers run tasks that do nothing."""
    known = [(one.address, one.trip) for one in facts.workers if one.trip is not None]
    slow = [one for one in known if _is_slow(one[1])]
    if slow:
        mend = "look for what else loads these hosts or the network, or train longer stages"
        yield GROUP.warning("tasks", *_trips(slow, mend))
    if fine := [one for one in known if one not in slow]:
        found, _, workers = _trips(fine, "")
        yield GROUP.ok("tasks", found, workers)


def _is_slow(trip: Trip) -> bool:
    return trip.seconds > SLOW_TRIP or trip.gap > SLOW_GAP


def _trips(trips: Sequence[tuple[str, Trip]], mend: str) -> tuple[str, str, tuple[str, ...]]:
    """Return what is to be said of how fast workers are."""
    longest = max(trip.seconds for _, trip in trips)
    gap = max(trip.gap for _, trip in trips)
    found = f"at most {longest * 1e3:.0f} ms for an empty one, {gap * 1e3:.0f} ms between two"
    return found, mend, tuple(worker for worker, _ in trips)


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
    return GROUP.warning(
        "settings", f"{name}: {words}", f"set distributed.scheduler.{name}: {shown} there", ()
    )


def _ours(name: str) -> float:
    """Return the value that a local cluster has."""
    return float(parse_timedelta(str(LOCAL_SETTINGS[f"distributed.scheduler.{name}"])))


def _open(role: Role) -> list[str]:
    """Return the protocols of the ports that others can reach and listen to."""
    found = (ADDRESS.fullmatch(one) for one in role.listening)
    return [
        one["protocol"]
        for one in found
        if one is not None
        and not LOOPBACK.match(one["host"])
        and one["protocol"] not in (*ENCRYPTED, "inproc")
    ]
