"""What a trial will come to, and how sure that is: its learning curve, predicted.

A curve is all that was measured on a trial's way through the plan, whoever trained it. What a
predictor makes of it is given back in the metric's own unit and direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from dasktune.algos.curves import Branch, Curve, Prediction, Predictor, predictor_of
from dasktune.algos.curves.curve import MOST_SIBLINGS, future_steps
from dasktune.algos.curves.observed import rates_of
from dasktune.algos.pop.allocation import Chances
from dasktune.algos.stopping import beyond_bounds
from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.database.schema import StageRow
from dasktune.types import Direction, Sequences, Step

INTERVALS = (0.5, 0.8, 0.95)
"""Probabilities of the intervals that are shown."""

Bounds = tuple[float | None, float | None]
"""The lowest and the highest value that a metric can have; None where there is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a trial may come to.

    Parameters
    ----------
    trial
        Its number.
    metric, direction
        What is predicted; all values are in its own unit.
    curve, prediction
        What a predictor was asked, and its answer: scores, of which larger ones are better.
    step_seconds
        What a step took on a worker so far; None if that was not measured.
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
            That of the value's being inside, such as 0.8.

        Raises
        ------
        ConfigurationError
            If it is not between 0 and 1.
        """
        if not 0 < probability < 1:
            raise ConfigurationError(f"probability must be between 0 and 1, got {probability!r}")
        pairs = self.prediction.interval(probability)
        ends = (sorted(map(self._turned, pair)) for pair in pairs)
        return tuple((low, high) for low, high in ends)

    def reached(self, target: float) -> Step | None:
        """Return the first measured step whose value is at least as good; None if none is."""
        score = self._score(target)
        return next((step for step, seen in self.curve.measured if seen >= score), None)

    def chances(self, target: float) -> tuple[float, ...]:
        """Return for each step the probability that the value there is at least as good.

        It is 0 for what is beyond the bounds of the metric.
        """
        score, most = self._score(target), self.curve.high
        if most is not None and score > most:
            return (0.0,) * len(self.steps)
        return self.prediction.chances(score)

    def chance(self, target: float) -> float:
        """Return the probability that the target is reached by the last of the steps.

        1 if it has been reached. Else the largest of `chances`: steps between which a curve
        rises and falls again may reach it more often.
        """
        return 1.0 if self.reached(target) is not None else max(self.chances(target))

    def expected_steps(self, target: float) -> float | None:
        """Return after how many more steps the target is reached, if it is: their mean.

        0 if it has been reached; None if there is no chance of it.

        References
        ----------
        Rasley et al., "HyperDrive", section 3.1.1: x = sum of m p_m, with p_m the growth of
        P(y(m) >= target) from one step to the next. Here it is divided by the sum of p_m, the
        prediction confidence p, which says how long it takes only where it is near 1. Between
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
        """Return the expected remaining time (ERT) on one worker; None if it is not known."""
        steps = self.expected_steps(target)
        return None if steps is None or self.step_seconds is None else steps * self.step_seconds

    def to_json(self, target: float | None = None) -> dict[str, object]:
        """Return it as a JSON document, with what is said of a target if there is one."""
        last = self.measured[-1]
        found: dict[str, object] = {
            "trial": self.trial,
            "metric": self.metric,
            "direction": self.direction.value,
            "step": last[0],
            "value": last[1],
            "max_steps": self.curve.max_steps,
            "steps": list(self.steps),
            "medians": list(self.medians),
            "intervals": {str(one): list(map(list, self.interval(one))) for one in INTERVALS},
        }
        if target is not None:
            found |= {
                "target": target,
                "reached": self.reached(target),
                "chances": list(self.chances(target)),
                "chance": self.chance(target),
                "expected_steps": self.expected_steps(target),
                "expected_seconds": self.expected_seconds(target),
            }
        return found

    def _turned(self, value: float) -> float:
        return turned(value, self.direction)

    def _score(self, target: float) -> float:
        if isinstance(target, bool) or not isinstance(target, int | float):
            raise ConfigurationError(f"target must be a number, got {target!r}")
        if not math.isfinite(target):
            raise ConfigurationError(f"target must be finite, got {target!r}")
        return self._turned(target)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveReader:
    """Reads trials' learning curves from a plan.

    Parameters
    ----------
    plan
        Has all trials and what was measured.
    records
        The trials by number.
    metric, direction
        What is read.
    bounds
        The metric's, in its own unit.
    rate
        The hyper-parameter that is the learning rate; as in `rates_of` if None.

    Raises
    ------
    ConfigurationError
        If bounds are not two ascending numbers.
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
        """Return all that is known of a trial's curve, also from others that share its way.

        Parameters
        ----------
        trial
            A trial that was trained here.
        until
            How far its learning rate is to be known, if that is further than it may be trained.

        Raises
        ------
        ConfigurationError
            If there is no such trial or learning rate, nothing finite was measured of it, or
            something beyond the bounds.
        """
        record = self._record(trial)
        steps, scores = self._scores(self.plan.nodes_of(trial))
        if not any(map(math.isfinite, scores)):
            raise ConfigurationError(
                f"trial {trial} has no finite {self.metric} yet: there is nothing to go by"
            )
        refuse(self._beyond_bounds(trial, steps, scores))
        low, high = self.bounds if self.direction is Direction.MAXIMIZE else self.bounds[::-1]
        return Curve(
            steps=steps,
            scores=scores,
            max_steps=record.max_steps,
            low=None if low is None or math.isinf(low) else turned(low, self.direction),
            high=None if high is None or math.isinf(high) else turned(high, self.direction),
            rates=self._rates(record.sequences, max(record.max_steps, until or 0)),
            siblings=tuple(self._siblings(trial)),
        )

    def _record(self, trial: int) -> TrialRecord:
        record = self.records.get(trial)
        if record is None:
            known = f"0 to {max(self.records)}" if self.records else "a study that has some"
            raise ConfigurationError(f"trial must be one of {known}, got {trial!r}")
        if not record.was_trained_here:
            raise ConfigurationError(f"trial {trial} was added with its result: it has no curve")
        if self.rate is not None and self.rate not in record.sequences:
            raise ConfigurationError(
                unknown("hyper-parameter", self.rate, sorted(record.sequences))
            )
        return record

    def _beyond_bounds(
        self, trial: int, steps: Iterable[Step], scores: Iterable[float]
    ) -> Iterator[str]:
        """Say which value was measured first that there cannot be."""
        every = (
            beyond_bounds(
                turned(score, self.direction),
                *self.bounds,
                metric=self.metric,
                where=f" at step {step} of trial {trial}",
            )
            for step, score in zip(steps, scores, strict=True)
        )
        yield from islice(chain.from_iterable(every), 1)

    def _scores(self, nodes: Iterable[Node]) -> tuple[tuple[Step, ...], tuple[float, ...]]:
        found = [
            (step, node.metrics[step].get(self.metric, math.nan))
            for node in nodes
            for step in sorted(node.metrics)
        ]
        scores = tuple(turned(value, self.direction) for _, value in found)
        return tuple(step for step, _ in found), scores

    def _siblings(self, trial: int) -> Iterator[Branch]:
        """Yield the curves of other trials that begin alike, each once."""
        mine = set(self.plan.nodes_of(trial))
        parting: dict[Node, Step] = {}
        for path in list(self.plan.paths.values()):  # a run may add to them meanwhile
            last = next((node for node in path.leaf.up() if node.metrics), None)
            if last is not None and last not in mine:
                parting[last] = next((node.stop for node in last.up() if node in mine), 0)
        alike = [(at, last) for last, at in parting.items() if at]
        for at, last in sorted(alike, key=lambda pair: (-pair[0], pair[1].number))[:MOST_SIBLINGS]:
            steps, scores = self._scores(reversed(list(last.up())))
            rates = self._rates(last.sequences, last.stop)
            yield Branch(at=at, steps=steps, scores=scores, rates=rates)

    def _rates(self, sequences: Sequences, until: Step) -> tuple[tuple[Step, float], ...]:
        ends = (one.end for one in sequences.values() if one.end is not None)
        return rates_of(sequences, min([until, *ends]), self.rate)


def outlook_of(
    reader: CurveReader,
    trial: int,
    *,
    steps: Step | Iterable[Step] | None = None,
    predictor: Predictor | str | None = None,
    step_seconds: float | None = None,
) -> Outlook:
    """Return what a trial may come to.

    Parameters
    ----------
    reader
        Reads its curve.
    trial
        Which.
    steps
        Future steps, ascending; up to its end if None.
    predictor
        Who predicts: as for `dasktune.algos.curves.predictor_of`.
    step_seconds
        As for `Outlook`.

    Raises
    ------
    ConfigurationError
        As for `CurveReader.curve` and `predictor_of`, or if steps are not ascending future
        ones, or none is left.
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
    return Outlook(
        trial=trial,
        metric=reader.metric,
        direction=reader.direction,
        curve=curve,
        prediction=predicts.predict(curve, future),
        step_seconds=step_seconds,
    )


