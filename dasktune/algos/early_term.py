"""EarlyTerm: a trial is given up when it will hardly come to be the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from dasktune.algos.base import Inputs
from dasktune.algos.bounds import Bounds, checked_bounds, score_bounds
from dasktune.algos.curves.curve import Prediction, Predictor, Question
from dasktune.algos.curves.named import checked_predictor
from dasktune.algos.curves.observed import ObservedCurves
from dasktune.algos.independent import IndependentTrials
from dasktune.errors import ConfigurationError, refuse
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Predict, Rank, Register, Report, Step, Stop

BOUNDARIES = 4
"""Boundaries of a trial unless `every` is given."""


class EarlyTerm(IndependentTrials):
    """Stops a trial whose predicted final value has little chance to be the best so far.

    At each boundary a predictor is asked for the value at `max_steps`. It is stopped if the
    probability that this is at least as good as the best value so far, of all trials at any
    step that was measured, is less than `delta`. Training goes on until the prediction comes,
    which is then compared with what is the best by then; it does not count if the trial itself
    has come to that best since. A trial that has passed a boundary in the meantime is asked about
    again at once. Where no prediction can be made it goes on, and is asked about at its next
    boundary.

    A trial whose value at a boundary is NaN or infinite is stopped without asking, if any
    value has been finite.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running.
    trials
        How many configurations to draw.
    max_steps
        How far a trial is trained that is not stopped.
    every
        Steps from one boundary to the next; None for a quarter of `max_steps`.
    delta
        The probability below which a trial is stopped, above 0 and at most 1.
    predictor
        Predicts learning curves: one of `dasktune.algos.curves`, also by its name, or one of
        your own; None for `PriorFitted`.
    bounds
        ``(low, high)``: the range that the metric can have, in its own unit and whatever its
        direction, if it is known. Predictions keep to it.
    seed
        Decides what is drawn, and what the predictor draws; it has nothing to do with the
        seed of the training.
    sampler
        Proposes configurations, one for each worker at a time if it learns; None draws at
        random.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, the predictor is none, or a sequence ends before
        `max_steps`; when the first value is reported, if it lies beyond the bounds.

    References
    ----------
    The predictive termination criterion of Domhan et al., "Speeding up Automatic Hyperparameter
    Optimization of Deep Neural Networks by Extrapolation of Learning Curves", as Rasley et
    al., "HyperDrive", section 5.3, apply it in parallel: P(y_m >= y_best | y_1:n) < delta, with
    delta 0.05 and a boundary each 30 of about 120 epochs.
    """

    timed: ClassVar[bool] = True
    _range: Bounds | None

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        every: Step | None = None,
        delta: float = 0.05,
        predictor: Predictor | str | None = None,
        bounds: tuple[float, float] | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        steps = Arguments("").whole("max_steps", max_steps)
        self.every = check.whole("every", max(1, steps // BOUNDARIES) if every is None else every)
        self.delta = check.real("delta", delta)
        self.bounds = checked_bounds(check, bounds)
        self.predictor = checked_predictor(check, predictor)
        if not 0 < self.delta <= 1:
            check.add(f"delta must be > 0 and <= 1, got {delta}")
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more={
                "every": self.every,
                "delta": self.delta,
                "bounds": None if self.bounds is None else list(self.bounds),
                "predictor": self.predictor.identity(),
            },
        )

    def prepare(self, inputs: Inputs) -> None:
        """Take what any tuner takes, and the direction."""
        super().prepare(inputs)
        self._range = score_bounds(self.bounds, inputs)

    def begin(self) -> None:
        """Nothing is open yet, and nothing known."""
        super().begin()
        self._range = None
        self._curves = ObservedCurves()
        self._best = -math.inf
        self._asked: set[int] = set()

    def draw(self) -> Register:
        """Return the next trial, whose curve is kept from now on."""
        trial = super().draw()
        self._curves.register(trial)
        return trial

    def request(self, trial: Register) -> Extend:
        """Return that it is trained in full, and looked at each boundary."""
        reports = tuple(range(self.every, self.max_steps, self.every))
        return Extend(trial=trial.trial, until=self.max_steps, reports=reports)

    # ----------------------------------------------------------------------- what it decides

    def told(self, report: Report) -> list[Decision]:
        """Ask for a prediction at a boundary; `Finish` after the last trial."""
        trial = report.trial
        if trial not in self.open:
            return []
        if self._best == -math.inf:
            refuse(self._beyond_bounds(report))
        self._observe(report)
        if report.step >= self.max_steps:
            return self.failed(trial)
        if report.loss == math.inf and self._best > -math.inf:
            return self._stop(trial)
        # Its model is at hand: it goes on before another one begins.
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

    def failed(self, trial: int) -> list[Decision]:
        """Return `Finish` when all the others have ended."""
        self._asked.discard(trial)
        return super().failed(trial)

    def question(self, trial: int) -> Question:
        """Return the question for the value at the end of a trial."""
        low, high = self._range or (None, None)
        return Question(
            predictor=self.predictor,
            curve=self._curves.curve(trial, max_steps=self.max_steps, low=low, high=high),
            steps=(self.max_steps,),
            seed=self.seed + trial,
        )

    def _beyond_bounds(self, report: Report) -> Iterator[str]:
        """Say that a value is one that the bounds do not allow."""
        if self._range is None or self.bounds is None or not math.isfinite(report.loss):
            return
        if not self._range[0] <= -report.loss <= self._range[1]:
            low, high = self.bounds
            yield (
                f"bounds must hold all values of the metric, {low:g} to {high:g}, got "
                f"{dict(report.metrics)} at step {report.step} of trial {report.trial}"
            )

    def _observe(self, report: Report) -> None:
        for step, loss in report.seen:
            self._curves.observe(report.trial, step, -loss)
            self._best = max(self._best, -loss)

    def _ask_about(self, trial: int) -> list[Decision]:
        """Ask for a prediction, unless one is waited for, or there is nothing to go by."""
        if trial in self._asked or not any(map(math.isfinite, self._curves.scores(trial))):
            return []
        self._asked.add(trial)
        return [Predict(trial=trial)]

    def _is_hopeless(self, trial: int, prediction: Prediction) -> bool:
        seen = zip(self._curves.steps(trial), self._curves.scores(trial), strict=True)
        if any(step > prediction.after and score >= self._best for step, score in seen):
            return False
        return prediction.chances(self._best)[-1] < self.delta

    def _stop(self, trial: int) -> list[Decision]:
        return [Stop(trial=trial), *self.failed(trial)]

    # -------------------------------------------------------------------------- its state

    def state_json(self) -> dict[str, object]:
        """Return what is under way, seen and asked."""
        return {
            "open": sorted(self.open),
            "range": self._range and list(self._range),
            "curves": self._curves.to_json(),
            "asked": sorted(self._asked),
        }

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over what was under way, seen and asked."""
        match state:
            case {
                "open": list(opened),
                "range": list() | None as ends,
                "curves": list(curves),
                "asked": list(asked),
            }:
                self.open = set(opened)
                self._range = None if ends is None else (ends[0], ends[1])
                self._curves = ObservedCurves.from_json(curves)
                seen = (
                    score for one in range(self.registered) for score in self._curves.scores(one)
                )
                self._best = max(seen, default=-math.inf)
                self._asked = set(asked)
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")
