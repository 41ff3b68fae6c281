"""Which stages run together on a device that several workers share: learned, never assumed.

Several small stages on one GPU may train more steps a second than one alone, or fewer. Each pair
of a model and a class begins at one stage alone. Once a few measurements are there, one more is
tried on one device, if its memory has room, and kept if the device then trains clearly more steps
a second. All follows from events and their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dasktune.graph.attempts import Attempt
from dasktune.graph.events import WorkerJoined
from dasktune.graph.kept_speeds import KeptFactor, Model
from dasktune.graph.plan import Node
from dasktune.types import Step

MARGIN = 0.05
"""One stage more must raise the steps a second of a device by more than this share."""

LEAST_SAMPLES = 3
"""Measurements of a number of stages together before it is judged."""

MOST_SAMPLES = 30
"""Measurements by which one stage more must have shown its worth: what a trial may cost."""

SHORTEST_SAMPLE = 1.0
"""Seconds of the shortest measurement that does not end with its stage."""

MEMORY_SHARE = 0.9
"""Share of a device's memory that stages may fill; the rest is for what is not measured."""

MOST_PASSED = 8
"""Stages that may join others on a device before one that must wait until it is empty."""

MOST_PACKED = 50
"""Pairs of model and class that people are shown."""

_MEMORY_SAMPLES = 40.0
_SPREAD = 0.1
"""Standard deviation of the logarithms of rates, before any was measured."""

_ERRORS = 3.0
"""Standard errors by which two numbers of stages must differ."""

_SPEED_CHANGE = math.log(1.5)
"""Change of the logarithm of a speed after which all is learned anew."""

_STEADY = 0.1
"""A mean number of stages together counts as the whole number that is as near as this."""


class Samples:
    """Logarithms of steps a second that were measured, of which the older fade."""

    __slots__ = ("count", "mean", "squares", "weight")

    def __init__(self) -> None:
        self.count, self.weight, self.mean, self.squares = 0, 0.0, 0.0, _SPREAD**2

    def add(self, rate: float) -> None:
        """Add steps a second."""
        fade = min(1.0, _MEMORY_SAMPLES / (self.weight + 1.0))
        apart = math.log(rate) - self.mean
        before = self.weight * fade
        self.count, self.weight = self.count + 1, before + 1.0
        self.mean += apart / self.weight
        self.squares = self.squares * fade + before / self.weight * apart**2

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return math.sqrt(self.squares) / self.weight


