"""The policy of devices that several workers share: how many of their stages run together.

A stage begins beside others on a device if its model pays there, see `dasktune.graph.packing`, and
if the memory of the device has room. All follows from events and their times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dasktune.graph.attempts import Attempt, Slot
from dasktune.graph.events import AuditsRun, Event, TrainingEnded, WorkerJoined
from dasktune.graph.kept_speeds import KeptFactor, KeptMeasurements, Model
from dasktune.graph.packing import FactorChange, PackedModel, PackingFactor, values_of
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node
from dasktune.graph.policy import Policy
from dasktune.types import Step

SHORTEST_SAMPLE = 1.0
"""Seconds of the shortest measurement that does not end with its stage."""

MEMORY_SHARE = 0.9
"""Share of a device's memory that stages may fill; the rest is for what is not measured."""

MOST_PASSED = 8
"""Stages that may join others on a device before one that must wait until it is empty."""

MOST_PACKED = 50
"""Pairs of model and class that people are shown."""

_STEADY = 0.1
"""A mean number of stages together counts as the whole number that is as near as this."""

Stage = tuple[Node, str]
"""The node of a stage, or of an audit, and the class that trains it."""


@dataclass(slots=True)
class _Device:
    """A device: the memory of it, its workers, and the stages and audits that run there.

    A worker has one of them at a time: an audit waits for a stage that runs, and the other way
    round. ``load`` is the time integral of the number of stages up to ``at``; ``passed`` counts
    those that were given to it out of turn since one worker had it alone.
    """

    nbytes: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    """The bytes that each worker has used, by worker; kept by its process."""
    running: dict[str, Attempt] = field(default_factory=dict)
    audits: dict[str, Stage] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    """By worker: the largest number of stages that ran on the device during its own."""
    load: float = 0.0
    at: float = 0.0
    passed: int = 0

    @property
    def users(self) -> int:
        """The number of its workers that have a stage or an audit."""
        return len(self.running.keys() | self.audits.keys())

    def beside(self, worker: str) -> dict[str, Stage]:
        """Return the stages and audits of all other workers, by worker."""
        stages = {other: (each.node, each.kind) for other, each in self.running.items()}
        return {other: stage for other, stage in (self.audits | stages).items() if other != worker}

    def load_at(self, now: float) -> float:
        return self.load + self.users * (now - self.at)

    def note_company(self) -> None:
        """Note beside how many each stage has run."""
        for worker in self.running:
            self.most[worker] = max(self.most.get(worker, 0), self.users)

    def advance(self, now: float) -> None:
        self.load, self.at = self.load_at(now), now


@dataclass(slots=True)
class _Mark:
    """Where a measurement of an attempt begins."""

    step: Step
    at: float
    load: float


