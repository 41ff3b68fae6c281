"""What was seen of clocks, cores, memory and GPUs means. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dasktune.doctor.facts import Facts, Look, Offset, Role, WorkerFacts
from dasktune.doctor.findings import Finding, Group, Status, counted
from dasktune.driver.leases import LEASE_SECONDS, RENEW_SECONDS

GROUP = Group("machines")

AHEAD_SECONDS, FAR_SECONDS = 1.0, 30.0
"""By how much clocks may differ until logs mislead, and until leases do."""

TOLERATED = LEASE_SECONDS - RENEW_SECONDS
"""A lease that has just not been renewed yet is over for a clock that is so far ahead."""

LITTLE_MEMORY = 2**30
"""Bytes that each worker should have for itself."""

FULL_GPU = 0.1
"""Part of a GPU's memory that must be free."""


def clocks(facts: Facts) -> Iterator[Finding]:
    """Say whose clock differs from the driver's."""
    known = [(one.address, one.offset) for one in facts.workers if one.offset is not None]
    wrong = {one for one, offset in known if _by(offset) > AHEAD_SECONDS}
    for one, offset in known:
        if one in wrong:
            yield _clock(offset, "the clock there", (one,))
    if facts.store.offset is not None and _by(facts.store.offset) > AHEAD_SECONDS:
        yield _clock(facts.store.offset, "the store's clock", ())
    right = [(one, offset) for one, offset in known if one not in wrong]
    if right:
        most = max(abs(offset.seconds) + offset.error for _, offset in right)
        yield GROUP.ok(
            "clock", f"within {most * 1e3:.0f} ms of the driver's", [one for one, _ in right]
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """Say where there is little memory, or Dask ends workers that use much."""
    good = []
    for host, workers in _by_host(facts).items():
        free = min(look.memory_free for _, look, _ in workers)
        share = free / len(workers)
        addresses = [address for address, _, _ in workers]
        if share < LITTLE_MEMORY:
            yield GROUP.warning(
                "memory",
                f"{host} has {free / 2**30:.1f} GiB left for {counted(len(workers), 'worker')}",
                "start fewer workers there, or end what else uses its memory",
                addresses,
            )
        else:
            good += addresses
    for address, _, role in _looked(facts):
        if role.memory_limit:
            yield GROUP.warning(
                "memory",
                f"Dask ends the worker if it uses more than {role.memory_limit / 2**30:.1f} GiB",
                "start workers with --memory-limit 0, or be sure that the trainer needs less",
                [address],
            )
    if good:
        yield GROUP.ok("memory", f"at least {LITTLE_MEMORY / 2**30:.0f} GiB left for each", good)


def cores(facts: Facts) -> Iterator[Finding]:
    """Say where workers, or their threads, are more than the cores that they share."""
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[str, Look]]] = defaultdict(list)
    for address, look, _ in _looked(facts):
        groups[look.host, look.cores].append((address, look))
    for (host, numbers), workers in groups.items():
        addresses = [address for address, _ in workers]
        threads = max(_threads(facts, look, len(numbers)) for _, look in workers)
        told = f"{counted(len(workers), 'worker')} on {counted(len(numbers), 'core')} of {host}"
        if len(workers) > len(numbers):
            mend = f"start at most {counted(len(numbers), 'worker')} there"
            yield GROUP.warning("cores", told, mend, addresses)
        elif len(workers) * threads > len(numbers):
            mend = f"start them with OMP_NUM_THREADS={len(numbers) // len(workers)}"
            found = f"{told}, each with {counted(threads, 'thread')}"
            yield GROUP.warning("cores", found, mend, addresses)
        else:
            found = f"{told}, each with {counted(threads, 'thread')}"
            yield GROUP.ok("cores", found, addresses)


def gpus(facts: Facts) -> Iterator[Finding]:
    """Say which GPUs workers have, and where one cannot be used or is nobody's."""
    good: dict[str, list[str]] = defaultdict(list)
    shared = dict(_sharing(facts))
    for worker in facts.workers:
        if worker.look is None or worker.role is None:
            continue
        found = list(_gpu_findings(worker, worker.look, worker.role))
        devices = () if worker.torch is None else worker.torch.devices
        if worker.address in shared:
            found.append(shared[worker.address])
        yield from found
        if not found and devices:
            memory = f"{devices[0].nbytes / 2**30:.0f} GiB"
            cuda = "" if worker.torch is None else f", CUDA {worker.torch.cuda}"
            good[f"{counted(len(devices), 'GPU')}, {devices[0].name}, {memory}{cuda}"].append(
                worker.address
            )
    for words, addresses in good.items():
        yield GROUP.ok("GPU", words, addresses)
    yield from _needs_findings(facts)