class PackingFactor:
    """The number of stages of one model that a device of one class runs together.

    One more is tried when the present number was measured, and kept if the steps a second of
    the device, ``number * rate of each``, rise by `MARGIN` beyond three standard errors. Otherwise
    the number stays, and the larger one is not tried again unless speeds change.

    Attributes
    ----------
    kept
        The number.
    most
        The largest number that may be tried: one less than did not pay.
    """

    def __init__(self) -> None:
        self.kept = 1
        self.most = math.inf
        self._fits = math.inf
        self._safe = math.inf
        self._doubts = 0
        self._wary = 0
        self._rates: dict[int, Samples] = {}
        self._settled: float | None = None
        self._has_learned = False

    @classmethod
    def recall(cls, kept: KeptFactor) -> PackingFactor:
        """Return a factor as earlier runs learned it; their rates weigh as one measurement each."""
        factor = cls()
        factor.kept = kept.together
        factor.most = math.inf if kept.most is None else kept.most
        factor._fits = math.inf if kept.fits is None else kept.fits
        for together, rate in kept.rates:
            factor._rates.setdefault(together, Samples()).add(rate)
        if kept.most is not None and kept.together in factor._rates:
            factor._settled = factor._rates[kept.together].mean
        return factor

    def keep(self, model: Model, kind: str, nbytes: int) -> KeptFactor | None:
        """Return the factor for later runs; None unless this run has measured something for it.

        A lost worker leaves a doubt for some measurements only, which is not kept.
        """
        if not self._has_learned:
            return None
        return KeptFactor(
            model=model,
            kind=kind,
            together=self.kept,
            most=None if self.most == math.inf else int(self.most),
            fits=None if self._fits == math.inf else int(self._fits),
            rates=tuple((each, math.exp(rates.mean)) for each, rates in self._rates.items()),
            nbytes=nbytes,
        )

    @property
    def fits(self) -> float:
        """The largest number that has neither run out of memory nor is in doubt."""
        return min(self._fits, self._safe) if self._wary else self._fits

    @property
    def tried(self) -> int:
        """The number that may run together on the device where one more is tried."""
        samples = self._rates.get(self.kept)
        is_known = samples is not None and samples.count >= LEAST_SAMPLES
        return self.kept + (is_known and self.kept < min(self.most, self.fits))

    @property
    def gain(self) -> float | None:
        """The steps a second of the device with the number, over those with 1, as measured."""
        kept, alone = self._rates.get(self.kept), self._rates.get(1)
        if kept is None or alone is None:
            return None
        return self.kept * math.exp(kept.mean - alone.mean)

    def observe(self, together: int, *, steps: int, seconds: float) -> None:
        """Add a measurement of one of several stages that ran together."""
        self._has_learned = True
        self._wary = max(0, self._wary - 1)
        self._rates.setdefault(together, Samples()).add(steps / seconds)
        if self._has_changed():
            self.kept, self.most, self._settled = 1, math.inf, None
            self._rates.clear()
        elif self.tried > self.kept:
            self._judge()

    def outgrew(self, together: int) -> None:
        """Note that so many ran out of memory together."""
        self._has_learned = True
        self._fits = min(self._fits, max(1, together - 1))
        self._shrink()

    def doubted(self, together: int) -> None:
        """Note that a worker was lost while so many ran together: memory may be the reason.

        Workers are lost for other reasons, too. So the number is tried again after some more
        measurements, each time after twice as many.
        """
        self._safe, self._wary = max(1, together - 1), MOST_SAMPLES * 2**self._doubts
        self._doubts += 1
        self._shrink()

    def _shrink(self) -> None:
        """Keep no more than what fits."""
        if self.kept > self.fits:
            self.kept, self._settled = int(self.fits), None

    def _judge(self) -> None:
        """Keep one more, or give it up, once the measurements tell them apart."""
        kept, more = self._rates[self.kept], self._rates.get(self.kept + 1)
        if more is None or more.count < LEAST_SAMPLES:
            return
        gain = math.log((self.kept + 1) / self.kept) + more.mean - kept.mean - math.log1p(MARGIN)
        error = _ERRORS * math.hypot(kept.error, more.error)
        if gain > error:
            self.kept += 1
        elif gain < -error or more.count >= MOST_SAMPLES:
            self.most = self.kept
            self._settled = kept.mean

    def _has_changed(self) -> bool:
        """Whether the speed is another one than when the number was settled."""
        if self._settled is None:
            return False
        return abs(self._rates[self.kept].mean - self._settled) > _SPEED_CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorChange:
    """Another number of stages of a model that run together on a device of a class.

    Parameters
    ----------
    model, kind
        The model and the class.
    together
        The number.
    """

    model: Model
    kind: str
    together: int

    def __str__(self) -> str:
        return _in_words(_values_of(self.model), self.kind, self.together)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """How many stages of a model run together on a device of a class, and the gain.

    Parameters
    ----------
    model
        The values of the model, in words.
    kind
        The class.
    together
        The number.
    gain
        The steps a second of the device with so many, over those with 1; None before it is known.
    """

    model: str
    kind: str
    together: int
    gain: float | None = None

    def __str__(self) -> str:
        text = _in_words(self.model, self.kind, self.together)
        is_told = self.gain is not None and self.together > 1
        return f"{text}: {self.gain:.2f} times the steps a second of 1" if is_told else text

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PackedModel:
        """Return the model of a document, which has the fields by name.

        Raises
        ------
        LookupError, TypeError, ValueError
            If the document is malformed.
        """
        gain = document["gain"]
        return cls(
            model=str(document["model"]),
            kind=str(document["kind"]),
            together=int(document["together"]),
            gain=None if gain is None else float(gain),
        )


def _values_of(model: Model) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in model)


def _in_words(values: str, kind: str, together: int) -> str:
    of_model = f" with {values}" if values else ""
    trials = "1 trial trains alone" if together == 1 else f"{together} trials train together"
    return f"{trials} on each {kind or 'device'}{of_model}"


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
    """The largest number of stages beside which that of each worker ran, itself included."""
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


def stand_ins(joined: Iterable[WorkerJoined]) -> list[str]:
    """Return one worker of each shared device, and each worker that shares none.

    Examples
    --------
    >>> sharers = [WorkerJoined(worker=worker, device="gpu0") for worker in ("b", "a")]
    >>> stand_ins([*sharers, WorkerJoined(worker="c")])
    ['a', 'c']
    """
    first: dict[tuple[str, str], str] = {}
    for event in sorted(joined, key=lambda event: event.worker):
        first.setdefault((event.device, "" if event.device else event.worker), event.worker)
    return [*first.values()]


