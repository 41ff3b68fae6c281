"""A curve and those of the study's other trials, on the same steps, and the queries about them.

The rows of a panel are curves: the first is the one to predict, the others are known beyond its
last step. A *query* asks for the score of a row at a column, a later step, from what is known of
the row up to the last step. The first queries are about the curve itself. The others are checks:
what the rules would have said of another row, whose score is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.curve import HUGE, Branch, Curve
from dasktune.algos.curves.network.learning_rates import Rates
from dasktune.types import Step

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MOST_POINTS: Final = 128
"""The largest number of measurements of a curve that are used: the latest, and a few before."""

_RECENT: Final = 0.1
_MOST_RECENT: Final = 10
"""The part of the measurements whose mean is the present level, and their largest number."""

_FEWEST: Final = 0.5
"""A row is checked if it is known for this part of the way to the last column."""

_MOST_WIDTHS: Final = 1e4
"""Bounds that are wider than so many times the largest score tell nothing."""

_LEAST_UNIT: Final = 1e-100
"""The least range of scores: the square of its ten thousandth is still above 0."""

_FARTHEST: Final = 3.0
"""The largest distance of two learning rates, as a logarithm."""

_PLACES: Final = (np.arange(8) + 1.0) / 8
"""Where two learning rates are compared, as parts of the way from the last step to a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Curves on the same steps.

    Parameters
    ----------
    times
        The steps up to the last one, at which all rows are known.
    rows
        ``(rows, times)``: the scores.
    ends
        For each row the last step at which it is known.
    shared
        For each row the step up to which it is the same as the first, 0 for that row itself.
    columns
        The later steps.
    values
        ``(rows, columns)``: the scores there.
    reach
        ``(rows, columns)``: whether a row is known so far; False for the first row.
    unit
        The range of scores.
    middle
        The middle of the bounds; None without two bounds.
    rates
        The learning rate of each row; None where it is unknown.
    branches
        Of all rows but the first.
    query_rows, query_columns
        For each query its row and column.
    """

    times: Array
    rows: Array
    ends: Array
    shared: Array
    columns: Array
    values: Array
    reach: NDArray[np.bool_]
    unit: float
    middle: float | None
    rates: tuple[Rates | None, ...]
    branches: tuple[tuple[Array, Array], ...]
    query_rows: Indices
    query_columns: Indices

    @classmethod
    def of(cls, curve: Curve, steps: tuple[Step, ...]) -> Panel:
        """Return the panel of a question; it is not checked."""
        times, own = _thinned(*np.array(curve.moderate.measured, float).T)
        last = float(times[-1])
        held = [
            (branch, series)
            for branch in (*curve.siblings, *curve.others)
            for series in [_series(branch)]
            if len(series[0]) and series[0][-1] > last and series[0][0] <= last
        ]
        rows = np.array([own, *(np.interp(times, *series) for _, series in held)])
        columns = np.asarray(steps, float)
        values = np.array([np.interp(columns, *series) for _, series in held])
        values = np.vstack((np.full(len(columns), np.nan), values.reshape(-1, len(columns))))
        ends = np.array([last, *(series[0][-1] for _, series in held)])
        reach = (ends[:, None] >= columns) & (np.arange(len(ends)) > 0)[:, None]
        shared = np.array([0.0, *(float(branch.at) for branch, _ in held)])
        counts = reach.sum(axis=1)
        fewest = last + _FEWEST * (columns[-1] - last)
        checked = np.flatnonzero((counts > 0) & (columns[counts - 1] >= fewest))
        unit, middle = _unit(curve, rows, values)
        rates = (curve.rates, *(branch.rates for branch, _ in held))
        return cls(
            times=times,
            rows=rows,
            ends=ends,
            shared=shared,
            columns=columns,
            values=values,
            reach=reach,
            unit=unit,
            middle=middle,
            rates=tuple(map(Rates.of, rates)),
            branches=tuple(series for _, series in held),
            query_rows=np.concatenate((np.zeros(len(columns), int), checked)),
            query_columns=np.concatenate((np.arange(len(columns)), counts[checked] - 1)),
        )

    @property
    def last(self) -> float:
        """The last step of the first row."""
        return float(self.times[-1])

    @property
    def ahead(self) -> Array:
        """For each query the step that it asks for."""
        return self.columns[self.query_columns]

    @property
    def truths(self) -> Array:
        """For each query the score that was measured; NaN for those about the first row."""
        return self.values[self.query_rows, self.query_columns]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """``(queries, rows)``: the rows that a query may use: neither the first nor its own."""
        usable = np.ones((len(self.query_rows), len(self.rows)), bool)
        usable[:, 0] = False
        usable[np.arange(len(usable)), self.query_rows] = False
        return usable

    @property
    def usual_gains(self) -> Array:
        """``(rows, columns + 1)``: how far the others rise from the last step on, in the mean.

        The mean of each part of the way is that of the rows that are known at its end; the row
        itself is left out. Without any, it is 0.
        """
        scores = np.hstack((self.rows[:, -1:], self.values))
        parts = np.where(self.reach, np.diff(scores, axis=1), 0.0)
        counts = self.reach.sum(axis=0) - self.reach
        means = (parts.sum(axis=0) - parts) / np.maximum(counts, 1)
        return np.hstack((np.zeros((len(means), 1)), np.cumsum(means, axis=1)))

    def later(self, gains: Array) -> tuple[Array, Array]:
        """Return ``(queries, rows)``: the scores of rows at the step asked, and their variance.

        For a row that ends before, it is its last score and the mean gain of the others, with a
        variance like that of `walk`. A mean of the other rows alone would be that of the trials
        that a tuner has let go on.

        Parameters
        ----------
        gains
            `usual_gains`.
        """
        stops = np.append(self.last, self.columns)
        ends = np.minimum(self.ends, stops[-1])
        place = np.clip(np.searchsorted(stops, ends, side="right") - 1, 0, len(stops) - 2)
        part = (ends - stops[place]) / (stops[place + 1] - stops[place])
        gains = gains[self.query_rows]
        until_end = gains[:, place] + part * (gains[:, place + 1] - gains[:, place])
        asked = self.query_columns + 1
        more = np.take_along_axis(gains, asked[:, None], axis=1) - until_end
        is_beyond = ~self.reach.T[self.query_columns]
        later = self.values.T[self.query_columns] + np.where(is_beyond, more, 0.0)
        spent = np.log(self.ahead[:, None] / np.maximum(self.ends, 0.5))
        return later, np.where(is_beyond, self.walk * np.maximum(spent, 0.0), 0.0)

    @property
    def has_drop_ahead(self) -> bool:
        """Whether the learning rate of the first row drops before the last column."""
        own = self.rates[0]
        if own is None:
            return False
        drops = own.drops()[0]
        return bool(((drops >= self.last) & (drops < self.columns[-1])).any())

    @property
    def levels(self) -> Array:
        """For each row the present level: the mean of the latest scores."""
        count = max(1, min(int(_RECENT * len(self.times)), _MOST_RECENT))
        levels: Array = self.rows[:, -count:].mean(axis=1)
        return levels

    @property
    def gains(self) -> Array:
        """For each row how far the level has risen since half of the steps."""
        place = int(np.searchsorted(self.times, 0.5 * self.last))
        gains: Array = self.levels - self.rows[:, place]
        return gains

    @property
    def noise(self) -> Array:
        """For each row the standard deviation of a measurement, from the bends of its later half.

        Bends much larger than usual are cut: a jump is no noise.
        """
        count = len(self.times)
        late = self.rows[:, count // 2 if count > 8 else 0 :]
        if late.shape[1] < 3:
            return np.asarray(0.3 * np.ptp(self.rows, axis=1))
        bends = late[:, 2:] - 2 * late[:, 1:-1] + late[:, :-2]
        usual = 1.4826 * np.median(np.abs(bends), axis=1, keepdims=True)
        return np.asarray(np.sqrt(np.minimum(bends**2, (3 * usual) ** 2).mean(axis=1) / 6))

    @property
    def walk(self) -> Array:
        """For each row the variance of its walk in a unit of the logarithm of time."""
        if len(self.times) < 2:
            return np.full(len(self.rows), (0.25 * self.unit) ** 2)
        spent = np.log(self.last / max(float(self.times[0]), 0.5))
        walk = (np.diff(self.rows, axis=1) ** 2).sum(axis=1) / max(float(spent), 0.3)
        return np.where(walk > 0, walk, (0.01 * self.unit) ** 2)

    def schedules(self) -> tuple[Array, Array]:
        """Return the distances between learning rates, and how far each falls.

        Returns
        -------
        tuple
            ``(queries, rows)``: how far each row's rate is from that of a query until the step
            asked, as a mean of logarithms; 0 where both are unknown. And ``(rows, columns)``:
            the mean logarithm of the rate ahead over that now.
        """
        is_known = np.array([rate is not None for rate in self.rates])
        slowing = np.zeros(self.reach.shape)
        if not is_known.any():
            return np.zeros((len(self.query_rows), len(self.rows))), slowing
        places = np.ceil(self.last + (self.columns - self.last)[:, None] * _PLACES)
        places = np.append(places.ravel(), self.last)
        logs = np.array(
            [np.zeros(len(places)) if each is None else each.before(places) for each in self.rates]
        )
        now, logs = logs[:, -1:], logs[:, :-1].reshape(len(logs), -1, len(_PLACES))
        slowing = logs.mean(axis=2) - now
        of_rows = logs[:, self.query_columns]
        own = of_rows[self.query_rows, np.arange(len(self.query_rows))]
        apart = np.minimum(np.abs(of_rows - own), _FARTHEST).mean(axis=2).T
        both = is_known[self.query_rows][:, None] & is_known
        neither = ~is_known[self.query_rows][:, None] & ~is_known
        return np.where(both, apart, np.where(neither, 0.0, 0.5)), slowing


def _series(branch: Branch) -> tuple[Array, Array]:
    """Return the finite scores of a branch with their steps."""
    steps, scores = np.asarray(branch.steps, float), np.asarray(branch.scores, float)
    if not (np.abs(scores) <= HUGE).all():
        finite = np.isfinite(scores)
        steps, scores = steps[finite], np.clip(scores[finite], -HUGE, HUGE)
    return steps, scores


def _thinned(times: Array, scores: Array) -> tuple[Array, Array]:
    if len(times) <= MOST_POINTS:
        return times, scores
    before = np.linspace(0, len(times) - MOST_POINTS // 2 - 1, MOST_POINTS // 2).astype(int)
    kept = np.concatenate((before, np.arange(len(times) - MOST_POINTS // 2, len(times))))
    return times[kept], scores[kept]


def _unit(curve: Curve, rows: Array, values: Array) -> tuple[float, float | None]:
    """Return the range of scores, and its middle if two bounds tell it.

    Else it is the range of all that was measured. So it is for bounds that tell nothing. It is
    never so small that its square would be 0.
    """
    known = np.concatenate((rows.ravel(), values[1:].ravel()))
    largest = float(np.abs(known).max())
    if curve.low is not None and curve.high is not None:
        width = curve.high - curve.low
        if width < _MOST_WIDTHS * largest:
            return max(width, _LEAST_UNIT), curve.low + width / 2
    return max(float(np.ptp(known)) or largest or 1.0, _LEAST_UNIT), None
