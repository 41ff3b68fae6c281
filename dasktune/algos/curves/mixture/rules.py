"""Simple rules that predict learning curves, each for all queries of a panel at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves.mixture.panel import Array, Panel

NODES: Final = np.array([-3.298, -1.254, -0.343, 0.343, 1.254, 3.298])
SHARES: Final = np.array([0.03, 0.22, 0.25, 0.25, 0.22, 0.03])
"""Points that stand for Student's t with four degrees of freedom, and their probabilities."""

_FEW_NODES: Final = np.array([-0.95, 0.95])
_FEW_SHARES: Final = np.array([0.5, 0.5])
"""The same, for each of more than `_FEW` centres."""

_FEW: Final = 8

_FINEST: Final = 5e-4
"""The least scale of a rule's answer, as a part of the range of scores."""

_EXPONENTS: Final = (0.25, 0.5, 1.0, 2.0)
"""Exponents of the power laws; 0 is a logarithm."""

_RIDGE: Final = (1e-9, 0.4, 0.4, 0.4)
"""What is added to the squares of the inputs of a line: how many rows speak for no effect."""

_FEWEST_OF_LINE: Final = 5
"""The least number of rows for a line."""

_WIDE: Final = 0.25
"""The scale of an answer that excludes nothing, as a part of the range of scores."""

_STILL: Final = 8.0
"""A curve has not moved if its range is smaller than so many standard deviations of its noise."""

_LIKENESS: Final = 3.0
"""By how much a row's weight falls with the distance of its learning rate."""