def _gpu_findings(worker: WorkerFacts, look: Look, role: Role) -> Iterator[Finding]:
    """Say what is wrong with the GPUs of one worker."""
    claims, torch, own = role.resources.get("GPU", 0) > 0, worker.torch, [worker.address]
    devices = () if torch is None else torch.devices
    if claims and torch is not None and not devices:
        reason = torch.problem or "CUDA_VISIBLE_DEVICES, driver or torch say so"
        found = f"the resource GPU is claimed, and torch sees none ({reason})"
        yield GROUP.problem(
            "GPU", found, "start the worker where torch sees a GPU, or without", own
        )
    elif torch is not None and torch.problem:
        yield GROUP.problem("GPU", torch.problem, "mend the driver of the GPU, or torch", own)
    if torch is not None and torch.cuda is None and look.gpus:
        found = f"{_listed(look.gpus)} there, and torch is built without CUDA"
        mend = "install a build of torch with CUDA on the workers"
        yield GROUP.warning("GPU", found, mend, own)
    if devices and not claims:
        yield GROUP.warning(
            "GPU",
            f"{devices[0].name} is seen there, and would not be used",
            "start the worker with --resources GPU=1, or dasktune with --gpus-per-worker 1",
            own,
        )
    if devices and claims and devices[0].free < FULL_GPU * devices[0].nbytes:
        found = f"{devices[0].name} has {devices[0].free / 2**30:.1f} GiB left"
        yield GROUP.warning("GPU", found, "end what else uses its memory", own)


def _sharing(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield the workers that share a GPU and do not say so."""
    on: dict[tuple[str, str], list[WorkerFacts]] = defaultdict(list)
    for worker in facts.workers:
        if worker.torch is not None and worker.torch.devices and worker.look is not None:
            on[worker.look.host, worker.torch.devices[0].uuid].append(worker)
    for (host, _), workers in on.items():
        claims = [_claim(one) for one in workers]
        if len(workers) < 2 or not any(claims) or sum(claims) <= 1.001:
            continue
        found = f"{counted(len(workers), 'worker')} on one GPU of {host}, claimed {sum(claims):g}x"
        mend = (
            "give each its own with CUDA_VISIBLE_DEVICES (--gpus-per-worker 1), or a part of one "
            "(--gpus-per-worker 0.5)"
        )
        for one in workers:
            yield one.address, GROUP.warning("GPU", found, mend, [one.address])


def _needs_findings(facts: Facts) -> Iterator[Finding]:
    """Say if no worker has what stages need."""
    needs = facts.trainer.needs
    roles = [role for _, _, role in _looked(facts)]
    if not needs or not roles:
        return
    able = [
        address
        for address, _, role in _looked(facts)
        if all(role.resources.get(name, 0) >= amount for name, amount in needs.items())
    ]
    told = ", ".join(f"{name}={amount:g}" for name, amount in needs.items())
    if able:
        yield GROUP.ok("resources", f"{told}, as stages need", able)
    else:
        mend = f"start workers with --resources {told}"
        yield GROUP.problem("resources", f"stages need {told}, and no worker has it", mend, [])


def _claim(worker: WorkerFacts) -> float:
    return 0.0 if worker.role is None else worker.role.resources.get("GPU", 0.0)


def _threads(facts: Facts, look: Look, number: int) -> int:
    """Return with how many threads a stage computes: torch and OpenMP take every core else."""
    if facts.trainer.threads is not None:
        return facts.trainer.threads
    first = look.threads.partition(",")[0]
    return int(first) if first.isdecimal() else number


def _by(offset: Offset) -> float:
    """Return by how much a clock differs at the least."""
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
        group=GROUP.name,
        check="clock",
        status=Status.PROBLEM if is_far else Status.WARNING,
        found=f"{whose} is {abs(offset.seconds):.1f} s {way} the driver's; {why}",
        mend="synchronise the clocks of all hosts (NTP, chrony)",
        workers=workers,
    )


def _looked(facts: Facts) -> Iterator[tuple[str, Look, Role]]:
    for one in facts.workers:
        if one.look is not None and one.role is not None:
            yield one.address, one.look, one.role


def _by_host(facts: Facts) -> dict[str, list[tuple[str, Look, Role]]]:
    found: dict[str, list[tuple[str, Look, Role]]] = defaultdict(list)
    for one in _looked(facts):
        found[one[1].host].append(one)
    return found


def _listed(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'GPU')} ({names[0]})"
