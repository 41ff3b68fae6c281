"""Findings on storage, disks, clocks, memory, cores and GPUs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dasktune.doctor.facts import Facts, Look, Offset, Role, StoreUse, WorkerFacts
from dasktune.doctor.findings import Finding, Group, Status
from dasktune.doctor.needs import TriedNeeds
from dasktune.engine.timeouts import LEASE_SECONDS, RENEW_SECONDS
from dasktune.needs import Offer, unmet_text
from dasktune.words import counted

STORAGE = Group("storage")

MOST_UNMET = 5
"""Needs of configurations that no worker meets of which each has a finding."""

SLOW_SECONDS = 1.0
"""Limit for writing and reading a small file, in seconds."""

SLOW_BYTES = 5e6
"""Bytes per second; with a slower store training waits for checkpoints."""

SLOW_COMMIT = 0.5
"""Limit for a transaction, in seconds; each handful of reports needs one."""

LITTLE, TOO_LITTLE = 2 * 2**30, 100 * 2**20
"""Free bytes of a disk that is nearly full, and of a full one."""

SHARED = (
    "the storage must be one place that the driver and all workers see: a folder of a shared "
    "file system, or a bucket such as s3://bucket/path"
)


def store(facts: Facts) -> Iterator[Finding]:
    """Find processes that cannot use the store, or see another one."""
    driver = facts.store.use
    problems = list(_use_findings(facts, driver, (), "the driver"))
    for worker in facts.workers:
        if worker.use is not None:
            problems += _use_findings(facts, worker.use, (worker.address,), "a worker")
    problems += _memory_findings(facts)
    if not problems:
        problems += _race_findings(facts)
    yield from problems
    visited = [each for each in facts.workers if _is_fine(each.use)]
    if visited and not driver.failed:
        taken = [driver, *(each.use for each in visited if each.use is not None)]
        yield STORAGE.ok(
            "store",
            found=f"{facts.store.url}: written, read, listed and removed, "
            f"{_times(each.seconds for each in taken)} for a small file; {_removal(driver)}",
            workers=tuple(each.address for each in visited),
        )
    elif not driver.failed and not facts.workers:
        yield STORAGE.ok("store", f"{facts.store.url}: the driver can use it; {_removal(driver)}")


def speed(facts: Facts) -> Iterator[Finding]:
    """Find a slow store, by its speed for all workers at once and for one alone."""
    measured = [each for each in facts.workers if each.speed is not None]
    speeds = [each.speed for each in facts.workers if each.speed is not None]
    if not speeds:
        return
    slowest = min(min(each.write, each.read) for each in speeds)
    alone = facts.store.alone
    beside = "" if alone is None else f"; one alone {_rate(alone.write)} and {_rate(alone.read)}"
    words = (
        f"a worker writes {_rates(each.write for each in speeds)} and reads "
        f"{_rates(each.read for each in speeds)}{beside}"
    )
    is_slow = slowest < SLOW_BYTES
    yield STORAGE.finding(
        Status.WARNING if is_slow else Status.OK,
        "speed",
        found=words,
        mend="use a store that is nearer to the workers, or save less often (checkpoint_every)"
        if is_slow
        else "",
        workers=tuple(each.address for each in measured),
    )


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Find files that could not be removed from the store."""
    if facts.store.left:
        yield STORAGE.problem(
            "removal",
            found=f"{facts.store.left} could not be removed again from {facts.store.url}",
            mend="allow the driver to list and remove there, and remove it by hand",
        )


def database(facts: Facts) -> Iterator[Finding]:
    """Find a database that the driver cannot use, or a slow one."""
    known = facts.database
    if known.problem:
        yield STORAGE.problem(
            "database",
            found=known.problem,
            mend="make it reachable and writable from the host of the driver, or name another "
            "with database=",
        )
        return
    if known.network is not None:
        yield STORAGE.warning(
            "database",
            found=f"{known.name} is on a network file system ({known.network}), where SQLite's "
            "locks do not hold",
            mend="give a file on a local disk, database='/local/x.db', or PostgreSQL",
        )
    is_slow = known.seconds > SLOW_COMMIT
    yield STORAGE.finding(
        Status.WARNING if is_slow else Status.OK,
        "database",
        found=f"{known.name}: {_time(known.seconds)} for a transaction",
        mend="use a disk or server that is faster, or nearer to the driver" if is_slow else "",
    )