@dataclass(frozen=True, slots=True)
class RuleAnswers:
    """The answers of a rule to queries, each a mixture of Student's t with four degrees of freedom.

    Parameters
    ----------
    centres, weights
        ``(queries, parts)``. Weights that are all 0 are no answer.
    scales
        ``(queries,)``.
    """

    centres: Array
    weights: Array
    scales: Array

    @property
    def given(self) -> NDArray[np.bool_]:
        """For each query whether the rule has an answer."""
        return np.asarray(self.weights.sum(axis=1) > 0)

    def densities(self, truths: Array) -> Array:
        """Return the density at a score for each query; NaN where there is no answer."""
        x = (truths[:, None] - self.centres) / self.scales[:, None]
        kernels = 0.375 / (1 + 0.25 * x**2) ** 2.5
        total = self.weights.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            densities: Array = (self.weights * kernels).sum(axis=1) / total / self.scales
        return densities

    def points(self) -> tuple[Array, Array]:
        """Return points that stand for the distributions, with their probabilities."""
        has_few = self.centres.shape[1] <= _FEW
        nodes, parts = (NODES, SHARES) if has_few else (_FEW_NODES, _FEW_SHARES)
        points = self.centres[..., None] + self.scales[:, None, None] * nodes
        total = np.maximum(self.weights.sum(axis=1), 1e-300)
        shares = (self.weights / total[:, None])[..., None] * parts
        count = len(self.centres)
        return points.reshape(count, -1), shares.reshape(count, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The quantities of a panel that several rules need; by row, or by query and row."""

    panel: Panel
    levels: Array
    gains: Array
    noise: Array
    ahead: Array
    rows: NDArray[np.intp]
    known: NDArray[np.bool_]
    later: Array
    unsure: Array
    usual_gains: Array
    likeness: Array
    slowing: Array

    @classmethod
    def of(cls, panel: Panel) -> Material:
        """Return the material of a panel."""
        known = panel.usable
        unlike, slowing = panel.schedules()
        usual_gains = panel.usual_gains
        later, unsure = panel.later(usual_gains)
        return cls(
            panel=panel,
            levels=panel.levels,
            gains=panel.gains,
            noise=panel.noise,
            ahead=panel.ahead,
            rows=panel.query_rows,
            known=known,
            later=np.where(known, later, 0.0),
            unsure=np.where(known, unsure, 0.0),
            usual_gains=usual_gains,
            likeness=np.where(known, np.exp(-_LIKENESS * unlike), 0.0),
            slowing=slowing,
        )

    def around(
        self, own: Array, centres: Array, weights: Array, sizes: Array, unsure: Array | float = 0.0
    ) -> RuleAnswers:
        """Return answers about these centres, as wide as their number and spread suggest.

        Parameters
        ----------
        own
            The noise of each query's own level.
        centres, weights
            By query and row.
        sizes
            How large the gains are that few rows should not be trusted for.
        unsure
            The variance of each row.
        """
        total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        parts = weights / total
        count = 1 / np.maximum((parts**2).sum(axis=1), 1e-9)
        middle = (parts * centres).sum(axis=1, keepdims=True)
        variance = (parts * (centres - middle) ** 2).sum(axis=1)
        size = (parts * np.abs(sizes)).sum(axis=1)
        noise = np.median(self.noise)
        scales = np.sqrt(
            noise**2
            + own**2
            + (parts * unsure).sum(axis=1)
            + 0.36 * variance * count**-0.4
            + (0.3 * size / count**2) ** 2
            + (_FINEST * self.panel.unit) ** 2
        )
        return RuleAnswers(centres, weights, scales)


def _single(centres: Array, scales: Array, unit: float) -> RuleAnswers:
    ones = np.ones((len(centres), 1))
    return RuleAnswers(centres[:, None], ones, np.hypot(scales, _FINEST * unit))


def last(known: Material) -> RuleAnswers:
    """The last score stays, with a spread that grows as the curve has moved so far."""
    panel, rows = known.panel, known.rows
    changes = np.diff(panel.rows, axis=1)
    late = changes[:, changes.shape[1] // 2 :]
    noise = (late**2).mean(axis=1) if late.shape[1] else np.zeros(len(panel.rows))
    spent = np.log(known.ahead / max(panel.last, 0.5))
    scales = np.sqrt(panel.walk[rows] * spent + noise[rows])
    return _single(panel.rows[rows, -1], scales, panel.unit)


def level(known: Material) -> RuleAnswers:
    """The mean of the latest scores stays."""
    panel, rows = known.panel, known.rows
    moved = np.ptp(panel.rows[:, len(panel.times) // 2 :], axis=1)[rows]
    spent = np.minimum(np.log(known.ahead / max(panel.last, 0.5)), 2.0)
    scales = np.sqrt(1.1 * known.noise[rows] ** 2 + 0.06 * moved**2 * spent)
    return _single(known.levels[rows], scales, panel.unit)


def anything(known: Material) -> RuleAnswers:
    """A curve that has not moved yet may go anywhere in its range, if that is known."""
    panel, rows = known.panel, known.rows
    if panel.middle is None:
        return _none(known)
    still = np.ptp(panel.rows, axis=1) < _STILL * known.noise + _FINEST * panel.unit
    scales = np.full(len(rows), _WIDE * panel.unit)
    centres = np.full((len(rows), 1), panel.middle)
    return RuleAnswers(centres, still[rows][:, None].astype(float), scales)


def power(known: Material) -> RuleAnswers:
    """Power laws y = a + b t^-e, by least squares for each of some exponents.

    Later scores have more weight. The laws are averaged by their likelihood, as far as it goes.
    """
    panel, rows = known.panel, known.rows
    count = len(panel.times)
    if count < 3:
        return _none(known)
    shift = 1.0 if panel.times[0] < 1 else 0.0
    past, future = _laws(panel.times + shift), _laws(known.ahead + shift)
    weights = ((np.arange(count) + 1.0) / count) ** 1.5
    weights /= weights.sum()
    number = 1 / float((weights**2).sum())
    middle = past @ weights
    centred = past - middle[:, None]
    spread = centred**2 @ weights + 1e-15
    means = panel.rows @ weights
    rest = panel.rows - means[:, None]
    slopes = (rest * weights) @ centred.T / spread
    errors = rest[:, None] - slopes[..., None] * centred
    variance = (errors**2 @ weights) * number / max(number - 2, 1.0) + (1e-4 * panel.unit) ** 2
    fit = -0.5 * number * np.log(variance)
    chances = np.exp(fit - fit.max(axis=1, keepdims=True))
    chances = (chances / chances.sum(axis=1, keepdims=True))[rows]
    away = (future - middle[:, None]).T
    ends = means[rows][:, None] + slopes[rows] * away
    unsure = variance[rows] * (1 + away**2 / spread) / number
    centres = (chances * ends).sum(axis=1)
    unsure = (chances * (unsure + (ends - centres[:, None]) ** 2)).sum(axis=1)
    moved = 0.25 * (centres - known.levels[rows])
    scales = np.sqrt(unsure + known.noise[rows] ** 2 + moved**2) / 1.2
    return _single(centres, scales, panel.unit)


def _laws(times: Array) -> Array:
    return np.stack((np.log(times), *(times**-exponent for exponent in _EXPONENTS)))


def same(known: Material) -> RuleAnswers:
    """The scores of other trials at the same step."""
    few = known.known.sum(axis=1, keepdims=True) < 2
    weights = np.where(few, 0.0, known.known)
    own = np.zeros(len(weights))
    return known.around(
        own, known.later, weights, 0.3 * np.abs(known.later - known.levels), known.unsure
    )


def gain(known: Material) -> RuleAnswers:
    """The level, and the gains of other trials, above all those with like learning rates."""
    return _gained(known, known.likeness)


def near(known: Material) -> RuleAnswers:
    """The level, and the gains of the trials whose curves were near at the same step."""
    levels, gains = known.levels, known.gains
    noise, least = np.median(known.noise), 1e-4 * known.panel.unit
    parts = [
        (each - each[known.rows][:, None]) / (np.std(each) + noise + least)
        for each in (levels, gains)
    ]
    distances = np.sqrt(parts[0] ** 2 + parts[1] ** 2)
    usable = np.where(known.known, distances, np.inf)
    counts = known.known.sum(axis=1)
    place = np.minimum(np.maximum(3, np.sqrt(2 * counts).astype(int)), counts - 1)
    ordered = np.sort(usable, axis=1)
    width = ordered[np.arange(len(place)), np.maximum(place, 0)]
    width = 0.05 + 0.6 * np.where(np.isfinite(width), width, 0.0)
    kernels = np.exp(-0.5 * (distances / width[:, None]) ** 2) + 1e-9
    few = counts[:, None] < 2
    return _gained(known, np.where(few, 0.0, kernels * known.likeness))


def _gained(known: Material, weights: Array) -> RuleAnswers:
    gains = np.where(known.known, known.later - known.levels, 0.0)
    centres = known.levels[known.rows][:, None] + gains
    return known.around(0.5 * known.noise[known.rows], centres, weights, gains, known.unsure)


def line(known: Material) -> RuleAnswers:
    """A straight line through other trials: the gain over level, recent gain and slowing rate.

    It is a ridge regression for each column. The spread is that of the errors that each row has
    when it is left out.
    """
    panel = known.panel
    counts_of = panel.reach.sum(axis=0)
    # Where few rows are known, the others rise from the last step with enough as is usual.
    last_one = int((counts_of >= _FEWEST_OF_LINE + 1).sum()) - 1
    if last_one < 0:
        return _none(known)
    columns = np.minimum(panel.query_columns, last_one)
    noise = float(np.median(known.noise))
    used = panel.reach.T.astype(float)
    counts = np.maximum(used.sum(axis=1), 1.0)[:, None]
    shape = used.shape
    inputs = np.stack(
        (
            np.broadcast_to(known.levels, shape),
            np.broadcast_to(known.gains, shape),
            known.slowing.T,
        ),
        axis=-1,
    )
    middle = np.einsum("cr,crf->cf", used, inputs) / counts
    inputs = inputs - middle[:, None]
    variance = np.einsum("cr,crf->cf", used, inputs**2) / counts
    spread = np.sqrt(variance + np.array([noise**2, noise**2, 1e-2]) + 1e-300)
    inputs = np.concatenate((np.ones((*shape, 1)), inputs / spread[:, None]), axis=2)
    weighted = inputs * used[..., None]
    inverse = np.linalg.inv(weighted.transpose(0, 2, 1) @ inputs + np.diag(_RIDGE))
    gains = np.where(panel.reach, panel.values - known.levels[:, None], 0.0).T
    factors = inverse @ (weighted.transpose(0, 2, 1) @ gains[..., None])
    expected = (inputs @ factors)[..., 0]
    leverage = np.einsum("crf,cfg,crg->cr", inputs, inverse, inputs)
    errors = (gains - expected) / np.maximum(1 - leverage, 0.2)
    wider = np.sqrt(1 + np.minimum(leverage[:, 0], 3.0))
    # A check is answered as if its row had been left out.
    rows = known.rows
    centre = panel.values[rows, columns] - errors[columns, rows]
    centre = np.where(rows == 0, known.levels[0] + expected[columns, 0], centre)
    more = known.usual_gains[rows, panel.query_columns + 1] - known.usual_gains[rows, columns + 1]
    centre += more
    rest = errors[columns] * np.where(rows == 0, wider[columns], 1.0)[:, None]
    weights = np.where(known.known, panel.reach.T[columns], 0.0)
    return known.around(np.zeros(len(rows)), centre[:, None] + rest, weights, np.zeros_like(rest))


def kin(known: Material) -> RuleAnswers:
    """The scores of the trials that were the same up to now and have like learning rates."""
    panel = known.panel
    own = panel.shared[known.rows]
    # Two that share some steps with a third share the lesser number of these with each other.
    together = np.minimum(own[:, None], panel.shared)
    together = np.where((known.rows == 0)[:, None], panel.shared, together)
    weights = np.where(together >= panel.last, known.likeness, 0.0)
    weights = np.where(weights.max(axis=1, keepdims=True) > 0.05, weights, 0.0)
    sizes = np.where(known.known, known.later - known.levels, 0.0)
    return known.around(np.zeros(len(own)), known.later, weights, sizes, known.unsure)


def drop(known: Material) -> RuleAnswers:
    """The level, and the gains of other trials since their rate dropped, as long after it."""
    panel, rows = known.panel, known.rows
    drops = [(np.empty(0), np.empty(0)) if each is None else each.drops() for each in panel.rates]
    events = [
        (row, step, size)
        for row in range(1, len(drops))
        for step, size in zip(*drops[row], strict=True)
        if panel.branches[row - 1][0][0] <= step < panel.ends[row]
    ][:MOST_EVENTS]
    coming = [
        (row, steps[steps >= panel.last], sizes[steps >= panel.last])
        for row, (steps, sizes) in enumerate(drops)
    ]
    coming = [each for each in coming if len(each[1])]
    if not events or not coming:
        return _none(known)
    next_step, next_size = np.full(len(drops), np.inf), np.zeros(len(drops))
    for row, steps, sizes in coming:
        next_step[row], next_size[row] = steps[0], sizes[0]
    lags = known.ahead - next_step[rows]
    asked = lags > 0
    lags = np.where(asked, lags, 0.0)
    of, at, size = map(np.array, zip(*events, strict=True))
    of = of.astype(int)
    gains = np.array(
        [
            np.interp(np.minimum(step + lags, panel.ends[row]), *panel.branches[row - 1])
            - np.interp(step - _JUST_BEFORE, *panel.branches[row - 1]).mean()
            for row, step, _ in events
        ]
    ).T
    alike = np.exp(-2 * np.abs(size - next_size[rows][:, None]))
    further = np.array([_between(drops[row][0], step, lags) for row, step, _ in events]).T
    own = np.array(
        [_between(drops[row][0], next_step[row], lag) for row, lag in zip(rows, lags, strict=True)]
    )
    alike *= np.exp(-2 * np.abs(further - own[:, None]))
    shares = np.minimum(panel.shared[of] / max(panel.last, 1.0), 1.0)
    usable = (panel.ends[of] - at >= 0.5 * lags[:, None]) & (of != rows[:, None]) & asked[:, None]
    weights = usable * alike * (0.2 + shares**2)
    levels = known.levels[rows][:, None]
    return known.around(known.noise[rows], levels + gains, weights, gains)


def _between(steps: Array, first: float, lags: Array) -> Array:
    """Return how many of some steps come after the first, within each lag of it."""
    later = np.searchsorted(steps, first + lags, side="left")
    number: Array = np.maximum(later - np.searchsorted(steps, first, side="right"), 0)
    return number


_JUST_BEFORE: Final = np.arange(3)
"""The scores before a drop whose mean is the level there, by their distance in steps."""

MOST_EVENTS: Final = 64
"""The largest number of drops of other trials that are looked at."""


def _none(known: Material) -> RuleAnswers:
    zeros = np.zeros((len(known.rows), 1))
    return RuleAnswers(zeros, zeros, np.ones(len(zeros)))


RULES: Final[dict[Callable[[Material], RuleAnswers], float]] = {
    anything: 0.07,
    last: 0.06,
    level: 0.06,
    power: 0.06,
    same: 0.06,
    gain: 0.06,
    near: 0.12,
    line: 0.09,
    kin: 0.36,
    drop: 0.24,
}
"""The rules, each with its prior weight: so many checks it counts as having won beforehand."""
