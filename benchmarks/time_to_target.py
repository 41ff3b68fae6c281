"""Time to a target on recorded curves: POP next to Bandit, EarlyTerm and full runs.

As in HyperDrive's simulations, all policies see the same configurations in the same order, and
many orders are tried: those that hold a configuration which reaches the target. A run ends with
the first value as good as the target. It may take as long as training every configuration in
full takes at most, on so many slots; one that has not reached the target by then, or has nothing
left to train, counts with all of that time.

The oracle knows the curves: it trains the configuration that gets there soonest, from the start
of the run. Nothing can be faster, so its times bound how much one policy can gain on another.

Where learning rates drop, ``own_stage`` and those of `curve_families`, POP runs with
``ends_poor=True``, too, and medians over all studies of a source are compared. A made-up study
has few configurations: each is one order.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import curve_families
import numpy as np
import recorded
import targets
from figures import Figure, main
from numpy.typing import NDArray
from recorded import RecordedSet
from targets import METRIC, NamedTrace, shuffled

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.algos.base import Tuner
from dasktune.algos.curves import Prediction, Question
from dasktune.algos.samplers import GivenSource
from dasktune.traces.trace import CONFIGURATION

TRIALS, SHORT_TRIALS = 100, 20
ORDERS, SHORT_ORDERS = 25, 2
SLOTS, SHORT_SLOTS = (4, 8, 16), (4,)

BOUNDARIES, LATE_BOUNDARIES = 10, 4
"""How often Bandit and EarlyTerm look at a configuration: EarlyTerm less often, but for returns.

