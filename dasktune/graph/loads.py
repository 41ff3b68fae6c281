"""Measured seconds of loading a state, by class: the price of a change of worker."""

from __future__ import annotations

from dasktune.graph.speeds import Mean

_MEMORY_LOADS = 20.0
"""Older loads fade after so many: the first one of a worker also imports what the trainer needs."""


class Loads:
    """Mean seconds for which workers load a state that they do not hold.

    A class without a measurement takes as long as the mean of all.

    Parameters
    ----------
    assumed
        The seconds before any was measured.

    Examples
    --------
    >>> loads = Loads(assumed=5.0)
    >>> loads.seconds("old")
    5.0
    >>> loads.observe("old", 3.0)
    >>> loads.seconds("old"), loads.seconds("new")
    (3.0, 3.0)
    """

    def __init__(self, assumed: float) -> None:
        self._assumed = assumed
        self._measured: dict[str, Mean] = {}
        self._all = Mean()

    def observe(self, kind: str, seconds: float) -> None:
        """Add the seconds of a load on a class; 0 means that there was none."""
        if seconds > 0:
            mean = self._measured.setdefault(kind, Mean())
            mean.add(1.0, seconds, memory=_MEMORY_LOADS)
            self._all.add(1.0, seconds, memory=_MEMORY_LOADS)

    def seconds(self, kind: str) -> float:
        """Return the seconds of a load on a class."""
        if not self._measured:
            return self._assumed
        return self._measured.get(kind, self._all).per_step
