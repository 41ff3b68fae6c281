"""Findings on storage, disks, clocks, memory, cores and GPUs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dasktune._engine.timeouts import LEASE_SECONDS, RENEW_SECONDS
from dasktune._words import counted
from dasktune.doctor.facts import Facts, Look, Offset, StoreUse, Torch, WorkerFacts
from dasktune.doctor.findings import Finding, ok, problem, warning
from dasktune.needs import Offer, unmet_text

SLOW_BYTES = 5e6
"""Bytes per second; with a slower store training waits for checkpoints."""

SLOW_COMMIT = 0.5
"""Limit for a transaction, in seconds; each handful of reports needs one."""

LITTLE, TOO_LITTLE = 2 * 2**30, 100 * 2**20
"""Free bytes of a disk that is nearly full, and of a full one."""

AHEAD_SECONDS, FAR_SECONDS = 1.0, 30.0
"""Differences of clocks from which on logs mislead, and leases fail."""

TOLERATED = LEASE_SECONDS - RENEW_SECONDS
"""A clock that is so far ahead sees a lease as expired just before its renewal."""

LITTLE_MEMORY = 2**30
"""Bytes that each worker should have."""

FULL_GPU = 0.1
"""Share of a GPU's memory that must be free."""


def store(facts: Facts) -> Iterator[Finding]:
    """Find processes that cannot use the store or see another one, and a slow store."""
    url, driver = facts.store.url, facts.store.use
    if driver.failed:
        yield _failed_use(url, driver, "the driver")
    apart = [each for each, look in facts.looks if look.process != facts.driver.process]
    if url.startswith("memory://") and apart:
        words = f"{url} is seen by one process only, and workers are others"
        mend = "use a folder or a bucket as storage, or LocalCluster(processes=False)"
        yield problem("store", words, mend, *apart)
    fine: list[tuple[WorkerFacts, StoreUse]] = []
    for worker in facts.workers:
        use = worker.use
        if use is None:
            continue
        if use.failed:
            yield _failed_use(url, use, "a worker", worker)
        elif not (use.sees and use.is_seen):
            mend = (
                "the storage must be one place that the driver and all workers see: a folder of a "
                "shared file system, or a bucket such as s3://bucket/path"
            )
            yield problem("store", f"{url} is another place there than here", mend, worker)
        elif use.overwrites:
            words = f"{url} lets two processes create the same file"
            mend = "use another store: this one cannot tell who was first"
            yield problem("store", words, mend, worker)
        else:
            fine.append((worker, use))
    if fine or not (facts.workers or driver.failed):
        workers = (worker for worker, _ in fine)
        yield ok("store", f"{url}: written, read and removed", *workers)
    if fine:
        yield _speed(fine)


def _failed_use(url: str, use: StoreUse, who: str, *workers: WorkerFacts) -> Finding:
    words = f"{who} cannot {use.failed} in {url}: {use.reason}"
    mend = "give it access to the storage: folder and permissions, or credentials and bucket"
    return problem("store", words, mend, *workers)


def _speed(uses: Sequence[tuple[WorkerFacts, StoreUse]]) -> Finding:
    write, read = min(use.write for _, use in uses), min(use.read for _, use in uses)
    words = f"each worker writes {write / 1e6:.3g} MB/s and reads {read / 1e6:.3g} MB/s, or more"
    workers = [worker for worker, _ in uses]
    if min(write, read) >= SLOW_BYTES:
        return ok("speed", words, *workers)
    mend = "use a store that is nearer to the workers, or save less often (checkpoint_every)"
    return warning("speed", words, mend, *workers)


def database(facts: Facts) -> Iterator[Finding]:
    """Find a database that the driver cannot use, or a slow one."""
    known = facts.database
    if known.problem:
        mend = "make it reachable and writable for the driver, or name another with database="
        yield problem("database", known.problem, mend)
        return
    if known.network is not None:
        words = f"{known.name} is on a network file system ({known.network})"
        mend = "give a file on a local disk, database='/local/x.db', or PostgreSQL"
        yield warning("database", f"{words}, where SQLite's locks do not hold", mend)
    words = f"{known.name}: {known.seconds:.3f} s for a transaction"
    if known.seconds > SLOW_COMMIT:
        mend = "use a disk or server that is faster, or nearer to the driver"
        yield warning("database", words, mend)
    else:
        yield ok("database", words)