That is HyperDrive's: 10 and 30 of about 100 epochs. POP's is its default, a twentieth.
"""

ENDS_POOR = "POP, ends poor"
LATER = "EarlyTerm, later"
"""EarlyTerm for noisy returns that rise late: a first check half-way, with a window of `WINDOW`."""

WINDOW = 10
"""Returns whose mean counts as a value so far."""

ORACLE = "Oracle"
"""What is told how all curves end."""

SCHEDULES = ("own_stage", "made_drops", "made_ends")
"""How the sources begin whose learning rates drop."""

MADE = "made"
"""How the sources begin whose studies are made up: each is one order."""

SOONER = {"made_ends": 1 / 1.5}
"""Bounds of POP's median time over Default's there; 1 for the others."""

DRAWS = 1000
"""How often studies are drawn again for an interval."""

BOUNDS = {
    ("accuracy", "mean", "Bandit"): 1 / 1.6,
    ("accuracy", "mean", "EarlyTerm"): 1 / 2.1,
    ("rl", "median", "Bandit"): 1 / 2.07,
    ("rl", "median", "EarlyTerm"): 1 / 1.26,
    ("accuracy", "mean", "Default"): 1 / 3,
    ("rl", "median", "Default"): 1 / 3,
}
"""Of POP's time over another's: as HyperDrive's figures 7 and 9, but for the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """A task, the source of its configurations in order, how many are tried, how many at a time."""

    of: NamedTrace
    source: GivenSource
    trials: int
    slots: int

    @classmethod
    def drawn(cls, of: NamedTrace, order: int, trials: int, slots: int) -> Conditions:
        """Return conditions in which the order decides what is tried, and when."""
        source = shuffled(of.trace.space(), order)
        return cls(of=of, source=source, trials=min(trials, source.most or trials), slots=slots)

    @property
    def shared(self) -> dict[str, Any]:
        """The arguments that every policy has."""
        trace = self.of.trace
        return {
            "space": trace.space(),
            "trials": self.trials,
            "max_steps": trace.steps,
            "sampler": self.source,
        }

    @property
    def within(self) -> float:
        """Seconds by which full runs of all have ended.

        Jobs that follow each other without gaps take at most their sum over the slots, and
        the longest [Graham, "Bounds on Multiprocessing Timing Anomalies", 1969].
        """
        seconds = [self.of.durations[number] for number in self.numbers]
        return sum(seconds) / self.slots + max(seconds)

    @property
    def numbers(self) -> list[int]:
        """The configurations that are tried."""
        known = self.source.known(self.trials)
        end = self.of.trace.steps
        return [int(each.sequences[CONFIGURATION](end) or 0) for each in known]

    @property
    def soonest(self) -> float:
        """Seconds in which the best of them reaches the target; infinite if none does."""
        return min(self.of.soonest[number] for number in self.numbers)

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of the metric."""
        return self.of.low, self.of.high

    def every(self, boundaries: int) -> int:
        """Return the steps from one boundary to the next."""
        return max(1, self.of.trace.steps // boundaries)


def _pop(given: Conditions, *, ends_poor: bool = False) -> Tuner:
    return dt.algos.POP(
        **given.shared,
        target=given.of.target,
        within=given.within,
        bounds=given.bounds,
        kill=given.of.kill,
        ends_poor=ends_poor,
    )


def _bandit(given: Conditions) -> Tuner:
    return dt.algos.Bandit(**given.shared, every=given.every(BOUNDARIES), bounds=given.bounds)


def _early_term(given: Conditions) -> Tuner:
    every = given.every(BOUNDARIES if given.of.kind == "rl" else LATE_BOUNDARIES)
    return dt.algos.EarlyTerm(**given.shared, every=every, bounds=given.bounds)


def _later(given: Conditions) -> Tuner:
    return dt.algos.EarlyTerm(
        **given.shared, every=given.every(2), bounds=given.bounds, window=WINDOW
    )


def _default(given: Conditions) -> Tuner:
    return dt.algos.Random(**given.shared)


TUNERS: Mapping[str, Callable[[Conditions], Tuner]] = {
    "POP": _pop,
    ENDS_POOR: partial(_pop, ends_poor=True),
    "Bandit": _bandit,
    "EarlyTerm": _early_term,
    LATER: _later,
    "Default": _default,
}
POLICIES = (*TUNERS, ORACLE)


class MemorisedAnswers:
    """Keeps predictions: orders and slots do not change what is known of a configuration.

    A question's seed depends on the number of its trial, and so on the order; here all have
    the same.
    """

    def __init__(self) -> None:
        self._known: dict[object, Prediction] = {}

    def __call__(self, question: Question) -> Prediction:
        """Return the answer, computed the first time."""
        asked = repr(question.predictor.identity()), question.curve, question.steps
        if asked not in self._known:
            self._known[asked] = replace(question, seed=0).answer()
        return self._known[asked]


def time_to(policy: str, given: Conditions, answer: MemorisedAnswers) -> float | None:
    """Return the virtual seconds until a policy has a value as good as the target, or None."""
    if policy == ORACLE:
        return given.soonest
    of = given.of
    ran = dt.simulate(
        TUNERS[policy](given),
        of.trace,
        workers=given.slots,
        metric=METRIC,
        direction=of.direction,
        limits=Limits(target=of.target, seconds=given.within),
        answer=answer,
    )
    return ran.time_to(of.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The times of one policy to the target of one task, as parts of the time that a run may take.

    There is one time for each order; `reached` is how many of the runs reached the target.
    """

    task: str
    kind: str
    slots: int
    policy: str
    times: tuple[float, ...]
    reached: int

    @property
    def source(self) -> str:
        """The source of the task."""
        return self.task.split()[0]

    @property
    def figure(self) -> Figure:
        """The mean time."""
        return Figure(
            name=f"{self.task}, {self.slots} slots: {self.policy}'s mean time to target",
            value=fmean(self.times),
            note=f"of the time that a run may take; median {median(self.times):.3f}; reached by "
            f"{self.reached} of {len(self.times)} runs",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The simulations of every task."""

    orders: int
    slots: Sequence[int]
    trials: int
    policies: Sequence[str]

    def lines(self, of: NamedTrace) -> list[Line]:
        """Return the times of every policy on a task."""
        answer = MemorisedAnswers()
        return [
            self._line(of, slots, policy, answer)
            for slots in self.slots
            for policy in self.policies
            if _concerns(policy, of)
        ]

    def _line(self, of: NamedTrace, slots: int, policy: str, answer: MemorisedAnswers) -> Line:
        times, reached = [], 0
        drawn = (Conditions.drawn(of, order, self.trials, slots) for order in count())
        orders = 1 if of.name.startswith(MADE) else self.orders
        for given in islice((each for each in drawn if each.soonest < math.inf), orders):
            seconds = time_to(policy, given, answer)
            reached += seconds is not None
            times.append(1.0 if seconds is None else seconds / given.within)
        return Line(
            task=of.name,
            kind=of.kind,
            slots=slots,
            policy=policy,
            times=tuple(times),
            reached=reached,
        )


def _concerns(policy: str, of: NamedTrace) -> bool:
    """Whether a policy is meant for such a task."""
    if policy == ENDS_POOR:
        return of.name.startswith(SCHEDULES)
    return policy != LATER or of.kind == "rl"


def measure(
    short: bool,
    data: Path,
    sources: Sequence[str],
    orders: int | None,
    slots: Sequence[int] | None,
    policies: Sequence[str],
) -> list[Figure]:
    """Run every policy on all tasks; say on the way how many are done."""
    plan = Plan(
        orders=orders or (SHORT_ORDERS if short else ORDERS),
        slots=slots or (SHORT_SLOTS if short else SLOTS),
        trials=SHORT_TRIALS if short else TRIALS,
        policies=policies,
    )
    tasks = load(data, sources)
    lines: list[Line] = []
    before = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for number, of_task in enumerate(pool.imap(plan.lines, tasks), 1):
            lines += of_task
            minutes = (time.monotonic() - before) / 60
            sys.stderr.write(f"{number} of {len(tasks)} tasks, {minutes:.1f} min\n")
    return [*(line.figure for line in lines), *figures(ratios(lines)), *schedule_figures(lines)]


def load(data: Path, sources: Sequence[str]) -> list[NamedTrace]:
    """Return the tasks of the sources: recorded ones, or with ``made`` made-up ones."""
    made = [each for each in sources if each.startswith(MADE)]
    others = [each for each in sources if not each.startswith(MADE)]
    sets: list[RecordedSet] = []
    if others or not made:
        sets += recorded.unseen(recorded.load(data, others))
    if made:
        sets += map(recorded.with_rates, curve_families.load(made))
    return [task for task in map(targets.named, sets) if task is not None]


# -------------------------------------------------------------------------- the figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """POP's time to target over another policy's, on one task and so many slots."""

    pop: Line
    other: Line

    @property
    def mean(self) -> float:
        """The ratio of the means over orders."""
        return fmean(self.pop.times) / fmean(self.other.times)

    @property
    def median(self) -> float:
        """The ratio of the medians over orders."""
        return median(self.pop.times) / median(self.other.times)

    def drawn(self, of: str) -> NDArray[np.float64]:
        """Return the logarithm of the mean or median for each time that orders are drawn again."""
        times = np.array([self.pop.times, self.other.times])
        orders = np.random.default_rng(0).integers(times.shape[1], size=(DRAWS, times.shape[1]))
        pop, other = getattr(np, of)(times[:, orders], axis=2)
        return np.asarray(np.log(pop / other))


def ratios(lines: Iterable[Line]) -> list[Ratio]:
    """Return the ratios of POP to every other policy."""
    by_place = {(line.task, line.slots, line.policy): line for line in lines}
    return [
        Ratio(pop=by_place[task, slots, "POP"], other=line)
        for (task, slots, policy), line in by_place.items()
        if policy != "POP" and (task, slots, "POP") in by_place
    ]


def figures(every: Iterable[Ratio]) -> Iterator[Figure]:
    """Yield the figures of recorded tasks; means over tasks and slots are geometric."""
    groups: dict[tuple[str, str], list[Ratio]] = {}
    for each in every:
        if not each.pop.task.startswith(MADE):
            groups.setdefault((each.pop.kind, each.other.policy), []).append(each)
    for (kind, policy), some in groups.items():
        for of in ("mean", "median"):
            values = [getattr(each, of) for each in some]
            value = geometric_mean(values)
            low, high = _interval(some, of)
            yield Figure(
                name=f"{kind}: POP's {of} time to target over {policy}'s",
                value=value,
                unit="x",
                at_most=BOUNDS.get((kind, of, policy)),
                note=f"{1 / value:.2f} times as fast ({1 / high:.2f} to {1 / low:.2f}); "
                f"{1 / max(values):.2f} to {1 / min(values):.2f} on {len(values)} pairs of task "
                "and slots",
            )


def _interval(some: Sequence[Ratio], of: str) -> tuple[float, float]:
    """Return the 95% interval of a geometric mean: tasks are drawn again, and their orders."""
    tasks = list(dict.fromkeys(each.pop.task for each in some))
    logs = np.array(
        [
            np.mean([each.drawn(of) for each in some if each.pop.task == task], axis=0)
            for task in tasks
        ]
    )
    drawn = np.random.default_rng(1).integers(len(tasks), size=(len(tasks), DRAWS))
    low, high = np.quantile(logs[drawn, np.arange(DRAWS)].mean(axis=0), (0.025, 0.975))
    return math.exp(low), math.exp(high)


def schedule_figures(lines: Iterable[Line]) -> Iterator[Figure]:
    """Yield the medians over all studies of each source where rates drop, and POP's over others."""
    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    for line in lines:
        if line.source in SCHEDULES:
            of_source = times.setdefault((line.source, line.slots), {})
            of_source.setdefault(line.policy, []).extend(line.times)
    for (source, slots), of_policies in times.items():
        for policy, some in of_policies.items():
            yield Figure(
                name=f"{source}, {slots} slots: {policy}'s median time to target",
                value=median(some),
                note=f"reached in {np.mean(np.array(some) < 1):.0%} of {len(some)} studies",
            )
        for other in ("Bandit", "EarlyTerm", "Default"):
            if not of_policies.keys() >= {"POP", other}:
                continue
            pair = np.array([of_policies["POP"], of_policies[other]])
            yield _median_ratio(f"{source}, {slots} slots", other, pair, SOONER.get(source, 1.0))


def _median_ratio(of: str, other: str, times: NDArray[np.float64], most: float) -> Figure:
    drawn = np.random.default_rng(0).integers(times.shape[1], size=(DRAWS, times.shape[1]))
    medians = np.median(times[:, drawn], axis=2)
    low, high = np.quantile(medians[1] / medians[0], (0.025, 0.975))
    value = float(np.median(times[0]) / np.median(times[1]))
    return Figure(
        name=f"{of}: POP's median time to target over {other}'s",
        value=value,
        unit="x",
        at_most=most if other == "Default" else None,
        note=f"{1 / value:.2f} times as fast ({low:.2f} to {high:.2f})",
    )


if __name__ == "__main__":
    sys.exit(
        main(
            "time_to_target",
            measure,
            data={"type": Path, "required": True, "help": "folder of recorded curves"},
            sources={"nargs": "+", "default": (), "help": "only files that begin so"},
            orders={"type": int, "help": "orders of configurations"},
            slots={"type": int, "nargs": "+", "help": "how many run at the same time"},
            policies={"nargs": "+", "choices": POLICIES, "default": POLICIES, "help": "only these"},
        )
    )
