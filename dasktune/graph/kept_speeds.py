"""Measurements of earlier runs by model and class, as they are kept and logged.

They are speeds, and the numbers of stages that train together on one device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.types import Value

Model = tuple[tuple[str, Value], ...]
"""Hyper-parameters that are not floats, with their values: what decides a step's cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSpeed:
    """The seconds and steps of a model on a class, as far as runs have measured them.

    Parameters
    ----------
    model
        The model, its hyper-parameters in the order of their names.
    seconds
        Time of the steps, evaluation included.
    steps
        Number of steps; older ones count for a part only.

    Raises
    ------
    ValueError
        If seconds or steps are not positive and finite.

    Examples
    --------
    >>> speed = KeptSpeed(model=(("batch", 64),), kind="cpu", seconds=6.0, steps=12.0)
    >>> speed.to_json()
    {'model': {'batch': 64}, 'kind': 'cpu', 'seconds': 6.0, 'steps': 12.0}
    >>> KeptSpeed.from_json(speed.to_json()) == speed
    True
    """

    model: Model
    kind: str
    seconds: float
    steps: float

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("steps", self.steps)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value!r}")

    @property
    def per_step(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        sums = {"seconds": self.seconds, "steps": self.steps}
        return {"model": dict(self.model), "kind": self.kind, **sums}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> KeptSpeed:
        """Return the speed of a document of `to_json`.

        Raises
        ------
        ValueError
            If the document is none of `to_json`.
        """
        match document:
            case {
                "model": dict(model),
                "kind": str(kind),
                "seconds": float() | int() as seconds,
                "steps": float() | int() as steps,
            } if _has_values(model):
                pairs = tuple(sorted(model.items()))
                return cls(model=pairs, kind=kind, seconds=float(seconds), steps=float(steps))
            case _:
                raise ValueError(f"not a kept speed: {document!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFactor:
    """The packing factor of a model on a class, as far as runs have learned it.

    Parameters
    ----------
    model
        The model, its hyper-parameters in the order of their names.
    together
        The number of stages that train together on one device.
    most
        The largest number that may be tried: one stage more did not pay. None if that is open.
    fits
        The largest number that has not run out of memory; None if none has.
    rates
        Pairs of a number of stages that trained together, and the steps a second of each.
    nbytes
        The most memory that a worker's process has held; 0 if unknown.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> rates = ((1, 10.0), (2, 9.0), (3, 5.0))
    >>> factor = KeptFactor(model=(("batch", 64),), kind="gpu", together=2, most=2, rates=rates)
    >>> KeptFactor.from_json(factor.to_json()) == factor
    True
    """

    model: Model
    kind: str
    together: int
    most: int | None = None
    fits: int | None = None
    rates: tuple[tuple[int, float], ...] = ()
    nbytes: int = 0

    def __post_init__(self) -> None:
        for name, least in (("most", self.together), ("fits", self.together), ("together", 1)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"{name} must be >= {least}, got {number!r}")
        if self.nbytes < 0:
            raise ValueError(f"nbytes must be >= 0, got {self.nbytes!r}")
        for together, rate in self.rates:
            if together < 1 or not 0 < rate < math.inf:
                raise ValueError(
                    "rates must be positive and finite, of at least 1 stage, "
                    f"got {(together, rate)!r}"
                )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "model": dict(self.model),
            "kind": self.kind,
            "together": self.together,
            "most": self.most,
            "fits": self.fits,
            "rates": [list(pair) for pair in self.rates],
            "nbytes": self.nbytes,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> KeptFactor:
        """Return the factor of a document of `to_json`.

        Raises
        ------
        ValueError
            If the document is none of `to_json`.
        """
        match document:
            case {
                "model": dict(model),
                "kind": str(kind),
                "together": int(together),
                "most": (int() | None) as most,
                "fits": (int() | None) as fits,
                "rates": list(rates),
                "nbytes": int(nbytes),
            } if _has_values(model) and all(map(_is_rate, rates)):
                return cls(
                    model=tuple(sorted(model.items())),
                    kind=kind,
                    together=together,
                    most=most,
                    fits=fits,
                    rates=tuple((number, float(rate)) for number, rate in rates),
                    nbytes=nbytes,
                )
            case _:
                raise ValueError(f"not a kept packing factor: {document!r}")


@dataclass(frozen=True, slots=True)
class KeptMeasurements:
    """The measurements that a run begins with, or leaves to later ones."""

    speeds: tuple[KeptSpeed, ...] = ()
    factors: tuple[KeptFactor, ...] = ()


NOTHING_KEPT = KeptMeasurements()


def _has_values(model: Mapping[Any, Any]) -> bool:
    return all(isinstance(value, int | str | None) for value in model.values())


def _is_rate(pair: object) -> bool:
    match pair:
        case [int(), float() | int()]:
            return True
        case _:
            return False
