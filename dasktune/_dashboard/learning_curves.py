"""Learning curves on demand: the reports of single trials, found by their state keys.

A page shows a few hundred curves of a study that may have millions of reports. So the keys of the
shown trials are computed, and their reports looked up by these keys; nothing else is read.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dasktune._engine.trials import TrialRecord
from dasktune._results.rows import registered
from dasktune._results.trial_paths import MOST_STEPS, keys_of, last_reported
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.types import Metrics, Step, TrialState

MOST_CACHED = 3000
"""Most trials whose reports stay in memory."""

Curve = Mapping[Step, Metrics]
"""Metrics by step."""


def decimated(points: Sequence[tuple[Step, float]], most: int) -> list[tuple[Step, float]]:
    """Return at most about `most` points of a curve, with the extremes of each part.

    The curve is cut into parts of equal length; of each the lowest and the highest point stay,
    and so do the first and the last point of all.

    Examples
    --------
    >>> decimated([(step, 0.0) for step in range(6)] + [(6, 9.0), (7, 0.0)], 6)
    [(0, 0.0), (4, 0.0), (6, 9.0), (7, 0.0)]
    """
    if len(points) <= most:
        return list(points)
    parts = max(1, (most - 2) // 2)
    kept: dict[Step, float] = dict([points[0]])
    for part in range(parts):
        some = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        for step, value in sorted({min(some, key=_value), max(some, key=_value)}):
            kept.setdefault(step, value)
    kept.setdefault(*points[-1])
    return sorted(kept.items())


def _value(point: tuple[Step, float]) -> float:
    return point[1]


@dataclass(slots=True)
class CurveCache:
    """The reports of trials: of those that the page has asked for most recently."""

    row: StudyRow
    database: Database
    _curves: OrderedDict[int, tuple[object, Curve]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _steps: Sequence[Step] | None = None

    def curves(
        self, records: Sequence[TrialRecord], marks: Callable[[int], object]
    ) -> dict[int, Curve]:
        """Return the curves of trials by number.

        Parameters
        ----------
        marks
            Gives the present mark of a trial; an ended trial of the same mark is not read again.
        """
        known: dict[int, Curve] = {}
        unread: list[TrialRecord] = []
        with self._lock:
            for record in records:
                mark, curve = self._curves.get(record.number, (None, {}))
                is_running = record.state is TrialState.RUNNING
                if mark is not None and mark == marks(record.number) and not is_running:
                    known[record.number] = curve
                    self._curves.move_to_end(record.number)
                else:
                    unread.append(record)
        read = self._read(unread)
        with self._lock:
            for number, curve in read.items():
                self._curves[number] = marks(number), curve
                self._curves.move_to_end(number)
            while len(self._curves) > MOST_CACHED:
                self._curves.popitem(last=False)
        return known | read

    def _read(self, records: Sequence[TrialRecord]) -> dict[int, Curve]:
        plan = registered(self.row, records)
        states: dict[int, list[tuple[Step, str]]] = {}
        for record in records:
            steps = self._steps_to(last_reported(record))
            states[record.number] = list(keys_of(plan, record.number, steps))
        keys = {key for pairs in states.values() for _, key in pairs}
        known = dict(self.database.metrics_at(keys))
        return {
            number: {step: known[key] for step, key in pairs if key in known}
            for number, pairs in states.items()
        }

    def _steps_to(self, last: Step) -> Sequence[Step]:
        """Return the steps to look up: all of a short trial, some of a long one."""
        if last <= MOST_STEPS:
            return range(1, last + 1)
        if self._steps is None or not self._steps or self._steps[-1] < last:
            self._steps = self.database.metric_steps(self.row.root)
        own = [step for step in self._steps if step <= last]
        if len(own) <= MOST_STEPS:
            return own
        return sorted({own[at * (len(own) - 1) // (MOST_STEPS - 1)] for at in range(MOST_STEPS)})


def points_of(curve: Curve, metric: str, most: int) -> tuple[list[Step], list[float]]:
    """Return steps and values of a metric, without values that are not finite."""
    points = [
        (step, float(metrics[metric]))
        for step, metrics in sorted(curve.items())
        if metric in metrics and math.isfinite(metrics[metric])
    ]
    kept = decimated(points, most)
    return [step for step, _ in kept], [value for _, value in kept]
