"""The use of a run so far, in time and steps, for its limits."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune._driver.attempts import Attempts
from dasktune._driver.parts import Following, Part
from dasktune._engine.limits import Meter
from dasktune.graph.view import RunView


class Usage(Part):
    """Counts for the meter, with what runs at this moment."""

    def __init__(self, view: RunView, attempts: Attempts, meter: Meter) -> None:
        self._view = view
        self._attempts = attempts
        self._meter = meter
        self._steps_before = view.steps_executed

    def turn(self, now: float) -> Iterable[Following]:
        """Count the time and steps that the run has used."""
        running = [attempt for attempt in self._view.attempts.values() if not attempt.ended]
        began = [
            (1 + len(attempt.lenders), attempt.started)
            for attempt in running
            if attempt.started is not None
        ]
        trained = self._view.steps_executed - self._steps_before
        self._meter.count(
            seconds=now,
            worker_seconds=self._attempts.worker_seconds
            + sum(workers * (now - at) for workers, at in began),
            steps=trained + sum(attempt.position - attempt.start for attempt in running),
            proof_seconds=self._attempts.proof_seconds,
        )
        return ()