class SharedDevices(Policy):
    """Lets stages run together on a device where that pays, and its memory has room.

    Attributes
    ----------
    changes
        What was learned so far, in order.
    """

    prefers = True

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.changes: list[FactorChange] = []
        self._is_shared = False
        self._model_of = placing.speeds.model_of
        self._devices: dict[str, _Device] = {}
        self._device_of: dict[str, _Device] = {}
        self._factors: dict[tuple[Model, str], PackingFactor] = {}
        self._peaks: dict[tuple[Model, str], int] = {}
        self._trying: dict[tuple[Model, str], _Device] = {}
        self._marks: dict[str, _Mark] = {}
        self._alone: set[Node] = set()

    @property
    def is_open(self) -> bool:
        """Whether a device is shared by several workers."""
        return self._is_shared

    # ------------------------------------------------------------------- what happens

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Add a worker of a device, which has so many bytes of memory."""
        if event.device:
            shared = self._devices.setdefault(event.device, _Device())
            shared.nbytes = max(shared.nbytes, event.device_bytes)
            shared.workers[slot.worker] = 0
            self._device_of[slot.worker] = shared
            self._is_shared = self._is_shared or len(shared.workers) > 1

    def worker_gone(self, worker: str) -> None:
        """Remove a worker that is gone."""
        device = self._device_of.pop(worker, None)
        if device is not None:
            device.advance(self.placing.now)
            del device.workers[worker]
            for each in (device.running, device.audits, device.most):
                each.pop(worker, None)
            self._is_shared = any(len(each.workers) > 1 for each in self._devices.values())

    def cleared(self) -> None:
        """Forget all workers; what was learned stays."""
        self._devices.clear()
        self._device_of.clear()
        self._trying.clear()
        self._marks.clear()
        self._is_shared = False

    def received(self, event: Event) -> None:
        """Note the audits under way: each counts as a stage of its device."""
        if not isinstance(event, AuditsRun):
            return
        slots, nodes = self.placing.slots, event.nodes
        audits = {each: (nodes[each], slots[each].kind) for each in nodes if each in slots}
        for device in self._devices.values():
            here = {worker: audits[worker] for worker in device.workers if worker in audits}
            if here != device.audits:
                device.advance(self.placing.now)
                device.audits = here
                device.note_company()

    def launching(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> None:
        """Count a stage that goes before one that waits until the device is empty."""
        if self.company(slot.worker) and not self._is_in_turn(node, slot, after, now):
            self._device_of[slot.worker].passed += 1

    def entered(self, attempt: Attempt) -> None:
        """Note that a worker begins an attempt, or goes on with it after another."""
        device = self._device_of.get(attempt.worker)
        if device is None or device.running.get(attempt.worker) is attempt:
            return
        device.advance(self.placing.now)
        if not self.company(attempt.worker):
            device.passed = 0
        device.running[attempt.worker] = attempt
        device.most[attempt.worker] = 0
        device.note_company()
        pair = self._model_of(attempt.node), attempt.kind
        factor = self._factors.setdefault(pair, PackingFactor())
        if device.users > factor.kept:
            self._trying[pair] = device

    def lender_added(self, lender: str, attempt: Attempt) -> None:
        """Note that a worker lends its device, which nobody else uses, to an attempt."""
        device = self._device_of.get(lender)
        if device is not None:
            device.advance(self.placing.now)
            device.running[lender], device.most[lender] = attempt, 1

    def freed(self, worker: str, attempt: Attempt) -> None:
        """Note that a worker uses its device no more."""
        device = self._device_of.get(worker)
        if device is not None and worker in device.running:
            device.advance(self.placing.now)
            del device.running[worker], device.most[worker]
        if worker == attempt.worker:
            self._marks.pop(attempt.id, None)

    def started(self, attempt: Attempt) -> None:
        """Begin to measure an attempt."""
        self._measure(attempt, attempt.start)

    def progressed(self, attempt: Attempt, step: Step) -> None:
        """Measure an attempt, which has come to a step."""
        self._measure(attempt, step)

    def ended(self, attempt: Attempt, event: TrainingEnded) -> None:
        """Measure an attempt that has ended, and the most memory that its process has held."""
        device = self._device_of.get(attempt.worker)
        if device is None:
            return
        self._measure(attempt, event.step, is_end=True)
        self._alone.discard(attempt.leaf)
        if event.peak_bytes:
            pair = self._model_of(attempt.leaf), attempt.kind
            device.workers[attempt.worker] = event.peak_bytes
            self._peaks[pair] = max(event.peak_bytes, self._peaks.get(pair, 0))

    def outgrew(self, attempt: Attempt, node: Node, *, is_sure: bool) -> bool:
        """Note that memory was not enough for an attempt; return whether others ran beside it.

        If so, that says nothing of its trials: the stage is repeated alone, and one stage less
        of its model runs together from now on.
        """
        device = self._device_of.get(attempt.worker)
        together = 1 if device is None else device.most.get(attempt.worker, 1)
        if together < 2:
            return False
        with self._factor_of(attempt) as factor:
            (factor.outgrew if is_sure else factor.doubted)(together)
        self._alone.add(node)
        return True

    # --------------------------------------------------------------- what it is asked

    def stand_in(self, worker: str) -> str:
        """Return the worker that stands for the device of a worker, where each counts once."""
        device = self._device_of.get(worker)
        return worker if device is None else min(device.workers)

    def is_extra(self, worker: str) -> bool:
        """Whether another worker stands for the device of a worker."""
        return self.stand_in(worker) != worker

    def may_join(self, worker: str) -> bool:
        """Whether a worker stands for its device: of each device one worker may train."""
        return not self.is_extra(worker)

    def company(self, worker: str) -> int:
        """Return how many other workers of the same device have a stage or an audit."""
        device = self._device_of.get(worker)
        if device is None:
            return 0
        return device.users - (worker in device.running or worker in device.audits)

    def keeps_in_place(self) -> bool:
        """Whether running stages stay: what they would leave is no whole device."""
        return True

    def with_room(self, workers: Collection[str]) -> Collection[str]:
        """Return the workers whose devices have room for a stage like those that run there."""
        return [worker for worker in workers if self._has_room(worker)]

    def count_startable(self, workers: Collection[str]) -> int:
        """Return how many stages idle workers may begin in addition to those that are ready."""
        free, joining = set[int | str](), set[int]()
        for worker in workers:
            device = self._device_of.get(worker)
            if device is None:
                free.add(worker)
            elif not device.beside(worker):
                free.add(id(device))
            elif self._has_room(worker):
                joining.add(id(device))
        counts = self.placing.frontier.ready_by_needs(len(workers))
        ready = sum(n for wanted, n in counts.items() if self.placing.may_meet(wanted, workers))
        return len(free) + max(0, len(joining) - min(ready, len(workers)))

    def may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a worker may run a stage beside those that run on its device."""
        device = self._device_of.get(slot.worker)
        return device is None or self._may_run(node, slot.worker, slot.kind, device)

    def preferred(self, slots: list[Slot]) -> list[Slot]:
        """Return the slots beside the fewest others, first those that hold memory already.

        This keeps further processes from taking memory.
        """
        slots = sorted(slots, key=lambda slot: self._rank(slot.worker))
        least = self.company(slots[0].worker)
        return [slot for slot in slots if self.company(slot.worker) == least]

    # ----------------------------------------------------------------- what is learned

    @property
    def packed(self) -> list[PackedModel]:
        """The numbers that were measured, those of most stages first: at most `MOST_PACKED`."""
        known = [
            PackedModel(model=values_of(model), kind=kind, together=each.kept, gain=each.gain)
            for (model, kind), each in self._factors.items()
            if each.gain is not None
        ]
        known.sort(key=lambda each: (-each.together, each.kind, each.model))
        return known[:MOST_PACKED]

    def recalled(self, kept: KeptMeasurements) -> None:
        """Forget what was learned, and begin with what earlier runs have learned."""
        self._factors.clear()
        self._peaks.clear()
        for each in kept.factors:
            pair = each.model, each.kind
            self._factors[pair] = PackingFactor.recall(each)
            if each.nbytes:
                self._peaks[pair] = each.nbytes

    def learned(self) -> list[KeptFactor]:
        """The factors of which this run has learned something, for later runs."""
        factors = (
            factor.keep(*pair, self._peaks.get(pair, 0)) for pair, factor in self._factors.items()
        )
        return [factor for factor in factors if factor is not None]

    # ----------------------------------------------------------------------- in detail

    def _is_in_turn(self, node: Node, slot: Slot, after: Attempt | None, now: float) -> bool:
        """Whether a stage would be the next one if none had to run alone on its device."""
        with self._ignored():
            first = self.placing.other(slot, now)
        if first is None or first is node:
            return True
        return after is not None and not self.placing.frontier.goes_first(first, node)

    @contextmanager
    def _ignored(self) -> Iterator[None]:
        """Decide in this block as if no device was shared."""
        is_shared, self._is_shared = self._is_shared, False
        self.placing.reopen()
        yield
        self._is_shared = is_shared
        self.placing.reopen()

    def _rank(self, worker: str) -> tuple[int, int]:
        device = self._device_of.get(worker)
        return self.company(worker), 0 if device is None else -device.workers[worker]

    def _may_run(self, node: Node, worker: str, kind: str, device: _Device) -> bool:
        others = device.beside(worker)
        if not others:
            return True
        if any(other in others and on.lenders for other, on in device.running.items()):
            return False  # its devices train in step: all would wait for this one
        together = len(others) + 1
        is_late = device.passed >= MOST_PASSED
        if is_late or node in self._alone or not self._allows(node, kind, device, together):
            return False
        return all(
            other not in self._alone and self._allows(other, kind, device, together)
            for other, _ in others.values()
        ) and self._fits_beside(node, worker, kind, device)

    def _has_room(self, worker: str) -> bool:
        """Whether one more stage like those that run on a device may run there, on this worker."""
        device = self._device_of.get(worker)
        if device is None or worker in device.running:
            return True
        stages = device.beside(worker).values()
        may_run = (self._may_run(node, worker, kind, device) for node, kind in stages)
        return not stages or any(may_run)

    def _allows(self, node: Node, kind: str, device: _Device, together: int) -> bool:
        """Whether the model of a node may run with so many in all."""
        pair = self._model_of(node), kind
        factor = self._factors.get(pair)
        if factor is None or together > factor.tried:
            return False
        if together <= factor.kept:
            return True
        trying = self._trying.get(pair)
        return trying is None or trying is device or trying.users < together

    def _fits_beside(self, node: Node, worker: str, kind: str, device: _Device) -> bool:
        """Whether the memory of a device has room for one more stage; unknown memory has none."""
        peak = self._peaks.get((self._model_of(node), kind), 0)
        if not peak or not device.nbytes:
            return False
        used, others = max(peak, device.workers[worker]), device.beside(worker)
        for other, nbytes in device.workers.items():
            if other == worker:
                continue
            if other not in others:
                used += nbytes
                continue
            known = self._peaks.get((self._model_of(others[other][0]), kind), 0)
            if not known:
                return False
            used += max(known, nbytes)
        return used <= MEMORY_SHARE * device.nbytes

    def _measure(self, attempt: Attempt, step: Step, *, is_end: bool = False) -> None:
        """Measure an attempt, which begins, has come to a step, or has ended there."""
        device = self._device_of.get(attempt.worker)
        if device is None:
            return
        load, mark = device.load_at(self.placing.now), self._marks.get(attempt.id)
        seconds = 0.0 if mark is None else self.placing.now - mark.at
        if mark is not None and seconds < SHORTEST_SAMPLE and not is_end:
            return
        if mark is not None and step > mark.step and seconds > 0:
            mean = (load - mark.load) / seconds
            if abs(mean - round(mean)) <= _STEADY and round(mean) >= 1:
                steps = step - mark.step
                with self._factor_of(attempt) as factor:
                    factor.observe(round(mean), steps=steps, seconds=seconds)
        if is_end:
            self._marks.pop(attempt.id, None)
        else:
            self._marks[attempt.id] = _Mark(step=step, at=self.placing.now, load=load)

    @contextmanager
    def _factor_of(self, attempt: Attempt) -> Iterator[PackingFactor]:
        """Yield the factor that an attempt teaches; note whether it has changed."""
        model, kind = self._model_of(attempt.leaf), attempt.kind
        factor = self._factors.setdefault((model, kind), PackingFactor())
        before = factor.kept
        yield factor
        if factor.kept != before:
            self.changes.append(FactorChange(model=model, kind=kind, together=factor.kept))