def disks(facts: Facts) -> Iterator[Finding]:
    """Find disks that are nearly full."""
    least: float | None = None
    for worker in facts.workers:
        for folder, free in worker.look.free.items() if worker.look is not None else ():
            least = free if least is None else min(least, free)
            if free < LITTLE:
                yield STORAGE.finding(
                    Status.PROBLEM if free < TOO_LITTLE else Status.WARNING,
                    "disk",
                    found=f"{folder} has {free / 2**30:.2f} GiB left",
                    mend="make room there, or let temporary files go elsewhere (TMPDIR, "
                    "--local-directory)",
                    workers=(worker.address,),
                )
    if least is not None and least >= LITTLE:
        yield STORAGE.ok(
            "disk",
            found=f"at least {least / 2**30:.0f} GiB left for temporary files",
            workers=_addresses(facts.workers),
        )


def _use_findings(
    facts: Facts, use: StoreUse, workers: tuple[str, ...], who: str
) -> Iterator[Finding]:
    """Yield the problems of one process with the store."""
    url = facts.store.url
    if use.failed:
        yield STORAGE.problem(
            "store",
            f"{who} cannot {use.failed} in {url}: {use.reason}",
            "give it access to the storage: folder and permissions, or credentials and bucket",
            workers,
        )
        return
    if workers and not (use.sees and use.is_seen):
        yield STORAGE.problem("store", f"{url} is another place there than here", SHARED, workers)
    wrong = [
        words
        for is_right, words in (
            (use.refuses, "creates a file that exists a second time"),
            (use.lists, "does not list what was written"),
            (use.removes, "keeps what was removed"),
        )
        if not is_right
    ]
    for words in wrong:
        yield STORAGE.problem(
            "store",
            f"{url} {words}",
            "use another store: this one cannot tell who was first, or shows what is old",
            workers,
        )


def _removal(use: StoreUse) -> str:
    """Return how checkpoints are removed that another process may replace, in words."""
    way = "by conditional requests" if use.conditional else "with a mark file"
    return f"checkpoints are removed {way}"


def _memory_findings(facts: Facts) -> Iterator[Finding]:
    if not facts.store.url.startswith("memory://"):
        return
    others = [worker for worker in facts.workers if _is_apart(worker.look, facts.driver)]
    if others:
        yield STORAGE.problem(
            "store",
            f"{facts.store.url} is seen by one process only, and workers are others",
            "use a folder or a bucket as storage, or LocalCluster(processes=False)",
            tuple(worker.address for worker in others),
        )


def _race_findings(facts: Facts) -> Iterator[Finding]:
    """Yield a problem if several processes created the same file."""
    uses = [facts.store.use, *(each.use for each in facts.workers if each.use is not None)]
    winners = sum(each.won for each in uses)
    if winners > 1:
        yield STORAGE.problem(
            "store",
            f"{facts.store.url} let {winners} processes create the same file",
            "use another store: this one cannot tell who was first",
            (),
        )


def _is_fine(use: StoreUse | None) -> bool:
    return (
        use is not None
        and not use.failed
        and all((use.sees, use.is_seen, use.refuses, use.lists, use.removes))
    )


def _is_apart(look: Look | None, driver: Look) -> bool:
    return look is not None and look.process != driver.process


def _addresses(workers: Iterable[WorkerFacts]) -> tuple[str, ...]:
    return tuple(worker.address for worker in workers if worker.look is not None)


def _times(seconds: Iterable[float]) -> str:
    """Return the range of some times, in words."""
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


# ---------------------------------------------------------------- clocks to GPUs

MACHINES = Group("machines")

AHEAD_SECONDS, FAR_SECONDS = 1.0, 30.0
"""Differences of clocks from which on logs mislead, and leases fail."""

