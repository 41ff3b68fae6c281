"""What was seen of the store, the database and the disks means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dasktune.doctor.facts import Facts, Look, Visit, WorkerFacts
from dasktune.doctor.findings import Finding, Group, Status

GROUP = Group("storage")

SLOW_SECONDS = 1.0
"""A small file takes no longer to write and read in a store that is near."""

SLOW_BYTES = 5e6
"""Bytes per second; a slower store makes training wait for its checkpoints."""

SLOW_COMMIT = 0.5
"""Seconds of a transaction; there is one for each handful of reports."""

LITTLE, TOO_LITTLE = 2 * 2**30, 100 * 2**20
"""Bytes of a disk that is nearly full, and of one that is."""

SHARED = (
    "the storage must be one place that the driver and all workers see: a folder of a shared "
    "file system, or a bucket such as s3://bucket/path"
)


def store(facts: Facts) -> Iterator[Finding]:
    """Say who can use the store, and whether all mean the same one."""
    driver = facts.store.visit
    found = list(_visit_findings(facts, driver, (), "the driver"))
    for worker in facts.workers:
        if worker.visit is not None:
            found += _visit_findings(facts, worker.visit, (worker.address,), "a worker")
    found += _memory_findings(facts)
    if not found:
        found += _race_findings(facts)
    yield from found
    visited = [one for one in facts.workers if _is_fine(one.visit)]
    if visited and not driver.failed:
        taken = [driver, *(one.visit for one in visited if one.visit is not None)]
        yield GROUP.ok(
            "store",
            found=f"{facts.store.url}: written, read, listed and removed, "
            f"{_times(one.seconds for one in taken)} for a small file",
            workers=tuple(one.address for one in visited),
        )
    elif not driver.failed and not facts.workers:
        yield GROUP.ok("store", f"{facts.store.url}: the driver can use it")


def speed(facts: Facts) -> Iterator[Finding]:
    """Say how fast the store is for all workers at once, and for one alone."""
    measured = [one for one in facts.workers if one.speed is not None]
    speeds = [one.speed for one in facts.workers if one.speed is not None]
    if not speeds:
        return
    slowest = min(min(one.write, one.read) for one in speeds)
    alone = facts.store.alone
    beside = "" if alone is None else f"; one alone {_rate(alone.write)} and {_rate(alone.read)}"
    found = (
        f"a worker writes {_rates(one.write for one in speeds)} and reads "
        f"{_rates(one.read for one in speeds)}{beside}"
    )
    is_slow = slowest < SLOW_BYTES
    yield GROUP.finding(
        Status.WARNING if is_slow else Status.OK,
        "speed",
        found=found,
        mend="use a store that is nearer to the workers, or save less often (checkpoint_every)"
        if is_slow
        else "",
        workers=tuple(one.address for one in measured),
    )


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Say what could not be removed from the store again."""
    if facts.store.left:
        yield GROUP.problem(
            "removal",
            found=f"{facts.store.left} could not be removed again from {facts.store.url}",
            mend="allow the driver to list and remove there, and remove it by hand",
        )


def database(facts: Facts) -> Iterator[Finding]:
    """Say whether the driver can use the database, and how fast."""
    known = facts.database
    if known.problem:
        yield GROUP.problem(
            "database",
            found=known.problem,
            mend="make it reachable and writable from the host of the driver, or name another "
            "with database=",
        )
        return
    if known.network is not None:
        yield GROUP.warning(
            "database",
            found=f"{known.name} is on a network file system ({known.network}), where SQLite's "
            "locks do not hold",
            mend="give a file on a local disk, database='/local/x.db', or PostgreSQL",
        )
    is_slow = known.seconds > SLOW_COMMIT
    yield GROUP.finding(
        Status.WARNING if is_slow else Status.OK,
        "database",
        found=f"{known.name}: {_time(known.seconds)} for a transaction",
        mend="use a disk or server that is faster, or nearer to the driver" if is_slow else "",
    )


def disks(facts: Facts) -> Iterator[Finding]:
    """Say where a disk is nearly full."""
    least: float | None = None
    for worker in facts.workers:
        for folder, free in worker.look.free.items() if worker.look is not None else ():
            least = free if least is None else min(least, free)
            if free < LITTLE:
                yield GROUP.finding(
                    Status.PROBLEM if free < TOO_LITTLE else Status.WARNING,
                    "disk",
                    found=f"{folder} has {free / 2**30:.2f} GiB left",
                    mend="make room there, or let temporary files go elsewhere (TMPDIR, "
                    "--local-directory)",
                    workers=(worker.address,),
                )
    if least is not None and least >= LITTLE:
        yield GROUP.ok(
            "disk",
            found=f"at least {least / 2**30:.0f} GiB left for temporary files",
            workers=_looked(facts.workers),
        )


def _visit_findings(
    facts: Facts, visit: Visit, workers: tuple[str, ...], who: str
) -> Iterator[Finding]:
    """Say what one process could not do with the store."""
    url = facts.store.url
    if visit.failed:
        yield GROUP.problem(
            "store",
            f"{who} cannot {visit.failed} in {url}: {visit.reason}",
            "give it access to the storage: folder and permissions, or credentials and bucket",
            workers,
        )
        return
    if workers and not (visit.sees and visit.is_seen):
        yield GROUP.problem("store", f"{url} is another place there than here", SHARED, workers)
    wrong = [
        words
        for is_right, words in (
            (visit.refuses, "creates a file that exists a second time"),
            (visit.lists, "does not list what was written"),
            (visit.removes, "keeps what was removed"),
        )
        if not is_right
    ]
    for words in wrong:
        yield GROUP.problem(
            "store",
            f"{url} {words}",
            "use another store: this one cannot tell who was first, or shows what is old",
            workers,
        )


def _memory_findings(facts: Facts) -> Iterator[Finding]:
    if not facts.store.url.startswith("memory://"):
        return
    others = [one for one in facts.workers if _is_apart(one.look, facts.driver)]
    if others:
        yield GROUP.problem(
            "store",
            f"{facts.store.url} is seen by one process only, and workers are others",
            "use a folder or a bucket as storage, or LocalCluster(processes=False)",
            tuple(one.address for one in others),
        )


def _race_findings(facts: Facts) -> Iterator[Finding]:
    """Say if not exactly one process was the first to create a file."""
    visits = [facts.store.visit, *(one.visit for one in facts.workers if one.visit is not None)]
    winners = sum(one.won for one in visits)
    if winners > 1:
        yield GROUP.problem(
            "store",
            f"{facts.store.url} let {winners} processes create the same file",
            "use another store: this one cannot tell who was first",
            (),
        )


def _is_fine(visit: Visit | None) -> bool:
    return (
        visit is not None
        and not visit.failed
        and all((visit.sees, visit.is_seen, visit.refuses, visit.lists, visit.removes))
    )


def _is_apart(look: Look | None, driver: Look) -> bool:
    return look is not None and look.process != driver.process


def _looked(workers: Iterable[WorkerFacts]) -> tuple[str, ...]:
    return tuple(one.address for one in workers if one.look is not None)


def _times(seconds: Iterable[float]) -> str:
    """Return the least and the largest of some times, in words."""
    return _span(map(_time, sorted(seconds)))


def _rates(rates: Iterable[float]) -> str:
    return _span(map(_rate, sorted(rates)))


def _span(words: Iterable[str]) -> str:
    first, *_, last = [*words] * 2
    return first if first == last else f"{first} to {last}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rate(rate: float) -> str:
    return f"{rate / 1e6:.3g} MB/s"
