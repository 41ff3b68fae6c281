"""Repeats: every configuration is trained with several seeds, and judged by all of them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dasktune.algos.base import Inputs, Proposal, Tuner
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.errors import ConfigurationError, unknown
from dasktune.sequences.values import Arguments
from dasktune.space import Configuration
from dasktune.types import (
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
    # A sum that overflows is infinite, which is what a tuner expects of such a loss.
    return sum(values) / len(values)


AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "mean": _mean,
    "median": statistics.median,
    "worst": max,
}
"""How one loss is made of those of the repeats."""


class Repeats(Tuner):
    """Runs another tuner, and trains each of its trials `seeds` times, with different seeds.

    Trial i of the other tuner is the trials ``i * seeds`` up to ``(i + 1) * seeds - 1``, with
    equal hyper-parameters and 0, 1, ... added to the study's training seed. What the other
    tuner decides for a trial goes for all its repeats. It is told of a step when all repeats
    have reported there, and then once: each loss is the aggregate of the repeats', infinite
    if one of them is. If a repeat fails, the trial has failed, and its others are stopped.

    Parameters
    ----------
    tuner
        What decides. It must not be used on its own as well.
    seeds
        How many repeats.
    aggregate
        ``"mean"``, ``"median"`` or ``"worst"``. Metrics are aggregated likewise, each that
        all repeats have; with ``"worst"`` they are those of the repeat with the largest first
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
    >>> [(one.trial, one.seed) for one in tuner.ask(1) if isinstance(one, Register)]
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
        # By trial of the other tuner and step: what its repeats reported, until all have.
        self._waiting: dict[int, dict[Step, dict[int, Report]]] = {}
        self._ended: set[int] = set()

    @property
    def several_objectives(self) -> bool:  # type: ignore[override]
        """Whether the other tuner can be used with more than one."""
        return self.tuner.several_objectives

    @property
    def to_begin(self) -> int | None:
        """The repeats of those that the other tuner would begin."""
        trials = self.tuner.to_begin
        return None if trials is None else self.seeds * trials

    # ----------------------------------------------------------------- what a tuner must do

    def ask(self, capacity: int) -> list[Decision]:
        """Return what the other tuner has for as many workers as there are groups of repeats."""
        return self._for_all(self.tuner.ask(math.ceil(capacity / self.seeds)))

    def tell(self, report: Report) -> list[Decision]:
        """Return what follows from a report if it is the last of the repeats at its step."""
        trial, repeat = divmod(report.trial, self.seeds)
        if trial in self._ended:
            return []
        waiting = self._waiting.setdefault(trial, {})
        told = waiting.setdefault(report.step, {})
        told[repeat] = report
        if len(told) < self.seeds:
            return []
        del waiting[report.step]
        if not waiting:
            del self._waiting[trial]
        one = self._as_one(trial, [told[number] for number in range(self.seeds)])
        return self._for_all(self.tuner.tell(one))

    def tell_failure(self, trial: int) -> list[Decision]:
        """Stop the other repeats, and return what follows from the failure of them all."""
        failed = trial // self.seeds
        if failed in self._ended:
            return []
        self._end(failed)
        others = [Stop(trial=number) for number in self._repeats_of(failed) if number != trial]
        return [*others, *self._for_all(self.tuner.tell_failure(failed))]

    def identity(self) -> dict[str, object]:
        """Return class, arguments and the other tuner's identity as JSON."""
        inner = self.tuner.identity()
        found = {"tuner": "Repeats", "of": inner, "seeds": self.seeds, "aggregate": self.aggregate}
        return {**found, "trials": inner["trials"]} if "trials" in inner else found

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON, with the other tuner's."""
        waiting = [
            [
                *(trial, step, repeat),
                *(_plain(enumerate(one.losses)), _plain(one.metrics.items())),
                *([] if one.now is None else [one.now.to_json()]),
            ]
            for trial, steps in self._waiting.items()
            for step, told in steps.items()
            for repeat, one in told.items()
        ]
        return {"tuner": self.tuner.snapshot(), "waiting": waiting, "ended": sorted(self._ended)}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Take over the state that a tuner of the same identity had."""
        match snapshot:
            case {"tuner": dict(inner), "waiting": list(waiting), "ended": list(ended)}:
                self.tuner.restore(inner)
                self._ended = set(ended)
                self._waiting = {}
                for trial, step, repeat, losses, metrics, *now in waiting:
                    told = self._waiting.setdefault(trial, {}).setdefault(step, {})
                    told[repeat] = Report(
                        trial=trial * self.seeds + repeat,
                        step=step,
                        metrics={name: float(value) for name, value in metrics},
                        losses=tuple(float(loss) for _, loss in losses),
                        now=Now.from_json(now[0]) if now else None,
                    )
            case _:
                raise ConfigurationError(f"not a snapshot of this tuner: {snapshot!r}")

    # ----------------------------------------------------------- what the other tuner knows

    def prepare(self, inputs: Inputs) -> None:
        """Give the other tuner what is known before the start."""
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
        """One per trial, those of the other tuner `seeds` times each."""
        found = self.tuner.configurations
        if found is None:
            return None
        return tuple(replace(one, seed=seed) for one in found for seed in range(self.seeds))

    @property
    def timed(self) -> bool:  # type: ignore[override]
        """Whether the other tuner decides by time."""
        return self.tuner.timed

    @property
    def due_seconds(self) -> float | None:
        """When the other tuner wants to be told of the time."""
        return self.tuner.due_seconds

    def tell_time(self, seconds: float) -> list[Decision]:
        """Tell the other tuner."""
        return self._for_all(self.tuner.tell_time(seconds))

    def question(self, trial: int) -> Question:
        """Return what the other tuner wants to know of a trial."""
        return self.tuner.question(trial // self.seeds)

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Tell the other tuner, unless its trial has ended."""
        of = trial // self.seeds
        return (
            [] if of in self._ended else self._for_all(self.tuner.tell_prediction(of, prediction))
        )

    def take_proposals(self) -> list[Proposal]:
        """Return what the other tuner's sampler proposed in the last call."""
        return self.tuner.take_proposals()

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Give the other tuner what was proposed before."""
        self.tuner.feed_proposals(proposals)

    def widened_from(self, identity: Mapping[str, object]) -> Repeats | None:
        """Return this tuner with the fewer trials that `identity` has, if it is that one."""
        inner = identity.get("of")
        narrow = self.tuner.widened_from(inner) if isinstance(inner, Mapping) else None
        if narrow is None:
            return None
        found = Repeats(narrow, self.seeds, self.aggregate)
        return found if json.loads(json.dumps(found.identity())) == identity else None

    def widen(self, trials: int) -> list[Decision]:
        """Go on with more trials of the other tuner: `trials` in all."""
        return self._for_all(self.tuner.widen(trials))

    # ---------------------------------------------------------------------- one and many

    def _repeats_of(self, trial: int) -> range:
        return range(trial * self.seeds, (trial + 1) * self.seeds)

    def _for_all(self, decisions: Iterable[Decision]) -> list[Decision]:
        """Return decisions for the other tuner's trials as decisions for their repeats."""
        found: list[Decision] = []
        for decision in decisions:
            if isinstance(decision, Finish):
                found.append(decision)
                continue
            if isinstance(decision, Stop):
                self._end(decision.trial)
            for repeat, number in enumerate(self._repeats_of(decision.trial)):
                found += self._for_one(decision, repeat, number)
        return found

    def _for_one(
        self, decision: Register | Extend | Stop | Rank | Predict, repeat: int, number: int
    ) -> list[Decision]:
        match decision:
            case Register():
                return [replace(decision, trial=number, seed=decision.seed * self.seeds + repeat)]
            case Extend():
                # A repeat may have come further than the slowest, which the tuner knows of.
                steps = self._waiting.get(decision.trial, {}).items()
                reached = max((step for step, told in steps if repeat in told), default=0)
                reports = tuple(step for step in decision.reports if step > reached)
                ahead = decision.until <= reached
                return [] if ahead else [replace(decision, trial=number, reports=reports)]
            case Predict():
                # They are of one configuration: the first speaks for all.
                return [replace(decision, trial=number)] if repeat == 0 else []
            case _:
                return [replace(decision, trial=number)]

    def _end(self, trial: int) -> None:
        self._ended.add(trial)
        self._waiting.pop(trial, None)

    def _as_one(self, trial: int, told: list[Report]) -> Report:
        """Return the reports of all repeats at a step as one of the other tuner's trial."""
        columns = zip(*(report.losses for report in told), strict=True)
        return Report(
            trial=trial,
            step=told[0].step,
            metrics=self._metrics_of(told),
            losses=tuple(self._aggregated(column, math.inf) for column in columns),
            now=self._now_of(told),
        )

    def _now_of(self, told: list[Report]) -> Now | None:
        """Return what a timed tuner is told: as many of its trials run as groups of repeats can."""
        known = [report.now for report in told if report.now is not None]
        if not known:
            return None
        return Now(
            seconds=max(one.seconds for one in known),
            step_seconds=max(one.step_seconds for one in known),
            workers=max(1, max(one.workers for one in known) // self.seeds),
            between=self._between(known),
        )

    def _between(self, known: list[Now]) -> tuple[tuple[Step, tuple[float, ...]], ...]:
        """Return the losses at the steps on the way that all repeats have measured."""
        found = [dict(one.between) for one in known]
        common = [step for step in found[0] if all(step in other for other in found)]
        return tuple(
            (step, tuple(self._aggregated(each, math.inf) for each in columns))
            for step in common
            for columns in [zip(*(one[step] for one in found), strict=True)]
        )

    def _metrics_of(self, told: list[Report]) -> Metrics:
        if self.aggregate == "worst":
            return max(told, key=lambda report: report.losses[:1]).metrics
        first, *others = (report.metrics for report in told)
        names = [name for name in first if all(name in other for other in others)]
        columns = {name: [report.metrics[name] for report in told] for name in names}
        return {name: self._aggregated(column, math.nan) for name, column in columns.items()}

    def _aggregated(self, values: Sequence[float], without: float) -> float:
        """Return the aggregate of finite values; `without` if one of them is not."""
        if not all(map(math.isfinite, values)):
            return without
        return AGGREGATES[self.aggregate](values)


def _plain(items: Iterable[tuple[object, float]]) -> list[list[object]]:
    """Return pairs as JSON, which has no infinite numbers."""
    return [[key, value if math.isfinite(value) else str(value)] for key, value in items]
