"""Speeds that earlier runs have measured: sums by model and class, as they are kept and logged."""

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
    kind
        The name of the class.
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
            } if all(isinstance(value, int | str | None) for value in model.values()):
                pairs = tuple(sorted(model.items()))
                return cls(model=pairs, kind=kind, seconds=float(seconds), steps=float(steps))
            case _:
                raise ValueError(f"not a kept speed: {document!r}")
