"""Choosers that follow a given point, or record the choices of another chooser."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.space.domains import Choice, Chooser, Float, Int
from dasktune.types import Value


class RecordingChooser:
    """Records the choices of another chooser.

    Parameters
    ----------
    chooser
        The other chooser.

    Attributes
    ----------
    point, domains
        Value and domain (JSON) of each coordinate by name.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self.point: dict[str, Value] = {}
        self.domains: dict[str, Mapping[str, object]] = {}

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return the choice of the other chooser."""
        value = self._chooser.number(name, domain)
        self.point[name], self.domains[name] = value, domain.document
        return value

    def option(self, name: str, domain: Choice) -> int:
        """Return the choice of the other chooser."""
        position = self._chooser.option(name, domain)
        self.point[name], self.domains[name] = domain.labels[position], domain.document
        return position


class PointChooser:
    """Chooses the coordinates of a given point.

    Parameters
    ----------
    point
        Values by coordinate.
    otherwise
        Chooses the coordinates that the point lacks; None refuses them.
    """

    def __init__(self, point: Mapping[str, Value], otherwise: Chooser | None = None) -> None:
        self._point = point
        self._otherwise = otherwise

    def number(self, name: str, domain: Float | Int) -> float | int:
        """Return the point's value if the domain has it."""
        if name not in self._point:
            return self._other(name).number(name, domain)
        value = self._point[name]
        if not isinstance(value, int | float) or value not in domain:
            raise ConfigurationError(f"coordinate {name!r} must be in {domain}, got {value!r}")
        return value

    def option(self, name: str, domain: Choice) -> int:
        """Return the position of the option that the point names."""
        if name not in self._point:
            return self._other(name).option(name, domain)
        labels, value = domain.labels, self._point[name]
        for position, label in enumerate(labels):
            if label == value and isinstance(label, bool) == isinstance(value, bool):
                return position
        raise ConfigurationError(unknown(f"option of {name!r}", value, map(str, labels)))

    def check(self, settled: Mapping[str, Value]) -> None:
        """Refuse coordinates of the point that the space does not have."""
        refuse(unknown("coordinate", name, settled) for name in self._point if name not in settled)

    def _other(self, name: str) -> Chooser:
        if self._otherwise is None:
            known = ", ".join(map(repr, self._point)) or "nothing"
            raise ConfigurationError(f"a point must have coordinate {name!r}, got {known}")
        return self._otherwise
