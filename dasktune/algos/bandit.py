"""Bandit: a trial is given up when its best is too far below the best of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from dasktune.algos.base import Inputs
from dasktune.algos.bounds import Bounds, checked_bounds, score_bounds, share_of
from dasktune.algos.stopping import StoppingTuner
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Report, Step

BOUNDARIES = 10
"""Boundaries of a trial unless `every` is given."""


class Bandit(StoppingTuner):
    """Stops a trial whose best so far, with some slack, is no better than the best of all.

    At each boundary a trial goes on if ``job_best * (1 + slack) > global_best``: both are the
    best values at any step so far that was measured, of this trial and of all. It goes on as
    well if its best is the best of all; and it is stopped if its value there is NaN or
    infinite and any has been finite.

    The rule is for values that are larger the better and not negative, such as an accuracy.
    Three other cases follow from it:

    - With `bounds`, values are first taken to their place between the worst bound, 0, and the
      best, 1, whatever their sign and direction. Give them for rewards.
    - A metric that gets better downwards, such as a loss or an error, goes on if
      ``job_best < global_best * (1 + slack)``.
    - Without bounds, a negative value that is to grow is a loss of that size, and a negative
      value that is to fall is a gain of that size: the sign of `global_best` says which.
      Once that is 0, only trials that are as good go on.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running.
    trials
        How many configurations to draw.
    max_steps
        How far a trial is trained that is not stopped.
    slack
        How much better a trial may be thought than it was, as a share of its best: epsilon.
    every
        Steps from one boundary to the next; None for a tenth of `max_steps`.
    bounds
        ``(low, high)``: the range that the metric can have, in its own unit and whatever its
        direction; what lies beyond counts as at its end.
    grace
        First step at which a trial may be stopped; None for its first boundary.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations, one for each worker at a time if it learns; None draws at
        random.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or a sequence ends before `max_steps`.

    References
    ----------
    The action elimination of Sparks et al., "Automating Model Search for Large Scale Machine
    Learning" (TuPAQ), as Rasley et al., "HyperDrive", section 5.3, apply it: slack 0.5, a
    boundary each 10 of about 100 epochs, rewards from -500 to 300.
    """

    timed: ClassVar[bool] = True
    _range: Bounds | None

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
        self.slack = check.real("slack", slack)
        self.bounds = checked_bounds(check, bounds)
        if self.slack < 0:
            check.add(f"slack must be >= 0, got {slack}")
        if every is None:
            every = max(1, Arguments("").whole("max_steps", max_steps) // BOUNDARIES)
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            every=every,
            grace=grace,
            seed=seed,
            sampler=sampler,
            check=check,
            more={
                "slack": self.slack,
                "bounds": None if self.bounds is None else list(self.bounds),
            },
        )

    def prepare(self, inputs: Inputs) -> None:
        """Take what any tuner takes, and the direction."""
        super().prepare(inputs)
        self._range = score_bounds(self.bounds, inputs)

    def forget(self) -> None:
        """No trial has reported."""
        self._range = None
        self._best: dict[int, float] = {}
        self._best_of_all = math.inf

    def stops(self, report: Report) -> bool:
        """Return whether the trial is too far from the best of all."""
        losses = [loss for _, loss in report.seen]
        best = min(self._best.get(report.trial, math.inf), *losses)
        self._best[report.trial] = best
        self._best_of_all = min(self._best_of_all, best)
        if self._best_of_all == math.inf:
            return False
        return report.loss == math.inf or not self._is_near(best)

    def _is_near(self, best: float) -> bool:
        """Whether a trial whose best loss this is may still become the best of all."""
        of_all, factor = self._best_of_all, 1 + self.slack
        if best <= of_all:
            return True
        if self._range is not None:
            share, share_of_all = share_of(-best, self._range), share_of(-of_all, self._range)
            return share == share_of_all or share * factor > share_of_all
        return best * factor < of_all if of_all < 0 else best < of_all * factor

    def rule_json(self) -> dict[str, object]:
        """Return the best loss of each trial that had a finite one, and the range of scores."""
        best = [[trial, loss] for trial, loss in self._best.items() if loss < math.inf]
        return {"best": best, "range": self._range and list(self._range)}

    def take_rule_json(self, state: Mapping[str, object]) -> None:
        """Take over the best loss of each trial, and the range of the scores."""
        match state:
            case {"best": list(best), "range": list() | None as ends}:
                self._best = dict(best)
                self._best_of_all = min(self._best.values(), default=math.inf)
                self._range = None if ends is None else (ends[0], ends[1])
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")