def turned(value: float, direction: Direction) -> float:
    """Return the score of a value, which is better where it is larger; or the value of a score.

    Examples
    --------
    >>> turned(0.25, Direction.MINIMIZE), turned(0.0, Direction.MINIMIZE)
    (-0.25, 0.0)
    """
    return value + 0.0 if direction is Direction.MAXIMIZE else 0.0 - value


def seconds_of_steps(stages: Iterable[StageRow], trial: int) -> float | None:
    """Return what a step took on a worker, of a trial's own stages if there are any, else of all.

    Parameters
    ----------
    stages
        Attempts that ran.
    trial
        Which.
    """
    ended = [
        (one, one.ended - one.started) for one in stages if one.ended and one.started and one.steps
    ]
    mine = [pair for pair in ended if trial in pair[0].trials] or ended
    steps = sum(one.steps for one, _ in mine)
    return sum(seconds for _, seconds in mine) / steps if steps else None


def _steps_asked(steps: Step | Iterable[Step] | None) -> tuple[Step, ...] | None:
    if steps is None:
        return None
    found: tuple[Any, ...] = tuple(steps) if isinstance(steps, Iterable) else (steps,)
    whole = all(type(one) is int for one in found)
    if not found or not whole or any(a >= b for a, b in zip((0, *found), found, strict=False)):
        raise ConfigurationError(f"steps must be ascending whole numbers >= 1, got {steps!r}")
    return found


def _bounds_problems(bounds: Any) -> Iterator[str]:
    fits = isinstance(bounds, tuple | list) and len(bounds) == 2
    given: list[Any] = [one for one in bounds if one is not None] if fits else [None]
    numbers = all(type(one) in (int, float) and not math.isnan(one) for one in given)
    if not numbers or (len(given) == 2 and not given[0] < given[1]):
        yield f"bounds must be (lowest, highest) with lowest < highest, got {bounds!r}"
