"""Predictions of the future of trials, with their uncertainty, from their learning curves.

A curve has all values that were measured on a trial's path through the plan, by any trial. A
prediction has the metric's own unit and direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any

from dasktune._engine.trials import TrialRecord
from dasktune._numbers import real_of, whole_of
from dasktune.algos.curves import Curve, Prediction, Predictor, predictor_of
from dasktune.algos.curves.curve import MOST_OTHERS, future_steps
from dasktune.algos.curves.observed import ObservedCurves, rates_of
from dasktune.algos.pop.allocation import Chances
from dasktune.algos.stopping import beyond_bounds
from dasktune.errors import ConfigurationError, refuse, shown, unknown
from dasktune.graph.plan import SearchPlan
from dasktune.storage.database.rows import StageRow
from dasktune.types import Direction, Register, Sequences, Step

PARTS = (0.1, 0.2, 0.4)
"""The parts of a trial's steps after which its prediction is checked."""

MOST_CHECKS = 50
"""The largest number of predictions that are checked: the last ones."""

INTERVALS = (0.5, 0.8, 0.95)
"""Probabilities of the intervals in figures and tables."""

Bounds = tuple[float | None, float | None]
"""The lowest and the highest value that a metric can have; None where there is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPrediction:
    """The predicted future of a trial.

    Parameters
    ----------
    trial
        Number of the trial.
    metric, direction
        The predicted metric; all values have its unit.
    curve, prediction
        The question to the predictor, and its answer, in scores: larger is better.
    step_seconds
        Mean seconds of a step on a worker so far; None if that was not measured.
    """

    trial: int
    metric: str
    direction: Direction
    curve: Curve
    prediction: Prediction
    step_seconds: float | None = None

    @property
    def measured(self) -> tuple[tuple[Step, float], ...]:
        """The finite values that were measured, with their steps."""
        return tuple((step, self._turned(score)) for step, score in self.curve.measured)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The future steps at which values are predicted."""
        return self.prediction.steps

    @property
    def medians(self) -> tuple[float, ...]:
        """The median value at each of them."""
        return tuple(map(self._turned, self.prediction.medians))

    def interval(self, probability: float) -> tuple[tuple[float, float], ...]:
        """Return for each step the lowest and highest value of the middle interval.

        Parameters
        ----------
        probability
            Probability that the value is inside, such as 0.8.

        Raises
        ------
        ConfigurationError
            If `probability` is not between 0 and 1.
        """
        if not 0 < probability < 1:
            raise ConfigurationError(f"probability must be between 0 and 1, got {probability!r}")
        pairs = self.prediction.interval(probability)
        ends = (sorted(map(self._turned, pair)) for pair in pairs)
        return tuple((low, high) for low, high in ends)

    def reached(self, target: float) -> Step | None:
        """Return the first measured step whose value is at least as good, or None."""
        score = self._score(target)
        return next((step for step, seen in self.curve.measured if seen >= score), None)

    def chances(self, target: float) -> tuple[float, ...]:
        """Return for each step the probability that the value there is at least as good.

        It is 0 for a target beyond the bounds of the metric.
        """
        score, most = self._score(target), self.curve.high
        if most is not None and score > most:
            return (0.0,) * len(self.steps)
        return self.prediction.chances(score)

    def chance(self, target: float) -> float:
        """Return the probability that the target is reached by the last of the steps.

        1 if it has been reached; else the largest of `chances`. A curve that rises and falls
        between these steps may reach it more often.
        """
        return 1.0 if self.reached(target) is not None else max(self.chances(target))

    def expected_steps(self, target: float) -> float | None:
        """Return the mean number of further steps to the target, if it is reached.

        0 if it has been reached; None if its probability is 0.

        References
        ----------
        Rasley et al., "HyperDrive", section 3.1.1: x = sum of m p_m, with p_m the growth of
        P(y(m) >= target) from one step to the next. Here it is divided by the sum of p_m, the
        prediction confidence p, without which x would tell the time only where p is near 1. Between
        predicted steps the probability grows evenly (`Chances`).
        """
        if self.reached(target) is not None:
            return 0.0
        chance = self.chance(target)
        if chance <= 0:
            return None
        chances = Chances.of(self.prediction, self._score(target))
        return chances.expected_steps(self.steps[-1]) / chance

    def expected_seconds(self, target: float) -> float | None:
        """Return the expected remaining time (ERT) in seconds on one worker, if it is known."""
        steps = self.expected_steps(target)
        return None if steps is None or self.step_seconds is None else steps * self.step_seconds

    def to_json(self, target: float | None = None) -> dict[str, object]:
        """Return a JSON document, with the chances of a target if one is given."""
        last = self.measured[-1]
        document: dict[str, object] = {
            "trial": self.trial,
            "metric": self.metric,
            "direction": self.direction.value,
            "step": last[0],
            "value": last[1],
            "max_steps": self.curve.max_steps,
            "steps": list(self.steps),
            "medians": list(self.medians),
            "intervals": {str(each): list(map(list, self.interval(each))) for each in INTERVALS},
        }
        if target is not None:
            document |= {
                "target": target,
                "reached": self.reached(target),
                "chances": list(self.chances(target)),
                "chance": self.chance(target),
                "expected_steps": self.expected_steps(target),
                "expected_seconds": self.expected_seconds(target),
            }
        return document

    def _turned(self, value: float) -> float:
        return turned(value, self.direction)

    def _score(self, target: float) -> float:
        number = real_of(target)
        if not math.isfinite(number):
            raise ConfigurationError(f"target must be a finite number, got {shown(target)}")
        return self._turned(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """How often predictions of a study held.

    Parameters
    ----------
    held
        Of how many the 80% band held the last score.
    """

    predictions: int
    held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveReader:
    """Reads trials' learning curves from a plan with measured metrics.

    `bounds` are in the metric's own unit; `rate` names the learning rate, as in `rates_of` if None.

    Raises
    ------
    ConfigurationError
        If `bounds` are not two ascending numbers.
    """

    plan: SearchPlan
    records: Mapping[int, TrialRecord]
    metric: str
    direction: Direction
    bounds: Bounds = (None, None)
    rate: str | None = None

    def __post_init__(self) -> None:
        refuse(_bounds_problems(self.bounds))

    def curve(self, trial: int, until: Step | None = None) -> Curve:
        """Return a trial's curve: all values on its path, also those that other trials measured.

        Its siblings are found as a running tuner finds them (`ObservedCurves`), so that both
        predict the same from the same values. The learning rate may be needed `until` a step beyond
        the trial's end.

        Raises
        ------
        ConfigurationError
            If there is no such trial or learning rate, the trial has no finite value, or has one
            beyond the bounds.
        """
        record = self._record(trial)
        scores = self._scores(record)
        if not any(math.isfinite(score) for _, score in scores):
            raise ConfigurationError(
                f"trial {trial} has no finite {self.metric} yet: there is nothing to go by"
            )
        refuse(self._beyond_bounds(trial, scores))
        curves = ObservedCurves(self.rate)
        start, known = _start(record), self._known
        alike = [other for other in known if _start(other) == start]
        latest = [other for other in known if other not in alike][-MOST_OTHERS:]
        for other in (*alike, *latest):
            curves.register(_registered(other))
            for step, score in self._scores(other):
                curves.observe(other.number, step, score)
        low, high = self._limits
        curve = curves.curve(trial, max_steps=record.max_steps, low=low, high=high)
        return replace(
            curve, rates=self._rates(record.sequences, max(record.max_steps, until or 0))
        )

    @property
    def _known(self) -> list[TrialRecord]:
        """The trials that were trained here, with this learning rate; by their numbers."""
        return [
            record
            for record in list(self.records.values())  # a run may add to them meanwhile
            if record.was_trained_here and record.number in self.plan.paths
            if self.rate is None or self.rate in record.sequences
        ]

    @property
    def _limits(self) -> Bounds:
        """The bounds of scores."""
        low, high = self.bounds if self.direction is Direction.MAXIMIZE else self.bounds[::-1]
        return (
            None if low is None or math.isinf(low) else turned(low, self.direction),
            None if high is None or math.isinf(high) else turned(high, self.direction),
        )

    def checks(self, most: int = MOST_CHECKS) -> Iterator[tuple[Curve, Step, float]]:
        """Yield curves as they were known, each with its last step and the score there.

        Each trial is asked about after `PARTS` of its steps, when the trials of lower numbers
        are known to their ends: a study does not keep what was known when. The last trials
        come last.
        """
        curves = ObservedCurves(self.rate)
        asked = []
        low, high = self._limits
        known = self._known[-MOST_OTHERS - most :]
        for record in known:
            curves.register(_registered(record))
            scores, place = self._scores(record), 0
            for part in PARTS:
                while place < len(scores) and scores[place][0] <= part * scores[-1][0]:
                    curves.observe(record.number, *scores[place])
                    place += 1
                seen = any(math.isfinite(score) for _, score in scores[:place])
                if seen and place < len(scores) and math.isfinite(scores[-1][1]):
                    curve = curves.curve(
                        record.number, max_steps=record.max_steps, low=low, high=high
                    )
                    asked.append((curve, *scores[-1]))
            for step, score in scores[place:]:
                curves.observe(record.number, step, score)
        yield from asked[-most:]

    def _record(self, trial: int) -> TrialRecord:
        record = self.records.get(trial)
        if record is None:
            known = f"0 to {max(self.records)}" if self.records else "a study that has some"
            raise ConfigurationError(f"trial must be one of {known}, got {trial!r}")
        if not record.was_trained_here:
            raise ConfigurationError(f"trial {trial} was added with its result: it has no curve")
        if self.rate is not None and self.rate not in record.sequences:
            names = {name for each in self.records.values() for name in each.sequences}
            reason = unknown("hyper-parameter", self.rate, sorted(names))
            if self.rate in names:
                own = ", ".join(sorted(record.sequences))
                reason = f"trial {trial} must have the hyper-parameter {self.rate!r}; it has {own}"
            raise ConfigurationError(reason)
        return record

    def _beyond_bounds(self, trial: int, scores: Iterable[tuple[Step, float]]) -> Iterator[str]:
        """Yield the problem of the first value that the bounds exclude."""
        problems = (
            beyond_bounds(
                turned(score, self.direction),
                *self.bounds,
                metric=self.metric,
                where=f" at step {step} of trial {trial}",
            )
            for step, score in scores
        )
        yield from islice(chain.from_iterable(problems), 1)

    def _scores(self, record: TrialRecord) -> list[tuple[Step, float]]:
        """Return the scores on the path of a trial by step, NaN where the metric is missing."""
        return [
            (step, turned(node.metrics[step].get(self.metric, math.nan), self.direction))
            for node in self.plan.nodes_of(record.number)
            for step in sorted(node.metrics)
        ]

    def _rates(self, sequences: Sequences, until: Step) -> tuple[tuple[Step, float], ...]:
        ends = (sequence.end for sequence in sequences.values() if sequence.end is not None)
        return rates_of(sequences, min([until, *ends]), self.rate)


def _registered(record: TrialRecord) -> Register:
    return Register(
        trial=record.number,
        sequences=record.sequences,
        max_steps=record.max_steps,
        seed=record.seed,
    )


def _start(record: TrialRecord) -> tuple[object, ...]:
    """Return the values and the seed of a trial's first step, which siblings have in common."""
    values = {name: repr(sequence(0)) for name, sequence in record.sequences.items()}
    return record.seed, sorted(values.items())


def predict_trial(
    reader: CurveReader,
    trial: int,
    *,
    steps: Step | Iterable[Step] | None = None,
    predictor: Predictor | str | None = None,
    step_seconds: float | None = None,
) -> TrialPrediction:
    """Predict the future of a trial at ascending steps; up to its end if None.

    Raises
    ------
    ConfigurationError
        As for `CurveReader.curve` and `predictor_of`, or if `steps` are not ascending
        future steps, or no step is left.
    """
    predicts = predictor_of(predictor)
    asked = _steps_asked(steps)
    curve = reader.curve(trial, asked[-1] if asked else None)
    last = curve.last_step
    if asked is None and last >= curve.max_steps:
        value = turned(curve.measured[-1][1], reader.direction)
        raise ConfigurationError(
            f"trial {trial} is at its end, step {last}, with {reader.metric} {value:.6g}: only "
            "steps beyond it can be predicted, if they are asked for"
        )
    if asked is not None and asked[0] <= last:
        raise ConfigurationError(
            f"steps of trial {trial} must be after the last measured one, {last}, got {asked[0]}"
        )
    future = future_steps(last, curve.max_steps) if asked is None else asked
    return TrialPrediction(
        trial=trial,
        metric=reader.metric,
        direction=reader.direction,
        curve=curve,
        prediction=predicts.predict(curve, future),
        step_seconds=step_seconds,
    )


def check_predictions(reader: CurveReader, predictor: Predictor | str | None = None) -> Checks:
    """Return how often the predictor's last predictions held, of those that can be checked.

    See `CurveReader.checks` for what is asked.
    """
    predicts = predictor_of(predictor)
    held = []
    for curve, step, score in reader.checks():
        ((low, high),) = predicts.predict(curve, (step,)).interval(0.8)
        held.append(low <= score <= high)
    return Checks(predictions=len(held), held=sum(held))


def turned(value: float, direction: Direction) -> float:
    """Return the score of a value, of which larger is better; or the value of a score.

    Examples
    --------
    >>> turned(0.25, Direction.MINIMIZE), turned(0.0, Direction.MINIMIZE)
    (-0.25, 0.0)
    """
    return value + 0.0 if direction is Direction.MAXIMIZE else 0.0 - value


def seconds_of_steps(stages: Iterable[StageRow], trial: int) -> float | None:
    """Return the mean seconds of a step on a worker, if a stage has ended.

    Only the stages of the trial count, if it has any.
    """
    ended = [
        (stage, stage.ended - stage.started)
        for stage in stages
        if stage.ended and stage.started and stage.steps
    ]
    own = [pair for pair in ended if trial in pair[0].trials] or ended
    steps = sum(stage.steps for stage, _ in own)
    return sum(seconds for _, seconds in own) / steps if steps else None


def _steps_asked(steps: Step | Iterable[Step] | None) -> tuple[Step, ...] | None:
    if steps is None:
        return None
    given = tuple(steps) if isinstance(steps, Iterable) else (steps,)
    asked = tuple(whole for step in given if (whole := whole_of(step)) is not None)
    if not asked or len(asked) < len(given) or any(a >= b for a, b in pairwise(asked)):
        raise ConfigurationError(f"steps must be ascending whole numbers >= 1, got {steps!r}")
    return asked


def _bounds_problems(bounds: Any) -> Iterator[str]:
    fits = isinstance(bounds, tuple | list) and len(bounds) == 2
    given: list[Any] = [bound for bound in bounds if bound is not None] if fits else [None]
    numbers = not any(math.isnan(real_of(bound)) for bound in given)
    if not numbers or (len(given) == 2 and not given[0] < given[1]):
        yield f"bounds must be (lowest, highest) with lowest < highest, got {bounds!r}"
