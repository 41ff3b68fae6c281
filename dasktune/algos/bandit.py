"""Bandit: a trial is stopped when its best is too far below the best of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from dasktune.algos.base import Inputs
from dasktune.algos.sampled import Budget
from dasktune.algos.stopping import (
    Bounds,
    StoppingOptions,
    StoppingTuner,
    checked_bounds,
    reports_of,
    score_bounds,
    share_of,
)
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Report, Step

BOUNDARIES = 10
"""Boundaries of a trial unless `every` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditOptions(StoppingOptions):
    """The arguments of `Bandit`."""

    slack: float
    bounds: Bounds | None


@dataclass(slots=True)
class BestLosses:
    """The memory of `Bandit`.

    Parameters
    ----------
    best
        By trial its best loss, if that is finite.
    range
        The bounds of the scores.

    Attributes
    ----------
    best_of_all
        The least of `best`.
    """

    best: dict[int, float] = field(default_factory=dict)
    range: Bounds | None = None
    best_of_all: float = field(init=False)

    def __post_init__(self) -> None:
        self.best_of_all = min(self.best.values(), default=math.inf)

    def count(self, trial: int, losses: list[float]) -> float:
        """Count further losses of a trial; return its best."""
        best = min(self.best.get(trial, math.inf), *losses)
        if best < math.inf:
            self.best[trial] = best
            self.best_of_all = min(self.best_of_all, best)
        return best


class Bandit(StoppingTuner):
    """Stops a trial whose best so far, with some slack, is no better than the best of all.

    At each boundary a trial goes on if ``job_best * (1 + slack) > global_best``: both are the
    best measured values at any step so far, of this trial and of all. It also goes on if its
    best is the best of all. It is stopped if its value there is NaN or infinite, and some
    trial has had a finite one.

    The rule is for a metric that is larger the better and not negative, such as an accuracy.
    Three other cases follow from it:

    - With `bounds`, values are first scaled from the worst bound, 0, to the best, 1, whatever
      their sign and direction. Give them for rewards.
    - For a metric that gets better downwards, such as a loss or an error, a trial goes on if
      ``job_best < global_best * (1 + slack)``.
    - Without bounds, a negative value to maximise is a loss of that size, and a negative
      value to minimise is a gain of that size: the sign of `global_best` decides which.
      Once that is 0, only trials that are as good go on.

    Parameters
    ----------
    space, trials, max_steps, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    slack
        Epsilon: by how much a trial's best value is assumed to be better, as a share of it.
    every
        Steps from one boundary to the next; None for a tenth of `max_steps`.
    bounds
        ``(low, high)``: the range of the metric, in its own unit and whatever its direction; a
        value beyond a bound counts as the bound.
    grace
        First step at which a trial may be stopped; None for its first boundary.

    References
    ----------
    The action elimination of Sparks et al., "Automating Model Search for Large Scale Machine
    Learning" (TuPAQ), as Rasley et al., "HyperDrive", section 5.3, apply it: slack 0.5, a
    boundary each 10 of about 100 epochs, rewards from -500 to 300.
    """

    timed: ClassVar[bool] = True
    options: BanditOptions
    rule: BestLosses

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        slack: float = 0.5,
        every: Step | None = None,
        bounds: tuple[float, float] | None = None,
        grace: Step | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        options = BanditOptions(
            **reports_of(check, budget, every, grace, reports=BOUNDARIES),
            slack=check.real("slack", slack),
            bounds=checked_bounds(check, bounds),
        )
        if options.slack < 0:
            check.add(f"slack must be >= 0, got {slack}")
        super().__init__(space, budget, options, sampler=sampler, check=check)

    def prepare(self, inputs: Inputs) -> None:
        """Receive the inputs; the direction of the metric turns the bounds."""
        super().prepare(inputs)
        low, high = score_bounds(self.options.bounds or (None, None), inputs)
        self.rule.range = None if low is None or high is None else (low, high)

    def new_rule(self) -> BestLosses:
        """Return the memory before the first report."""
        return BestLosses()

    def stops(self, report: Report) -> bool:
        """Return whether the trial is too far from the best of all."""
        best = self.rule.count(report.trial, [loss for _, loss in report.seen])
        if self.rule.best_of_all == math.inf:
            return False
        return report.loss == math.inf or not self._is_near(best)

    def _is_near(self, best: float) -> bool:
        """Return whether a trial with this best loss may still become the best of all."""
        of_all, factor = self.rule.best_of_all, 1 + self.options.slack
        if best <= of_all:
            return True
        if self.rule.range is not None:
            share, share_of_all = (share_of(-loss, self.rule.range) for loss in (best, of_all))
            return share == share_of_all or share * factor > share_of_all
        return best * factor < of_all if of_all < 0 else best < of_all * factor
