"""Stopping rules: every trial is trained in full unless its reports on the way stop it.

The last part holds the range of a metric, as users give it and as scores have it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

from dasktune._numbers import real_of
from dasktune.algos.base import Inputs
from dasktune.algos.sampled import Budget, IndependentTrials, Options
from dasktune.errors import InternalError
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Direction, Extend, Rank, Report, Step, Stop

REPORTS = 20
"""Reports of a trial unless `every` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingOptions(Options):
    """The arguments that all stopping tuners have.

    Parameters
    ----------
    every, grace
        As for `StoppingTuner`, as numbers of steps.
    """

    every: Step
    grace: Step


def reports_of(
    check: Arguments, budget: Budget, every: Step | None, grace: Step | None, reports: int = REPORTS
) -> dict[str, Step]:
    """Return `every` and `grace` as they are checked; without `every` a trial has `reports`."""
    steps = check.whole("every", max(1, budget.max_steps // reports) if every is None else every)
    return {"every": steps, "grace": check.whole("grace", steps if grace is None else grace)}


class StoppingTuner(IndependentTrials):
    """Trains `trials` configurations to `max_steps`, and stops a trial when its rule says so.

    A kind implements `new_rule` and `stops`, and annotates `rule` with its own dataclass.

    Parameters
    ----------
    space, trials, max_steps, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    every
        Steps from one report to the next; None for a twentieth of `max_steps`.
    grace
        First step at which a trial may be stopped; None for its first report.
    """

    state = ("open", "rule")
    options: StoppingOptions
    rule: Any
    """The memory of the rule."""

    @abstractmethod
    def new_rule(self) -> Any:
        """Return the memory of the rule before the first report."""

    @abstractmethod
    def stops(self, report: Report) -> bool:
        """Count a report, and return whether its trial should be stopped there."""

    def begin(self) -> None:
        """Begin before the first trial."""
        super().begin()
        self.rule = self.new_rule()

    def on_report(self, report: Report) -> list[Decision]:
        """Return `Stop` if the rule says so; `Finish` after the last trial."""
        if report.trial not in self.open:
            return []
        stops = self.stops(report)
        if report.step >= self.max_steps:
            return self.on_failure(report.trial)
        if not stops or report.step < self.options.grace:
            # Its worker still holds the model: it goes on before another trial begins.
            return [Rank(trial=report.trial, priority=report.step)]
        return [Stop(trial=report.trial), *self.on_failure(report.trial)]

    def request(self, trial: int) -> Extend:
        """Extend a trial to `max_steps`, with a report after every `every` steps."""
        reports = tuple(range(self.options.every, self.max_steps, self.options.every))
        return Extend(trial=trial, until=self.max_steps, reports=reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileOptions(StoppingOptions):
    """The arguments of `PercentileStopping`.

    Parameters
    ----------
    percentile, min_trials
        As for `PercentileStopping`.
    """

    percentile: float
    min_trials: int


@dataclass(frozen=True, slots=True)
class LossesSoFar:
    """The memory of `PercentileStopping`.

    Parameters
    ----------
    losses
        By trial: the number, the mean and the least of its losses.
    averages
        By step: the running averages of all trials there, ascending.
    """

    losses: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    averages: dict[Step, list[float]] = field(default_factory=dict)


class PercentileStopping(StoppingTuner):
    """Stops a trial whose best loss is worse than a percentile of the others' averages.

    A trial that reports at step s is compared with the others that have reported there, if
    they are at least `min_trials`. Its own best loss up to s is compared with the percentile
    of their running averages, where a running average is the mean of a trial's losses up to
    s. The trial is stopped if its best is strictly worse. Trials that were stopped or failed
    count at the steps that they reported. An infinite loss makes the average infinite, and
    its own trial is stopped there, whatever its best.

    Parameters
    ----------
    space, trials, max_steps, every, grace, seed, sampler
        As for `StoppingTuner`.
    percentile
        Above 0 and below 100, interpolated linearly: with 25 a trial must be better than all
        but the best quarter of averages.
    min_trials
        How many others must have reported at a step before a trial is stopped there.

    References
    ----------
    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", section 3.2.2, for
    the median. It compares only with completed trials, which stops nothing while all run side
    by side; Ray Tune's median rule compares with all that have come as far.
    """

    options: PercentileOptions
    rule: LossesSoFar

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        percentile: float = 50.0,
        every: Step | None = None,
        grace: Step | None = None,
        min_trials: int = 5,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        options = PercentileOptions(
            **reports_of(check, budget, every, grace),
            percentile=check.real("percentile", percentile),
            min_trials=check.whole("min_trials", min_trials),
        )
        if not 0 < options.percentile < 100:
            check.add(f"percentile must be > 0 and < 100, got {percentile}")
        super().__init__(space, budget, options, sampler=sampler, check=check)

    def new_rule(self) -> LossesSoFar:
        """Return the memory before the first report."""
        return LossesSoFar()

    def stops(self, report: Report) -> bool:
        """Return whether the trial's best is worse than the percentile of the others."""
        count, mean, best = self.rule.losses.get(report.trial, (0, 0.0, math.inf))
        count, best = count + 1, min(best, report.loss)
        if mean < math.inf:
            # Exact for equal losses: the rounding of a sum must not make one worse than itself.
            mean += (report.loss - mean) / count
        self.rule.losses[report.trial] = count, mean, best
        others = self.rule.averages.setdefault(report.step, [])
        is_worse = len(others) >= self.options.min_trials and (
            report.loss == math.inf or best > percentile_of(others, self.options.percentile)
        )
        insort(others, mean)
        return is_worse


class MedianStopping(PercentileStopping):
    """Stops a trial whose best loss is worse than the median of the others' running averages.

    It is `PercentileStopping` with the percentile 50.

    Parameters
    ----------
    space, trials, max_steps, every, grace, min_trials, seed, sampler
        As for `PercentileStopping`.

    References
    ----------
    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", section 3.2.2.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        every: Step | None = None,
        grace: Step | None = None,
        min_trials: int = 5,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            every=every,
            grace=grace,
            min_trials=min_trials,
            seed=seed,
            sampler=sampler,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatienceOptions(StoppingOptions):
    """The arguments of `PatienceStopping`.

    Parameters
    ----------
    patience, min_delta
        As for `PatienceStopping`.
    """

    patience: Step
    min_delta: float


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The memory of `PatienceStopping`.

    Parameters
    ----------
    best
        By trial: its best loss, and the step of it.
    """

    best: dict[int, tuple[float, Step]] = field(default_factory=dict)


class PatienceStopping(StoppingTuner):
    """Stops a trial whose loss has not become better for `patience` steps.

    A loss is better if it is lower than the best so far by more than `min_delta`. The first
    finite loss is better than none, and a trial without one for `patience` steps is stopped.
    Other trials do not matter.

    Parameters
    ----------
    space, trials, max_steps, every, grace, seed, sampler
        As for `StoppingTuner`.
    patience
        Steps without a better loss after which a trial is stopped.
    min_delta
        By how much a loss must be lower to count; at least 0.
    """

    options: PatienceOptions
    rule: BestSoFar

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        patience: Step,
        min_delta: float = 0.0,
        every: Step | None = None,
        grace: Step | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        options = PatienceOptions(
            **reports_of(check, budget, every, grace),
            patience=check.whole("patience", patience),
            min_delta=check.real("min_delta", min_delta),
        )
        if options.min_delta < 0:
            check.add(f"min_delta must be >= 0, got {min_delta}")
        super().__init__(space, budget, options, sampler=sampler, check=check)

    def new_rule(self) -> BestSoFar:
        """Return the memory before the first report."""
        return BestSoFar()

    def stops(self, report: Report) -> bool:
        """Return whether the last progress was `patience` steps ago."""
        best, step = self.rule.best.get(report.trial, (math.inf, 0))
        if report.loss < best - self.options.min_delta:
            best, step = report.loss, report.step
        self.rule.best[report.trial] = best, step
        return report.step - step >= self.options.patience


def percentile_of(ascending: list[float], percentile: float) -> float:
    """Return a percentile of sorted numbers, interpolated linearly; the last may be infinite.

    Examples
    --------
    >>> percentile_of([1.0, 2.0, 4.0, math.inf], 50.0), percentile_of([1.0, 2.0, 4.0], 25.0)
    (3.0, 1.5)
    """
    share, whole = _share_of_all(percentile)
    place, rest = divmod(share * (len(ascending) - 1), whole)
    low, high = ascending[place], ascending[place + (rest > 0)]
    return low if low == high else low + (high - low) * (rest / whole)


@cache
def _share_of_all(percentile: float) -> tuple[int, int]:
    """Return a percentile as a ratio of whole numbers, exactly as it is written."""
    return (Fraction(repr(percentile)) / 100).as_integer_ratio()


# ------------------------------------------------------------------------ the range of a metric

Bounds = tuple[float, float]
"""The lowest and the highest value that a metric can have."""

Sides = tuple[float | None, float | None]
"""The same; None where there is no bound."""

HELD = "a value beyond them counts as the bound"
"""The rule for bounds, as identities name it; before, it counted as it was."""


def checked_bounds(check: Arguments, bounds: object) -> Bounds | None:
    """Return the bounds of a user, in the unit of the metric; `check` keeps the problems."""
    match bounds:
        case None:
            return None
        case (low, high) if -math.inf < real_of(low) < real_of(high) < math.inf:
            return real_of(low), real_of(high)
        case _:
            check.add(f"bounds must be (low, high), finite and low < high, got {bounds!r}")
            return None


def checked_sides(check: Arguments, bounds: object) -> Sides:
    """Return the bounds of a user, of which either may be None; `check` keeps the problems."""
    match bounds:
        case None | (None, None):
            return None, None
        case (low, None) if math.isfinite(real_of(low)):
            return real_of(low), None
        case (None, high) if math.isfinite(real_of(high)):
            return None, real_of(high)
        case (low, high) if not math.isnan(real_of(low) + real_of(high)):
            return checked_bounds(check, bounds) or (None, None)
        case _:
            check.add(
                f"bounds must be (low, high), each finite or None for no bound, got {bounds!r}"
            )
            return None, None


def beyond_bounds(
    value: float, low: float | None, high: float | None, *, metric: str, where: str
) -> Iterator[str]:
    """Yield the problem of a finite value beyond the bounds, if it is beyond them.

    Examples
    --------
    >>> list(beyond_bounds(40.0, 0.0, None, metric="loss", where=" at step 1"))
    []
    >>> list(beyond_bounds(40.0, 0.0, 1.0, metric="accuracy", where=" at step 1"))
    ['bounds must hold all values of accuracy, 0 to 1, got 40 at step 1']
    """
    if held(value, low, high) != value and math.isfinite(value):
        yield (
            f"bounds must hold all values of {metric}, {range_text((low, high))}, got "
            f"{value:.10g}{where}"
        )


def range_text(bounds: Sides) -> str:
    """Return bounds as words.

    Examples
    --------
    >>> range_text((0.0, None))
    '0 to inf'
    """
    low, high = bounds
    return f"{-math.inf if low is None else low:g} to {math.inf if high is None else high:g}"


def held(score: float, low: float | None, high: float | None) -> float:
    """Return a score, or the bound that it lies beyond; one that is not finite stays.

    Examples
    --------
    >>> held(40.0, 0.0, 1.0), held(40.0, 0.0, None), held(-math.inf, 0.0, None)
    (1.0, 40.0, -inf)
    """
    if not math.isfinite(score):
        return score
    score = score if low is None else max(score, low)
    return score if high is None else min(score, high)


def score_bounds(bounds: Sides, inputs: Inputs) -> Sides:
    """Return the bounds as scores, of which larger ones are better.

    Parameters
    ----------
    bounds
        The bounds of the metric.
    inputs
        As for `dasktune.algos.base.Tuner.prepare`, with the ``directions`` of a timed tuner.

    Examples
    --------
    >>> score_bounds((0.5, None), {"directions": ["minimize"]})
    (None, -0.5)
    """
    if bounds == (None, None):
        return bounds
    match inputs:
        case {"directions": [str(first), *_]}:
            low, high = bounds
            if Direction(first) is Direction.MAXIMIZE:
                return bounds
            return None if high is None else -high, None if low is None else -low
        case _:
            raise InternalError(f"bounds need the direction of the metric, got {inputs!r}")


def share_of(score: float, bounds: Bounds) -> float:
    """Return where a score lies between its bounds: 0 at the worst, 1 at the best.

    Min-max normalisation [Rasley et al., "HyperDrive", section 6.3]; a score beyond a bound
    counts as the bound.

    Examples
    --------
    >>> share_of(-100.0, (-500.0, 300.0)), share_of(-900.0, (-500.0, 300.0))
    (0.5, 0.0)
    """
    low, high = bounds
    return (min(max(score, low), high) - low) / (high - low)
