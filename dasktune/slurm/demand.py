"""How many workers there should be: as many as can be used, for long enough."""

from __future__ import annotations

from collections.abc import Collection


class Demand:
    """Follows how many workers can be used: up at once, down after a while.

    Parameters
    ----------
    least, most
        Bounds of the number of workers.
    idle_seconds
        How long workers are kept that have nothing to do, and jobs that nothing would use.
    """

    def __init__(self, *, least: int, most: int, idle_seconds: float) -> None:
        self._least, self._most = least, most
        self._idle_seconds = idle_seconds
        self._target = least
        self._lower_since: float | None = None
        self._idle_since: dict[str, float] = {}

    def note(self, wanted: int, idle: Collection[str], now: float) -> None:
        """Take in how many could be used at time `now` (seconds), and which are idle."""
        wanted = min(max(wanted, self._least), self._most)
        self._idle_since = {one: self._idle_since.get(one, now) for one in idle}
        if wanted >= self._target:
            self._target, self._lower_since = wanted, None
        elif self._lower_since is None:
            self._lower_since = now
        elif now - self._lower_since >= self._idle_seconds:
            self._target, self._lower_since = wanted, None

    @property
    def target(self) -> int:
        """How many workers there should be."""
        return self._target

    def long_idle(self, now: float) -> list[str]:
        """Return the workers that have been idle for long, the longest first."""
        since = sorted((at, one) for one, at in self._idle_since.items())
        return [one for at, one in since if now - at >= self._idle_seconds]
