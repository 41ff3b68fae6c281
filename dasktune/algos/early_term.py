"""EarlyTerm: a trial is stopped when it has little chance to become the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from dasktune.algos.base import Inputs
from dasktune.algos.curves.curve import Prediction, Predictor, Question
from dasktune.algos.curves.named import checked_predictor
from dasktune.algos.curves.observed import ObservedCurves, checked_rate
from dasktune.algos.sampled import (
    IF_SET,
    Budget,
    IndependentTrials,
    Options,
)
from dasktune.algos.state import Readers
from dasktune.algos.stopping import HELD, Sides, checked_sides, held, range_text, score_bounds
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Predict, Rank, Register, Report, Step, Stop

BOUNDARIES = 4
"""Boundaries of a trial unless `every` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyTermOptions(Options):
    """The arguments of `EarlyTerm`."""

    every: Step
    delta: float
    bounds: Sides | None
    predictor: Predictor
    rate: str | None = field(default=None, metadata=IF_SET)
    beyond: str | None = field(default=None, metadata=IF_SET)
    window: int | None = field(default=None, metadata=IF_SET)


class EarlyTerm(IndependentTrials):
    """Stops a trial whose predicted final value has little chance to be the best so far.

    At each boundary a predictor is asked for the value at `max_steps`. The trial is stopped
    if the probability is less than `delta` that this value is at least as good as the best
    so far: the best mean over a `window` of measurements, of all trials at any step. Training
    goes on until the prediction comes, which is then compared with the best of that moment; it
    does not count if the trial itself has reached that best since. A trial that has passed a
    boundary meanwhile is asked about again at once. Where no prediction can be made the trial
    goes on, and is asked about at its next boundary.

    A trial whose value at a boundary is NaN or infinite is stopped without a question, if
    any value has been finite.

    Parameters
    ----------
    space, trials, max_steps, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    every
        Steps from one boundary to the next; None for a quarter of `max_steps`.
    delta
        The probability below which a trial is stopped, above 0 and at most 1.
    predictor
        Predicts learning curves: one of `dasktune.algos.curves`, also by its name, or one of
        your own; None for `Mixture`.
    bounds
        ``(low, high)``: the range of the metric, as far as it is known, in its own unit and
        whatever its direction; None where there is no bound, such as ``(0, None)`` for a loss.
        Predictions stay within it. A later value beyond a bound counts as the bound.
    window
        Measurements in a row whose mean counts as a value so far. 1, the rule of the paper, is
        for metrics with little noise. The best of many noisy returns is a lucky one, which no
        trial has a chance to end with: the rule then stops all of them.
    rate
        Name of the learning rate, for the predictor, if it is neither ``lr`` nor
        ``learning_rate``.
    seed
        Decides the draws of the sampler and of the predictor.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, the predictor is none, or a sequence ends before
        `max_steps`; at the first finite value of all trials, if it lies beyond the bounds.

    References
    ----------
    The predictive termination criterion of Domhan et al., "Speeding up Automatic Hyperparameter
    Optimization of Deep Neural Networks by Extrapolation of Learning Curves", as Rasley et
    al., "HyperDrive", section 5.3, apply it in parallel: P(y_m >= y_best | y_1:n) < delta, with
    delta 0.05 and a boundary each 30 of about 120 epochs.
    """

    timed: ClassVar[bool] = True
    state = ("open", "_range", "_curves", "_asked")
    options: EarlyTermOptions
    _range: Sides | None
    _curves: ObservedCurves
    _asked: set[int]
    _best: float

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        every: Step | None = None,
        delta: float = 0.05,
        predictor: Predictor | str | None = None,
        bounds: tuple[float | None, float | None] | None = None,
        rate: str | None = None,
        window: int = 1,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        every = max(1, budget.max_steps // BOUNDARIES) if every is None else every
        sides = checked_sides(check, bounds)
        is_bounded = sides != (None, None)
        options = EarlyTermOptions(
            every=check.whole("every", every),
            delta=check.real("delta", delta),
            bounds=sides if is_bounded else None,
            predictor=checked_predictor(check, predictor),
            rate=checked_rate(check, rate, space),
            beyond=HELD if is_bounded else None,
            window=None if window == 1 else check.whole("window", window),
        )
        if not 0 < options.delta <= 1:
            check.add(f"delta must be > 0 and <= 1, got {delta}")
        super().__init__(space, budget, options, sampler=sampler, check=check)

    def prepare(self, inputs: Inputs) -> None:
        """Receive the inputs; the direction of the metric turns the bounds."""
        super().prepare(inputs)
        bounds = self.options.bounds
        self._range = None if bounds is None else score_bounds(bounds, inputs)

    def begin(self) -> None:
        """Begin before the first trial."""
        super().begin()
        self._range = None
        self._curves = ObservedCurves(self.options.rate)
        self._asked = set()

    def derive(self) -> None:
        """Set the best mean so far, which follows from the curves."""
        trials = range(self.registered)
        scores = map(self._curves.scores, trials)
        self._best = max(
            (self._mean(each[:end]) for each in scores for end in range(1, len(each) + 1)),
            default=-math.inf,
        )

    def _mean(self, scores: list[float]) -> float:
        """Return the mean over the window of the last scores; the worst while they are fewer."""
        window = self.options.window or 1
        return sum(scores[-window:]) / window if len(scores) >= window else -math.inf

    @property
    def readers(self) -> Readers:
        """The reader of curves, which knows the learning rate."""
        return {ObservedCurves: partial(ObservedCurves.from_json, rate=self.options.rate)}

    def draw(self) -> Register:
        """Return the next trial, whose curve is observed from now on."""
        trial = super().draw()
        self._curves.register(trial)
        return trial

    def request(self, trial: int) -> Extend:
        """Extend a trial to `max_steps`, with a report at each boundary."""
        reports = tuple(range(self.options.every, self.max_steps, self.options.every))
        return Extend(trial=trial, until=self.max_steps, reports=reports)

    def on_report(self, report: Report) -> list[Decision]:
        """Ask for a prediction at a boundary; `Finish` after the last trial."""
        trial = report.trial
        if trial not in self.open:
            return []
        if self._curves.best == -math.inf:
            self._check_bounds(report)
        sides = (None, None) if self.options.beyond is None else self._range or (None, None)
        for step, loss in report.seen:
            self._curves.observe(trial, step, held(-loss, *sides))
            self._best = max(self._best, self._mean(self._curves.scores(trial)))
        if report.step >= self.max_steps:
            return self.on_failure(trial)
        if report.loss == math.inf and self._curves.best > -math.inf:
            return self._stop(trial)
        # Its worker still holds the model: it goes on before another trial begins.
        return [Rank(trial=trial, priority=report.step), *self._ask_about(trial)]

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Stop the trial if it has no chance; else ask again if it has come further."""
        if trial not in self.open:
            return []
        self._asked.discard(trial)
        if prediction is None:
            return []
        if self._is_hopeless(trial, prediction):
            return self._stop(trial)
        has_gone_on = self._curves.steps(trial)[-1] > prediction.after
        return self._ask_about(trial) if has_gone_on else []

    def on_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` when all other trials have ended."""
        self._asked.discard(trial)
        return super().on_failure(trial)

    def question(self, trial: int) -> Question:
        """Return the question for the value at the end of a trial."""
        low, high = self._range or (None, None)
        return Question(
            predictor=self.options.predictor,
            curve=self._curves.curve(trial, max_steps=self.max_steps, low=low, high=high),
            steps=(self.max_steps,),
            seed=self.seed + trial,
        )

    @property
    def value_bounds(self) -> tuple[float | None, float | None]:
        """The bounds of the metric."""
        return self.options.bounds or (None, None)

    def _check_bounds(self, report: Report) -> None:
        bounds = self.options.bounds
        if bounds is not None and held(-report.loss, *(self._range or bounds)) != -report.loss:
            raise ConfigurationError(
                f"bounds must hold all values of the metric, {range_text(bounds)}, got "
                f"{dict(report.metrics)} at step {report.step} of trial {report.trial}"
            )

    def _ask_about(self, trial: int) -> list[Decision]:
        """Ask for a prediction, unless one is under way or no score is finite."""
        if trial in self._asked or not any(map(math.isfinite, self._curves.scores(trial))):
            return []
        self._asked.add(trial)
        return [Predict(trial=trial)]

    def _is_hopeless(self, trial: int, prediction: Prediction) -> bool:
        best = self._best
        seen = zip(self._curves.steps(trial), self._curves.scores(trial), strict=True)
        if any(step > prediction.after and score >= best for step, score in seen):
            return False
        return prediction.chances(best)[-1] < self.options.delta

    def _stop(self, trial: int) -> list[Decision]:
        return [Stop(trial=trial), *self.on_failure(trial)]
