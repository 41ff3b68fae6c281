"""Repeats: every configuration is trained with several seeds, and judged by all of them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dasktune.algos.base import Inputs, Proposal, Tuner
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.errors import ConfigurationError, unknown
from dasktune.sequences.values import Arguments
from dasktune.space import Configuration, Space
from dasktune.types import (
    Assess,
    Decision,
    Extend,
    Finish,
    Metrics,
    Now,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
)


def _mean(values: Sequence[float]) -> float:
    # A sum that overflows is infinite, like the loss of a diverging trial.
    return sum(values) / len(values)


AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": _mean,
    "median": statistics.median,
    "worst": max,
}
"""The functions that make one loss of those of the repeats."""


class Repeats(Tuner):
    """Runs another tuner, and trains each of its trials `seeds` times, with different seeds.

    Trial i of the other tuner is the trials ``i * seeds`` up to ``(i + 1) * seeds - 1``. They
    have equal hyper-parameters, and 0, 1, ... is added to the study's training seed. The
    decisions of the other tuner for a trial are taken for all its repeats. It gets one report
    of a step when all repeats have reported there: each loss is the aggregate of the repeats'
    losses, infinite if one of them is. If a repeat fails, the trial has failed, and its other
    repeats are stopped.

    Parameters
    ----------
    tuner
        The other tuner, which must not be used on its own as well.
    seeds
        The number of repeats.
    aggregate
        ``"mean"``, ``"median"`` or ``"worst"``. Metrics that all repeats have are aggregated
        in the same way; with ``"worst"`` they are those of the repeat with the largest first
        loss.

    Raises
    ------
    ConfigurationError
        If `tuner` is no tuner, `seeds` is too small or the aggregate unknown.

    Examples
    --------
    >>> from dasktune.algos import Random
    >>> from dasktune.space import Float, Space
    >>> tuner = Repeats(Random(Space(lr=Float(0.1, 0.2)), trials=1, max_steps=9), seeds=2)
    >>> [(trial.trial, trial.seed) for trial in tuner.ask(1) if isinstance(trial, Register)]
    [(0, 0), (1, 1)]
    """

    def __init__(self, tuner: Tuner, seeds: int = 3, aggregate: str = "mean") -> None:
        check = Arguments("Repeats")
        self.seeds = check.whole("seeds", seeds)
        if not isinstance(tuner, Tuner):
            check.add(f"tuner must be a tuner, got {tuner!r}")
        if aggregate not in AGGREGATES:
            check.add(unknown("aggregate", aggregate, AGGREGATES))
        check.refuse()
        self.tuner = tuner
        self.aggregate = aggregate
        self.max_steps = tuner.max_steps
        # By trial of the other tuner and step: the reports of its repeats, until all are there.
        self._waiting: dict[int, dict[Step, dict[int, Report]]] = {}
        self._ended: set[int] = set()

    @property
    def searched_space(self) -> Space | None:
        """The space of the other tuner."""
        return self.tuner.searched_space

    @property
    def several_objectives(self) -> bool:  # type: ignore[override]
        """Whether the other tuner can be used with several objectives."""
        return self.tuner.several_objectives

    @property
    def metrics_needed(self) -> frozenset[str]:
        """The metrics that the other tuner needs."""
        return self.tuner.metrics_needed

    @property
    def value_bounds(self) -> tuple[float | None, float | None]:
        """The bounds of the other tuner."""
        return self.tuner.value_bounds

    def contradictions(self, metric: str) -> Iterator[str]:
        """Yield the contradictions of the other tuner."""
        yield from self.tuner.contradictions(metric)

    @property
    def to_begin(self) -> int | None:
        """The repeats of the trials that the other tuner would begin."""
        trials = self.tuner.to_begin
        return None if trials is None else self.seeds * trials

    # --------------------------------------------------------------- the protocol of tuners

    def ask(self, capacity: int) -> list[Decision]:
        """Return the decisions for `capacity` workers, one for each repeat of a trial."""
        return self._for_all(self.tuner.ask(math.ceil(capacity / self.seeds)))

    def tell(self, report: Report) -> list[Decision]:
        """Return the decisions after a report, if it is the last of the repeats at its step."""
        trial, repeat = divmod(report.trial, self.seeds)
        if trial in self._ended:
            return []
        waiting = self._waiting.setdefault(trial, {})
        reports = waiting.setdefault(report.step, {})
        reports[repeat] = report
        if len(reports) < self.seeds:
            return []
        del waiting[report.step]
        if not waiting:
            del self._waiting[trial]
        aggregate = self._as_one(trial, [reports[number] for number in range(self.seeds)])
        return self._for_all(self.tuner.tell(aggregate))

    def tell_failure(self, trial: int) -> list[Decision]:
        """Stop the other repeats, and return the decisions after the failure of their trial."""
        failed = trial // self.seeds
        if failed in self._ended:
            return []
        self._end(failed)
        others = [Stop(trial=number) for number in self._repeats_of(failed) if number != trial]
        return [*others, *self._for_all(self.tuner.tell_failure(failed))]

    def identity(self) -> dict[str, object]:
        """Return class, arguments and the other tuner's identity as JSON."""
        inner = self.tuner.identity()
        identity = {
            "tuner": "Repeats",
            "of": inner,
            "seeds": self.seeds,
            "aggregate": self.aggregate,
        }
        return {**identity, "trials": inner["trials"]} if "trials" in inner else identity

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON, with the other tuner's."""
        waiting = [
            [
                *(trial, step, repeat),
                *(_plain(enumerate(report.losses)), _plain(report.metrics.items())),
                *([] if report.now is None else [report.now.to_json()]),
            ]
            for trial, steps in self._waiting.items()
            for step, reports in steps.items()
            for repeat, report in reports.items()
        ]
        return {"tuner": self.tuner.snapshot(), "waiting": waiting, "ended": sorted(self._ended)}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Continue with the snapshot of a tuner of the same identity."""
        match snapshot:
            case {"tuner": dict(inner), "waiting": list(waiting), "ended": list(ended)}:
                self.tuner.restore(inner)
                self.max_steps = self.tuner.max_steps
                self._ended = set(ended)
                self._waiting = {}
                for trial, step, repeat, losses, metrics, *now in waiting:
                    reports = self._waiting.setdefault(trial, {}).setdefault(step, {})
                    reports[repeat] = Report(
                        trial=trial * self.seeds + repeat,
                        step=step,
                        metrics={name: float(value) for name, value in metrics},
                        losses=tuple(float(loss) for _, loss in losses),
                        now=Now.from_json(now[0]) if now else None,
                    )
            case _:
                raise ConfigurationError(f"not a snapshot of this tuner: {snapshot!r}")

    # --------------------------------------------------------- passed on to the other tuner

    def prepare(self, inputs: Inputs) -> None:
        """Pass the inputs on to the other tuner."""
        self.tuner.prepare(inputs)

    @property
    def learns(self) -> bool:
        """Whether the other tuner's sampler learns."""
        return self.tuner.learns

    @property
    def most_queued(self) -> int:
        """As many queued points as the other tuner takes."""
        return self.tuner.most_queued

    @property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """The configurations of the other tuner, each `seeds` times."""
        configurations = self.tuner.configurations
        if configurations is None:
            return None
        return tuple(
            replace(configuration, seed=seed)
            for configuration in configurations
            for seed in range(self.seeds)
        )

    @property
    def timed(self) -> bool:  # type: ignore[override]
        """Whether the other tuner decides by time."""
        return self.tuner.timed

    @property
    def due_seconds(self) -> float | None:
        """The next time at which the other tuner decides."""
        return self.tuner.due_seconds

    def tell_time(self, seconds: float) -> list[Decision]:
        """Return the decisions of the other tuner when its time has come."""
        return self._for_all(self.tuner.tell_time(seconds))

    def question(self, trial: int) -> Question:
        """Return the question of the other tuner about a trial."""
        return self.tuner.question(trial // self.seeds)

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Return the decisions after a prediction, unless its trial has ended."""
        of = trial // self.seeds
        return (
            [] if of in self._ended else self._for_all(self.tuner.tell_prediction(of, prediction))
        )

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models of the other tuner."""
        return self.tuner.model_weights

    def model_question(self, model: int) -> PriorityQuestion:
        """Return the question of the other tuner about a model."""
        return self.tuner.model_question(model)

    def tell_priority(self, model: int, priority: Priority | None) -> list[Decision]:
        """Return the decisions of the other tuner after the priority of a model."""
        return self._for_all(self.tuner.tell_priority(model, priority))

    def take_proposals(self) -> list[Proposal]:
        """Return the proposals of the other tuner in the last call."""
        return self.tuner.take_proposals()

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Pass the proposals of the first run on to the other tuner."""
        self.tuner.feed_proposals(proposals)

    def widened_from(self, identity: Mapping[str, object]) -> Repeats | None:
        """Return this tuner with the number of trials in `identity`; None if more differs."""
        inner = identity.get("of")
        narrow = self.tuner.widened_from(inner) if isinstance(inner, Mapping) else None
        if narrow is None:
            return None
        narrowed = Repeats(narrow, self.seeds, self.aggregate)
        return narrowed if json.loads(json.dumps(narrowed.identity())) == identity else None

    def widen(self, trials: int) -> list[Decision]:
        """Return the decisions that raise the number of the other tuner's trials."""
        decisions = self._for_all(self.tuner.widen(trials))
        self.max_steps = self.tuner.max_steps
        return decisions

    # --------------------------------------------------------------- a trial and its repeats

    def _repeats_of(self, trial: int) -> range:
        return range(trial * self.seeds, (trial + 1) * self.seeds)

    def _for_all(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Return the decisions for trials of the other tuner as decisions for their repeats."""
        repeated: list[Decision] = []
        for decision in decisions:
            if isinstance(decision, Finish | Assess):
                repeated.append(decision)
                continue
            if isinstance(decision, Stop):
                self._end(decision.trial)
            for repeat, number in enumerate(self._repeats_of(decision.trial)):
                repeated += self._for_one(decision, repeat, number)
        return repeated

    def _for_one(
        self, decision: Register | Extend | Stop | Rank | Predict, repeat: int, number: int
    ) -> list[Decision]:
        match decision:
            case Register():
                return [replace(decision, trial=number, seed=decision.seed * self.seeds + repeat)]
            case Extend():
                # The other tuner knows only of the slowest repeat; this one may be further.
                steps = self._waiting.get(decision.trial, {}).items()
                reached = max((step for step, waiting in steps if repeat in waiting), default=0)
                ahead = tuple(step for step in decision.reports if step > reached)
                if decision.until <= reached:
                    return []
                return [replace(decision, trial=number, reports=ahead)]
            case Predict():
                # All repeats have the same configuration: predict the first.
                return [replace(decision, trial=number)] if repeat == 0 else []
            case _:
                return [replace(decision, trial=number)]

    def _end(self, trial: int) -> None:
        self._ended.add(trial)
        self._waiting.pop(trial, None)

    def _as_one(self, trial: int, reports: list[Report]) -> Report:
        """Return the reports of all repeats at a step as one report of the other tuner's trial."""
        columns = zip(*(report.losses for report in reports), strict=True)
        return Report(
            trial=trial,
            step=reports[0].step,
            metrics=self._metrics_of(reports),
            losses=tuple(self._aggregated(column, math.inf) for column in columns),
            now=self._now_of(reports),
        )

    def _now_of(self, reports: list[Report]) -> Now | None:
        """Return the `Now` of a timed tuner, with one worker for each group of repeats."""
        known = [report.now for report in reports if report.now is not None]
        if not known:
            return None
        return Now(
            seconds=max(now.seconds for now in known),
            step_seconds=max(now.step_seconds for now in known),
            workers=max(1, max(now.workers for now in known) // self.seeds),
            between=self._between(known),
        )

    def _between(self, known: list[Now]) -> tuple[tuple[Step, tuple[float, ...]], ...]:
        """Return the losses at the steps in between that all repeats have measured."""
        losses = [dict(now.between) for now in known]
        common = [step for step in losses[0] if all(step in other for other in losses)]
        return tuple(
            (step, tuple(self._aggregated(each, math.inf) for each in columns))
            for step in common
            for columns in [zip(*(now[step] for now in losses), strict=True)]
        )

    def _metrics_of(self, reports: list[Report]) -> Metrics:
        if self.aggregate == "worst":
            return max(reports, key=lambda report: report.losses[:1]).metrics
        first, *others = (report.metrics for report in reports)
        names = [name for name in first if all(name in other for other in others)]
        columns = {name: [report.metrics[name] for report in reports] for name in names}
        return {name: self._aggregated(column, math.nan) for name, column in columns.items()}

    def _aggregated(self, values: Sequence[float], without: float) -> float:
        """Return the aggregate of finite values; `without` if one is not finite."""
        if not all(map(math.isfinite, values)):
            return without
        return AGGREGATES[self.aggregate](values)


def _plain(items: Iterable[tuple[object, float]]) -> list[list[object]]:
    """Return pairs as JSON, which has no infinite numbers."""
    return [[key, value if math.isfinite(value) else str(value)] for key, value in items]