def disks(facts: Facts) -> Iterator[Finding]:
    """Find disks that are nearly full."""
    for worker, look in facts.looks:
        full = {folder: free for folder, free in look.free.items() if free < LITTLE}
        for folder, free in full.items():
            report = problem if free < TOO_LITTLE else warning
            mend = (
                "make room there, or let temporary files go elsewhere (TMPDIR, --local-directory)"
            )
            yield report("disk", f"{folder} has {_gib(free)} left", mend, worker)
        if not full:
            yield ok("disk", f"at least {_gib(LITTLE)} left for temporary files", worker)


def clocks(facts: Facts) -> Iterator[Finding]:
    """Find clocks that differ from the driver's."""
    most, right = 0.0, []
    for worker in facts.workers:
        if worker.offset is None:
            continue
        if worker.offset.least > AHEAD_SECONDS:
            yield _clock(worker.offset, "the clock there", worker)
        else:
            most = max(most, abs(worker.offset.seconds) + worker.offset.error)
            right.append(worker)
    if facts.store.offset is not None and facts.store.offset.least > AHEAD_SECONDS:
        yield _clock(facts.store.offset, "the store's clock")
    if right:
        yield ok("clock", f"within {most * 1e3:.0f} ms of the driver's", *right)


def _clock(offset: Offset, whose: str, *workers: WorkerFacts) -> Finding:
    way = "ahead of" if offset.seconds > 0 else "behind"
    words = f"{whose} is {abs(offset.seconds):.1f} s {way} the driver's"
    mend = "synchronise the clocks of all hosts (NTP, chrony)"
    if offset.least <= FAR_SECONDS:
        return warning("clock", f"{words}; times in logs mislead", mend, *workers)
    why = (
        f"leases end after {LEASE_SECONDS:.0f} s and are renewed every {RENEW_SECONDS:.0f} s: "
        f"drivers whose clocks differ by {TOLERATED:.0f} s train the same steps twice"
    )
    return problem("clock", f"{words}; {why}", mend, *workers)


def memory(facts: Facts) -> Iterator[Finding]:
    """Find hosts with little memory, and workers that Dask ends at a memory limit."""
    hosts: dict[str, list[tuple[WorkerFacts, Look]]] = defaultdict(list)
    for worker, look in facts.looks:
        hosts[look.host].append((worker, look))
        if look.memory_limit:
            words = f"Dask ends the worker if it uses more than {_gib(look.memory_limit)}"
            mend = "start workers with --memory-limit 0, or be sure that the trainer needs less"
            yield warning("memory", words, mend, worker)
    for host, there in hosts.items():
        workers = [worker for worker, _ in there]
        free = min(look.memory_free for _, look in there)
        if free < LITTLE_MEMORY * len(workers):
            words = f"{host} has {_gib(free)} left for {counted(len(workers), 'worker')}"
            mend = "start fewer workers there, or end what else uses its memory"
            yield warning("memory", words, mend, *workers)
        else:
            yield ok("memory", f"at least {_gib(LITTLE_MEMORY)} left for each", *workers)