TOLERATED = LEASE_SECONDS - RENEW_SECONDS
"""A clock that is so far ahead sees a lease as expired just before its renewal."""

LITTLE_MEMORY = 2**30
"""Bytes that each worker should have."""

FULL_GPU = 0.1
"""Share of a GPU's memory that must be free."""


def clocks(facts: Facts) -> Iterator[Finding]:
    """Find clocks that differ from the driver's."""
    known = [
        (worker.address, worker.offset) for worker in facts.workers if worker.offset is not None
    ]
    wrong = {worker for worker, offset in known if _by(offset) > AHEAD_SECONDS}
    for worker, offset in known:
        if worker in wrong:
            yield _clock(offset, "the clock there", (worker,))
    if facts.store.offset is not None and _by(facts.store.offset) > AHEAD_SECONDS:
        yield _clock(facts.store.offset, "the store's clock", ())
    right = [(worker, offset) for worker, offset in known if worker not in wrong]
    if right:
        most = max(abs(offset.seconds) + offset.error for _, offset in right)
        yield MACHINES.ok(
            "clock", f"within {most * 1e3:.0f} ms of the driver's", [worker for worker, _ in right]
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """Find hosts with little memory, and workers that Dask ends at a memory limit."""
    good = []
    for host, workers in _by_host(facts).items():
        free = min(look.memory_free for _, look, _ in workers)
        share = free / len(workers)
        addresses = [address for address, _, _ in workers]
        if share < LITTLE_MEMORY:
            yield MACHINES.warning(
                "memory",
                f"{host} has {free / 2**30:.1f} GiB left for {counted(len(workers), 'worker')}",
                "start fewer workers there, or end what else uses its memory",
                addresses,
            )
        else:
            good += addresses
    for address, _, role in _looked(facts):
        if role.memory_limit:
            yield MACHINES.warning(
                "memory",
                f"Dask ends the worker if it uses more than {role.memory_limit / 2**30:.1f} GiB",
                "start workers with --memory-limit 0, or be sure that the trainer needs less",
                [address],
            )
    if good:
        yield MACHINES.ok("memory", f"at least {LITTLE_MEMORY / 2**30:.0f} GiB left for each", good)


def cores(facts: Facts) -> Iterator[Finding]:
    """Find hosts with more workers, or more threads, than cores."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[str, Look]]] = defaultdict(list)
    for address, look, _ in _looked(facts):
        groups[look.host, look.cores].append((address, look))
    for (host, numbers), workers in groups.items():
        addresses = [address for address, _ in workers]
        threads = max(_threads(facts, look, len(numbers)) for _, look in workers)
        words = f"{counted(len(workers), 'worker')} on {counted(len(numbers), 'core')} of {host}"
        if len(workers) > len(numbers):
            mend = f"start at most {counted(len(numbers), 'worker')} there"
            yield MACHINES.warning("cores", words, mend, addresses)
        elif len(workers) * threads > len(numbers):
            mend = f"start them with OMP_NUM_THREADS={len(numbers) // len(workers)}"
            text = f"{words}, each with {counted(threads, 'thread')}"
            yield MACHINES.warning("cores", text, mend, addresses)
        else:
            text = f"{words}, each with {counted(threads, 'thread')}"
            yield MACHINES.ok("cores", text, addresses)


def classes(facts: Facts) -> Iterator[Finding]:
    """Find the compute classes of the workers, and the tags of each."""
    known = [worker for worker in facts.workers if worker.kind is not None]
    by_class: dict[str, list[WorkerFacts]] = defaultdict(list)
    for worker in known:
        by_class[worker.kind or ""].append(worker)
    for kind, workers in by_class.items():
        tags = sorted({tag for worker in workers for tag in worker.tags})
        words = f"{kind}; tags {', '.join(tags)}" if tags else kind
        yield MACHINES.ok("class", words, [worker.address for worker in workers])


def packing(facts: Facts) -> Iterator[Finding]:
    """Find the devices on which several trials may train together, and whether MPS runs."""
    by_device: dict[str, list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        if worker.device:
            by_device[worker.device].append(worker)
    for device, workers in by_device.items():
        words = f"up to {counted(len(workers), 'trial')} at a time on {device}, by measurement"
        if any(worker.role and worker.role.resources.get("GPU") for worker in workers):
            words += "; MPS runs" if workers[0].has_mps else "; MPS does not run: they take turns"
        yield MACHINES.ok("packing", words, [worker.address for worker in workers])


def gpus(facts: Facts) -> Iterator[Finding]:
    """Find GPUs that cannot be used, stay unused or are shared without being declared."""
    good: dict[str, list[str]] = defaultdict(list)
    shared = dict(_sharing(facts))
    for worker in facts.workers:
        if worker.look is None or worker.role is None:
            continue
        problems = list(_gpu_findings(worker, worker.look, worker.role))
        devices = () if worker.torch is None else worker.torch.devices
        if worker.address in shared:
            problems.append(shared[worker.address])
        yield from problems
        if not problems and devices:
            memory = f"{devices[0].nbytes / 2**30:.0f} GiB"
            cuda = "" if worker.torch is None else f", CUDA {worker.torch.cuda}"
            good[f"{counted(len(devices), 'GPU')}, {devices[0].name}, {memory}{cuda}"].append(
                worker.address
            )
    for words, addresses in good.items():
        yield MACHINES.ok("GPU", words, addresses)
    yield from _needs_findings(facts)


def _gpu_findings(worker: WorkerFacts, look: Look, role: Role) -> Iterator[Finding]:
    """Yield the problems with the GPUs of one worker."""
    claims, torch, own = role.resources.get("GPU", 0) > 0, worker.torch, [worker.address]
    devices = () if torch is None else torch.devices
    if claims and torch is not None and not devices:
        reason = torch.problem or "CUDA_VISIBLE_DEVICES, driver or torch say so"
        words = f"the resource GPU is claimed, and torch sees none ({reason})"
        yield MACHINES.problem(
            "GPU", words, "start the worker where torch sees a GPU, or without", own
        )
    elif torch is not None and torch.problem:
        yield MACHINES.problem("GPU", torch.problem, "mend the driver of the GPU, or torch", own)
    if torch is not None and torch.cuda is None and look.gpus:
        words = f"{_listed(look.gpus)} there, and torch is built without CUDA"
        mend = "install a build of torch with CUDA on the workers"
        yield MACHINES.warning("GPU", words, mend, own)
    if devices and not claims:
        yield MACHINES.warning(
            "GPU",
            f"{devices[0].name} is seen there, and would not be used",
            "start the worker with --resources GPU=1, or dasktune with --gpus-per-worker 1",
            own,
        )
    if devices and claims and devices[0].free < FULL_GPU * devices[0].nbytes:
        words = f"{devices[0].name} has {devices[0].free / 2**30:.1f} GiB left"
        yield MACHINES.warning("GPU", words, "end what else uses its memory", own)


def _sharing(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield a finding for each worker that shares a GPU without declaring it."""
    on: dict[tuple[str, str], list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        if worker.device:
            continue  # of its workers only as many train as their memory has room for
        if worker.torch is not None and worker.torch.devices and worker.look is not None:
            on[worker.look.host, worker.torch.devices[0].uuid].append(worker)
    for (host, _), workers in on.items():
        claims = [_claim(worker) for worker in workers]
        if len(workers) < 2 or not any(claims) or sum(claims) <= 1.001:
            continue
        words = f"{counted(len(workers), 'worker')} on one GPU of {host}, claimed {sum(claims):g}x"
        mend = (
            "give each its own with CUDA_VISIBLE_DEVICES (--gpus-per-worker 1), or a part of one "
            "(--gpus-per-worker 0.5), or share it by measurement (--trials-per-gpu 2)"
        )
        for worker in workers:
            yield worker.address, MACHINES.warning("GPU", words, mend, [worker.address])


def _needs_findings(facts: Facts) -> Iterator[Finding]:
    """Yield a problem if no worker has the resources that stages need."""
    needs = facts.trainer.needs
    offers = {
        worker.address: Offer.of(worker.role.resources, worker.kind or "", worker.tags)
        for worker in facts.workers
        if worker.look is not None and worker.role is not None
    }
    if not offers:
        return
    if facts.trainer.tried is not None:
        yield from _tried_findings(facts.trainer.tried, list(offers.values()))
    if needs.are_none:
        return
    able = [address for address, offer in offers.items() if needs.fits(offer)]
    if able:
        yield MACHINES.ok("resources", f"{needs}, as stages need", able)
    else:
        words = f"stages need {needs}; {unmet_text(needs, offers.values())}"
        mend = "start workers that have it (dask worker --resources, DASKTUNE_TAGS)"
        yield MACHINES.problem("resources", words, mend, [])


def _tried_findings(tried: TriedNeeds, offers: Sequence[Offer]) -> Iterator[Finding]:
    """Yield problems for needs of configurations that no worker meets."""
    if not tried.tried:
        words = "needs come from a function, and no configuration is known to try it with"
        mend = "check the study file with 'dasktune doctor', whose tuner has a space"
        yield MACHINES.warning("needs", words, mend)
        return
    mend = "start workers that have it (dask worker --resources, DASKTUNE_TAGS)"
    unmet = [(own, example) for own, example in tried.needs if not any(map(own.fits, offers))]
    for own, example in unmet[:MOST_UNMET]:
        words = f"{example}: {unmet_text(own, offers)} (tried: {tried.tried})"
        yield MACHINES.problem("needs", words, mend)
    if len(unmet) > MOST_UNMET:
        words = f"{len(unmet) - MOST_UNMET:,} more kinds of needs that no worker meets"
        yield MACHINES.problem("needs", words, mend)
    for problem in tried.problems:
        yield MACHINES.problem("needs", problem, "mend the function: such trials fail")
    if not unmet and not tried.problems:
        kinds = counted(len(tried.needs), "kind")
        words = f"workers meet {kinds} of needs, of {tried.tried}"
        yield MACHINES.ok("needs", words)


def _claim(worker: WorkerFacts) -> float:
    return 0.0 if worker.role is None else worker.role.resources.get("GPU", 0.0)


def _threads(facts: Facts, look: Look, number: int) -> int:
    """Return the number of threads of a stage: by default, torch and OpenMP use every core."""
    if facts.trainer.threads is not None:
        return facts.trainer.threads
    first = look.threads.partition(",")[0]
    return int(first) if first.isdecimal() else number


def _by(offset: Offset) -> float:
    """Return the smallest possible difference of a clock, in seconds."""
    return abs(offset.seconds) - offset.error


def _clock(offset: Offset, whose: str, workers: tuple[str, ...]) -> Finding:
    is_far = _by(offset) > FAR_SECONDS
    way = "ahead of" if offset.seconds > 0 else "behind"
    why = (
        f"leases end after {LEASE_SECONDS:.0f} s and are renewed every {RENEW_SECONDS:.0f} s: "
        f"drivers whose clocks differ by {TOLERATED:.0f} s train the same steps twice"
        if is_far
        else "times in logs mislead"
    )
    return Finding(
        group=MACHINES.name,
        check="clock",
        status=Status.PROBLEM if is_far else Status.WARNING,
        found=f"{whose} is {abs(offset.seconds):.1f} s {way} the driver's; {why}",
        mend="synchronise the clocks of all hosts (NTP, chrony)",
        workers=workers,
    )


def _looked(facts: Facts) -> Iterator[tuple[str, Look, Role]]:
    for worker in facts.workers:
        if worker.look is not None and worker.role is not None:
            yield worker.address, worker.look, worker.role


def _by_host(facts: Facts) -> dict[str, list[tuple[str, Look, Role]]]:
    hosts: dict[str, list[tuple[str, Look, Role]]] = defaultdict(list)
    for worker in _looked(facts):
        hosts[worker[1].host].append(worker)
    return hosts


def _listed(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'GPU')} ({names[0]})"
