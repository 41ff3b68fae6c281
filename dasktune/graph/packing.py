"""How many stages of a model run together on a device: learned, never assumed.

Several small stages on one GPU may train more steps a second than one alone, or fewer. Each pair
of a model and a class begins at one stage alone. Once a few measurements are there, one more is
tried on one device, and kept if the device then trains clearly more steps a second. Where that is
tried is decided in `dasktune.graph.policies.shared_devices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.graph.events import WorkerJoined
from dasktune.graph.kept_speeds import KeptFactor, Model

MARGIN = 0.05
"""One stage more must raise the steps a second of a device by more than this share."""

LEAST_SAMPLES = 3
"""Measurements of a number of stages together before it is judged."""

MOST_SAMPLES = 30
"""Measurements by which one stage more must have shown its worth: what a trial may cost."""


_MEMORY_SAMPLES = 40.0
_SPREAD = 0.1
"""Standard deviation of the logarithms of rates, before any was measured."""

_ERRORS = 3.0
"""Standard errors by which two numbers of stages must differ."""

_SPEED_CHANGE = math.log(1.5)
"""Change of the logarithm of a speed after which all is learned anew."""


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
    together
        The number.
    """

    model: Model
    kind: str
    together: int

    def __str__(self) -> str:
        return _in_words(values_of(self.model), self.kind, self.together)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedModel:
    """How many stages of a model run together on a device of a class, and the gain.

    Parameters
    ----------
    model
        The values of the model, in words.
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


def values_of(model: Model) -> str:
    """Return the values of a model in words."""
    return ", ".join(f"{name}={value!r}" for name, value in model)


def _in_words(values: str, kind: str, together: int) -> str:
    of_model = f" with {values}" if values else ""
    trials = "1 trial trains alone" if together == 1 else f"{together} trials train together"
    return f"{trials} on each {kind or 'device'}{of_model}"


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