def cores(facts: Facts) -> Iterator[Finding]:
    """Find hosts with more workers, or more threads, than cores."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[WorkerFacts, Look]]] = defaultdict(list)
    for worker, look in facts.looks:
        groups[look.host, look.cores].append((worker, look))
    for (host, numbers), there in groups.items():
        workers, number = [worker for worker, _ in there], len(numbers)
        threads = max(_threads(facts, look) for _, look in there)
        words = f"{counted(len(workers), 'worker')} on {counted(number, 'core')} of {host}"
        words += f", each with {counted(threads, 'thread')}"
        if len(workers) > number:
            mend = f"start at most {counted(number, 'worker')} there"
            yield warning("cores", words, mend, *workers)
        elif len(workers) * threads > number:
            mend = f"start them with OMP_NUM_THREADS={number // len(workers)}"
            yield warning("cores", words, mend, *workers)
        else:
            yield ok("cores", words, *workers)


def _threads(facts: Facts, look: Look) -> int:
    """Return the number of threads of a stage: by default, torch and OpenMP use every core."""
    if facts.trainer.threads is not None:
        return facts.trainer.threads
    first = look.threads.partition(",")[0]
    return int(first) if first.isdecimal() else len(look.cores)


def classes(facts: Facts) -> Iterator[Finding]:
    """Find the compute classes and tags of workers, and the devices that trials may share."""
    devices: dict[str, list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        if worker.kind is not None:
            tags = f"; tags {', '.join(worker.tags)}" if worker.tags else ""
            yield ok("class", f"{worker.kind}{tags}", worker)
        if worker.device:
            devices[worker.device].append(worker)
    for device, workers in devices.items():
        words = f"up to {counted(len(workers), 'trial')} at a time on {device}, by measurement"
        if any(worker.look and worker.look.resources.get("GPU") for worker in workers):
            words += "; MPS runs" if workers[0].has_mps else "; MPS does not run: they take turns"
        yield ok("packing", words, *workers)


def gpus(facts: Facts) -> Iterator[Finding]:
    """Find GPUs that cannot be used, stay unused or are shared without being declared."""
    shared = list(_shared(facts))
    sharers = {address for finding in shared for address in finding.workers}
    for worker, look in facts.looks:
        if worker.torch is None:
            continue
        problems = list(_gpu_problems(worker, look, worker.torch))
        yield from problems
        if worker.torch.devices and not problems and worker.address not in sharers:
            device, number = worker.torch.devices[0], counted(len(worker.torch.devices), "GPU")
            words = f"{number}, {device.name}, {_gib(device.nbytes)}, CUDA {worker.torch.cuda}"
            yield ok("GPU", words, worker)
    yield from shared


def _gpu_problems(worker: WorkerFacts, look: Look, torch: Torch) -> Iterator[Finding]:
    """Yield the problems with the GPUs of one worker."""
    claims, device = look.resources.get("GPU", 0) > 0, next(iter(torch.devices), None)
    if claims and device is None:
        reason = torch.problem or "CUDA_VISIBLE_DEVICES, driver or torch say so"
        words = f"the resource GPU is claimed, and torch sees none ({reason})"
        mend = "start the worker where torch sees a GPU, or without"
        yield problem("GPU", words, mend, worker)
    elif torch.problem:
        yield problem("GPU", torch.problem, "mend the driver of the GPU, or torch", worker)
    if torch.cuda is None and look.gpus:
        there = f"{counted(len(look.gpus), 'GPU')} ({look.gpus[0]})"
        mend = "install a build of torch with CUDA on the workers"
        yield warning("GPU", f"{there} there, and torch is built without CUDA", mend, worker)
    if device is None:
        return
    if not claims:
        words = f"{device.name} is seen there, and would not be used"
        mend = "start the worker with --resources GPU=1, or dasktune with --gpus-per-worker 1"
        yield warning("GPU", words, mend, worker)
    elif device.free < FULL_GPU * device.nbytes:
        words = f"{device.name} has {_gib(device.free)} left"
        yield warning("GPU", words, "end what else uses its memory", worker)


def _shared(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each GPU that workers share without declaring it."""
    on: dict[tuple[str, str], list[tuple[WorkerFacts, float]]] = defaultdict(list)
    for worker, look in facts.looks:
        # Of workers that share by measurement only as many train as the memory has room for.
        if worker.torch is not None and worker.torch.devices and not worker.device:
            claim = look.resources.get("GPU", 0.0)
            on[look.host, worker.torch.devices[0].uuid].append((worker, claim))
    for (host, _), there in on.items():
        claimed = sum(claim for _, claim in there)
        if len(there) > 1 and claimed > 1.001:
            words = f"{counted(len(there), 'worker')} on one GPU of {host}, claimed {claimed:g}x"
            mend = (
                "give each its own with CUDA_VISIBLE_DEVICES (--gpus-per-worker 1), or a part of "
                "one (--gpus-per-worker 0.5), or share it by measurement (--trials-per-gpu 2)"
            )
            yield warning("GPU", words, mend, *(worker for worker, _ in there))


def resources(facts: Facts) -> Iterator[Finding]:
    """Find needs of stages that no worker meets."""
    needs = facts.trainer.needs
    offers = [
        (worker, Offer.of(look.resources, worker.kind or "", worker.tags))
        for worker, look in facts.looks
    ]
    able = [worker for worker, offer in offers if needs.fits(offer)]
    if offers and not able:
        words = f"stages need {needs}; {unmet_text(needs, [offer for _, offer in offers])}"
        mend = "start workers that have it (dask worker --resources, DASKTUNE_TAGS)"
        yield problem("resources", words, mend)
    elif able and not needs.are_none:
        yield ok("resources", f"{needs}, as stages need", *able)


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.3g} GiB"