class Packing:
    """The devices that several workers share, and what may run there together.

    Parameters
    ----------
    model_of
        Gives the model of a node.

    Attributes
    ----------
    is_open
        Whether a device is shared by several workers. Otherwise nothing here is of any effect.
    now
        The time of the event that is being handled.
    changes
        What was learned so far, in order.
    """

    def __init__(self, model_of: Callable[[Node], Model]) -> None:
        self.is_open = False
        self.now = 0.0
        self.changes: list[FactorChange] = []
        self._model_of = model_of
        self._devices: dict[str, _Device] = {}
        self._device_of: dict[str, _Device] = {}
        self._factors: dict[tuple[Model, str], PackingFactor] = {}
        self._peaks: dict[tuple[Model, str], int] = {}
        self._trying: dict[tuple[Model, str], _Device] = {}
        self._marks: dict[str, _Mark] = {}
        self._alone: set[Node] = set()

    # --------------------------------------------------------------------- workers

    def join(self, worker: str, device: str, nbytes: int) -> None:
        """Add a worker of a device, which has so many bytes of memory."""
        shared = self._devices.setdefault(device, _Device())
        shared.nbytes = max(shared.nbytes, nbytes)
        shared.workers[worker] = 0
        self._device_of[worker] = shared
        self.is_open = self.is_open or len(shared.workers) > 1

    def lose(self, worker: str) -> None:
        """Remove a worker that is gone."""
        device = self._device_of.pop(worker, None)
        if device is not None:
            device.advance(self.now)
            del device.workers[worker]
            for each in (device.running, device.audits, device.most):
                each.pop(worker, None)
            self.is_open = any(len(each.workers) > 1 for each in self._devices.values())

    def stand_in(self, worker: str) -> str:
        """Return the worker that stands for the device of a worker, where each counts once."""
        device = self._device_of.get(worker)
        return worker if device is None else min(device.workers)

    def is_extra(self, worker: str) -> bool:
        """Whether another worker stands for the device of a worker."""
        return self.stand_in(worker) != worker

    @property
    def packed(self) -> list[PackedModel]:
        """The numbers that were measured, those of most stages first: at most `MOST_PACKED`."""
        known = [
            PackedModel(model=_values_of(model), kind=kind, together=each.kept, gain=each.gain)
            for (model, kind), each in self._factors.items()
            if each.gain is not None
        ]
        known.sort(key=lambda each: (-each.together, each.kind, each.model))
        return known[:MOST_PACKED]

    def recall(self, factors: Iterable[KeptFactor]) -> None:
        """Forget what was learned, and begin with what earlier runs have learned."""
        self._factors.clear()
        self._peaks.clear()
        for each in factors:
            pair = each.model, each.kind
            self._factors[pair] = PackingFactor.recall(each)
            if each.nbytes:
                self._peaks[pair] = each.nbytes

    @property
    def kept(self) -> list[KeptFactor]:
        """The factors of which this run has learned something, for later runs."""
        factors = (
            factor.keep(*pair, self._peaks.get(pair, 0)) for pair, factor in self._factors.items()
        )
        return [factor for factor in factors if factor is not None]

    def clear(self) -> None:
        """Forget all workers; what was learned stays."""
        self._devices.clear()
        self._device_of.clear()
        self._trying.clear()
        self._marks.clear()
        self.is_open = False

    # ------------------------------------------------------------------- decisions

    def company(self, worker: str) -> int:
        """Return how many other workers of the same device have a stage or an audit."""
        device = self._device_of.get(worker)
        if device is None:
            return 0
        return device.users - (worker in device.running or worker in device.audits)

    def rank(self, worker: str) -> tuple[int, int]:
        """Return the rank of a worker for a stage: the least is best.

        That is one beside few others; then one that holds memory already, so that no other
        process takes some more.
        """
        device = self._device_of.get(worker)
        return self.company(worker), 0 if device is None else -device.workers[worker]

    def may_run(self, node: Node, worker: str, kind: str) -> bool:
        """Whether a worker may run a stage beside those that run on its device."""
        device = self._device_of.get(worker)
        if device is None:
            return True
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
        ) and self._has_room(node, worker, kind, device)

    def idle_workers(self, idle: Collection[str], ready: int) -> int:
        """Return how many idle workers may begin a stage, if as many stages are ready already."""
        free, joining = set[int | str](), set[int]()
        for worker in idle:
            device = self._device_of.get(worker)
            if device is None:
                free.add(worker)
            elif not device.beside(worker):
                free.add(id(device))
            elif self.has_room(worker):
                joining.add(id(device))
        return len(free) + max(0, len(joining) - ready)

    def has_room(self, worker: str) -> bool:
        """Whether the stages that run on a worker's device leave it one of its own like them."""
        device = self._device_of.get(worker)
        others = {} if device is None or worker in device.running else device.beside(worker)
        return not others or any(self.may_run(node, worker, kind) for node, kind in others.values())

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

    def _has_room(self, node: Node, worker: str, kind: str, device: _Device) -> bool:
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

    # ----------------------------------------------------------------------- events

    def jump_queue(self, worker: str) -> None:
        """Note that a worker is given a stage before one that waits until its device is empty."""
        device = self._device_of.get(worker)
        if device is not None:
            device.passed += 1

    def audit(self, audits: Mapping[str, Stage]) -> None:
        """Note the audits under way, by worker."""
        for device in self._devices.values():
            here = {worker: audits[worker] for worker in device.workers if worker in audits}
            if here != device.audits:
                device.advance(self.now)
                device.audits = here
                device.note_company()

    def enter(self, attempt: Attempt) -> None:
        """Note that a worker begins an attempt, or goes on with it after another."""
        device = self._device_of.get(attempt.worker)
        if device is None:
            return
        before = device.running.get(attempt.worker)
        if before is attempt:
            return
        device.advance(self.now)
        if not self.company(attempt.worker):
            device.passed = 0
        device.running[attempt.worker] = attempt
        together = device.users
        device.most[attempt.worker] = 0
        device.note_company()
        pair = self._model_of(attempt.node), attempt.kind
        factor = self._factors.setdefault(pair, PackingFactor())
        if together > factor.kept:
            self._trying[pair] = device

    def occupy(self, lender: str, attempt: Attempt) -> None:
        """Note that a worker lends its device, which nobody else uses, to an attempt."""
        device = self._device_of.get(lender)
        if device is not None:
            device.advance(self.now)
            device.running[lender], device.most[lender] = attempt, 1

    def vacate(self, lender: str) -> None:
        """Note that a worker has its device back."""
        device = self._device_of.get(lender)
        if device is not None and lender in device.running:
            device.advance(self.now)
            del device.running[lender], device.most[lender]

    def leave(self, attempt: Attempt) -> None:
        """Note that a worker has nothing more to do after an attempt."""
        self.vacate(attempt.worker)
        self._marks.pop(attempt.id, None)

    def ended(self, attempt: Attempt, step: Step, peak_bytes: int) -> None:
        """Note that an attempt ended at a step.

        Parameters
        ----------
        attempt, step
            The attempt and the step.
        peak_bytes
            The most memory that its worker's process has held; 0 if unknown.
        """
        device = self._device_of.get(attempt.worker)
        if device is None:
            return
        self.reached(attempt, step, is_end=True)
        self._alone.discard(attempt.leaf)
        if peak_bytes:
            pair = self._model_of(attempt.leaf), attempt.kind
            device.workers[attempt.worker] = peak_bytes
            self._peaks[pair] = max(peak_bytes, self._peaks.get(pair, 0))

    def reached(self, attempt: Attempt, step: Step, *, is_end: bool = False) -> None:
        """Measure an attempt, which begins, or has come to a step."""
        device = self._device_of.get(attempt.worker)
        if device is None:
            return
        load, mark = device.load_at(self.now), self._marks.get(attempt.id)
        seconds = 0.0 if mark is None else self.now - mark.at
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
            self._marks[attempt.id] = _Mark(step=step, at=self.now, load=load)

    def outgrew(self, attempt: Attempt, node: Node, *, is_sure: bool) -> bool:
        """Note that memory was not enough for an attempt; return whether others ran beside it.

        If so, that says nothing of its trials: the stage is repeated alone, and one stage less
        of its model runs together from now on.

        Parameters
        ----------
        attempt
            The attempt.
        node
            The node in which it ended.
        is_sure
            Whether it said so; otherwise its worker was lost, maybe for another reason.
        """
        device = self._device_of.get(attempt.worker)
        together = 1 if device is None else device.most.get(attempt.worker, 1)
        if together < 2:
            return False
        with self._factor_of(attempt) as factor:
            (factor.outgrew if is_sure else factor.doubted)(together)
        self._alone.add(node)
        return True

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Decide in this block as if no device was shared."""
        is_open, self.is_open = self.is_open, False
        yield
        self.is_open = is_open

    @contextmanager
    def _factor_of(self, attempt: Attempt) -> Iterator[PackingFactor]:
        """Yield the factor that an attempt teaches; note whether it has changed."""
        model, kind = self._model_of(attempt.leaf), attempt.kind
        factor = self._factors.setdefault((model, kind), PackingFactor())
        before = factor.kept
        yield factor
        if factor.kept != before:
            self.changes.append(FactorChange(model=model, kind=kind, together=factor.kept))
