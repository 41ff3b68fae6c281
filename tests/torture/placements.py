"""The rules for the workers that a stage is given to, in a book of the simulation's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from dasktune.graph.devices import devices_at
from dasktune.graph.events import (
    Event,
    Granted,
    Paused,
    Progress,
    RunStage,
    Saved,
    StagesHeld,
    Started,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkersJoined,
)
from tests.torture.fleet import MODEL, Fleet

SAMPLES = 3
"""Events of one stage, at least, before one stage more is tried on a device."""

Check = Callable[[bool, str], None]


class Placements:
    """Which workers a study may use, and which stages have them.

    Parameters
    ----------
    fleet
        What its workers have, and what its trials need.
    check
        Raises an error if something does not hold.
    """

    def __init__(self, fleet: Fleet, check: Check) -> None:
        self._fleet = fleet
        self._check = check
        self._joined: dict[str, WorkerJoined] = {}
        self._paused: frozenset[str] = frozenset()
        self._lent: frozenset[str] | None = None
        self._open: dict[str, RunStage] = {}
        self._measured = 0
        self._held = "none"
        self._last_key: dict[str, str] = {}

    def expect(self, event: Event) -> None:
        """Note what the dispatcher is about to be told of workers."""
        match event:
            case WorkerJoined():
                self._joined[event.worker] = event
            case WorkersJoined():
                self._joined.update((each.worker, each) for each in event.workers)
            case WorkerGone():
                self._joined.pop(event.worker, None)
            case Paused():
                self._paused = event.workers
            case StagesHeld():
                self._held = event.which
            case Granted():
                self._lent = event.workers
            case Started() | Progress() | Saved() | TrainingEnded():
                self._measured += 1
            case _:
                pass

    def dismiss(self) -> None:
        """Forget all workers."""
        self._joined.clear()
        self._paused, self._lent, self._held = frozenset(), None, "none"
        self._last_key.clear()

    def close(self, attempt: str) -> None:
        """Note that a stage has left its workers."""
        self._open.pop(attempt, None)

    def launched(self, order: RunStage) -> None:
        """Check that a stage may have the workers that it is given."""
        for worker in order.workers:
            self._check(worker in self._joined, f"{order} goes to a worker that is gone")
            self._check(worker not in self._paused, f"{order} goes to a worker that is paused")
            may_use = self._lent is None or worker in self._lent
            self._check(may_use, f"{order} goes to a worker of another study")
            stands_in = self._lent is None or worker == self._stand_in(worker)
            self._check(stands_in, f"{order} goes to a device that another study may have")
        start = order.node.chain_at(order.start).key
        is_next = order.after is not None or self._last_key.get(order.worker) == start
        loads = order.start > 0 and not is_next
        self._check(self._held == "none" or not loads, f"{order} loads a state before the check")
        self._last_key[order.worker] = order.node.key_at(order.stop)
        joined = [self._joined[worker] for worker in order.workers]
        self._check_needs(order, joined)
        self._check_together(order, joined)
        self._open[order.attempt] = order
        if joined[0].device:
            self._check_device(order, joined[0].device)

    def _stand_in(self, worker: str) -> str:
        """Return the worker that stands for the device of a worker."""
        device = self._joined[worker].device
        sharers = (name for name, each in self._joined.items() if device and each.device == device)
        return min(sharers, default=worker)

    def _check_needs(self, order: RunStage, joined: Iterable[WorkerJoined]) -> None:
        """Check that the workers have what the trials of a stage need."""
        node = order.node
        wanted = [self._fleet.needs_of({MODEL: node.sequences[MODEL](0)})] if self._needs else []
        for each in joined:
            fits = all(needs.fits(each.offer) for needs in wanted)
            self._check(fits, f"{order} goes to {each}, which has not what it needs")
            if "numeric" in self._fleet.features and not node.is_alone:
                bound = node.numerics
                self._check(bound == each.numerics, f"{order} of {bound} goes to {each}")

    @property
    def _needs(self) -> bool:
        return self._fleet.has_needs

    def _check_together(self, order: RunStage, joined: list[WorkerJoined]) -> None:
        """Check that a stage has as many workers as its key names, and has them to itself."""
        count = devices_at(order.node.sequences, order.node.start)
        self._check(len(joined) == count, f"{order} has {len(joined)} workers, it takes {count}")
        self._check(len({each.kind for each in joined}) == 1, f"{order} has unlike workers")
        gpus = [each.gpu for each in joined if each.gpu]
        self._check(len(gpus) == len({*gpus}) or count == 1, f"{order} has two workers on one GPU")
        chained = self._chain_of(order)
        for other in self._open.values():
            both = {*order.workers} & {*other.workers}
            # A worker may have a second stage of its own, for later.
            taken = both & {*order.lenders, *other.lenders}
            if other.attempt not in chained:
                self._check(not taken, f"{order} and {other} have {taken}")

    def _chain_of(self, order: RunStage) -> set[str]:
        """Return the open stages that a stage carries on."""
        chained, after = set(), order.after
        while after is not None and after in self._open:
            chained.add(after)
            after = self._open[after].after
        return chained

    def _check_device(self, order: RunStage, device: str) -> None:
        """Check that no more stages share a device than measurements may have shown to pay."""
        busy = {
            worker
            for worker in chain.from_iterable(each.workers for each in self._open.values())
            if worker in self._joined and self._joined[worker].device == device
        }
        most = 1 + self._measured // SAMPLES
        self._check(len(busy) <= most, f"{order}: {len(busy)} stages share {device}, not {most}")
