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

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import curve_families
import curve_studies
import numpy as np
import recorded
import targets
from figures import Figure, machine, publish
from given import shuffled
from numpy.typing import NDArray
from recorded import RecordedSet
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from targets import METRIC, SHARE, NamedTrace

import dasktune as dt
from dasktune.algos.base import Tuner
from dasktune.algos.curves import Prediction, Question
from dasktune.algos.samplers import GivenSource
from dasktune.engine.limits import Limits
from dasktune.errors import ConfigurationError
from dasktune.traces.trace import CONFIGURATION

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

SCHEDULES = ("own_stage", "made_drops", "made_ends", "drawn_schedules")
"""How the sources begin whose learning rates drop."""

MADE = ("made", "drawn")
"""How the sources begin whose studies are made up: each is one order."""

SOONER = {"made_ends": 1 / 1.5}
"""Bounds of POP's median time over Default's there; 1 for the others."""

DRAWS = 1000
"""How often studies are drawn again for an interval."""

WIDTH = 100
"""Of the table, in characters."""

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
    """The task and the limits of a policy.

    Parameters
    ----------
    of
        The task.
    source
        Gives the configurations, in order.
    trials
        How many of them are tried.
    slots
        How many run at the same time.
    """

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

    def every(self, boundaries: int) -> int:
        """Return the steps from one boundary to the next."""
        return max(1, self.of.trace.steps // boundaries)


def _pop(given: Conditions, *, ends_poor: bool = False) -> Tuner:
    return dt.algos.POP(
        **given.shared,
        target=given.of.target,
        within=given.within,
        bounds=(given.of.low, given.of.high),
        kill=given.of.kill,
        ends_poor=ends_poor,
    )


def _ends_poor(given: Conditions) -> Tuner:
    return _pop(given, ends_poor=True)


def _bandit(given: Conditions) -> Tuner:
    bounds = (given.of.low, given.of.high)
    return dt.algos.Bandit(**given.shared, every=given.every(BOUNDARIES), bounds=bounds)


def _early_term(given: Conditions) -> Tuner:
    every = given.every(BOUNDARIES if given.of.kind == "rl" else LATE_BOUNDARIES)
    return dt.algos.EarlyTerm(**given.shared, every=every, bounds=(given.of.low, given.of.high))


def _later(given: Conditions) -> Tuner:
    bounds = (given.of.low, given.of.high)
    every = given.every(2)
    return dt.algos.EarlyTerm(**given.shared, every=every, bounds=bounds, window=WINDOW)


def _default(given: Conditions) -> Tuner:
    return dt.algos.Random(**given.shared)


POLICIES: Mapping[str, Callable[[Conditions], Tuner]] = {
    "POP": _pop,
    ENDS_POOR: _ends_poor,
    "Bandit": _bandit,
    "EarlyTerm": _early_term,
    LATER: _later,
    "Default": _default,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The times of one policy on one task and so many slots.

    Parameters
    ----------
    task, kind, share
        As in `NamedTrace`: its name, and so on.
    slots, policy
        Under which conditions, and what.
    times
        To the target, as parts of the time that a run may take: one for each order.
    reached
        How many of the runs reached it.
    """

    task: str
    kind: str
    share: float
    slots: int
    policy: str
    times: tuple[float, ...]
    reached: int

    @property
    def spread(self) -> float:
        """The longest time less the shortest."""
        return max(self.times) - min(self.times)

    @property
    def quartiles(self) -> float:
        """The third quartile of the times less the first."""
        low, high = np.percentile(self.times, [25, 75])
        return float(high - low)


class Predictions:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The simulations of every task."""

    orders: int
    slots: tuple[int, ...]
    trials: int
    policies: tuple[str, ...]

    def lines(self, of: NamedTrace) -> list[Line]:
        """Return the times of every policy on a task."""
        answer = Predictions()
        return [
            self._line(of, slots, policy, answer)
            for slots in self.slots
            for policy in self.policies
            if _concerns(policy, of)
        ]

    def _line(self, of: NamedTrace, slots: int, policy: str, answer: Predictions) -> Line:
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
            share=of.share,
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


FULL = Plan(orders=25, slots=(4, 8, 16), trials=100, policies=(*POLICIES, ORACLE))
SHORT = Plan(orders=2, slots=(4,), trials=40, policies=(*POLICIES, ORACLE))
SHORT_TASKS = 1


def time_to(policy: str, given: Conditions, answer: Predictions) -> float | None:
    """Return the virtual seconds until a policy has a value as good as the target, or None."""
    if policy == ORACLE:
        return given.soonest
    of = given.of
    ran = dt.simulate(
        POLICIES[policy](given),
        of.trace,
        workers=given.slots,
        metric=METRIC,
        direction=of.direction,
        limits=Limits(target=of.target, seconds=given.within),
        answer=answer,
    )
    return ran.time_to(of.target)


def few(every: Iterable[NamedTrace], most: int | None) -> list[NamedTrace]:
    """Return at most so many tasks of each source, drawn at random but always the same."""
    by_source: dict[str, list[NamedTrace]] = {}
    for task in every:
        by_source.setdefault(task.name.split()[0], []).append(task)
    rng = np.random.default_rng(0)
    return [
        tasks[place]
        for tasks in by_source.values()
        for place in sorted(rng.permutation(len(tasks))[:most])
    ]


def measure(
    tasks: Sequence[NamedTrace], plan: Plan, processes: int, path: Path | None = None
) -> list[Line]:
    """Return the lines of all tasks; says on the way how many are done, and writes them."""
    measured: list[Line] = []
    before = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for number, lines in enumerate(pool.imap(plan.lines, tasks), 1):
            measured += lines
            minutes = (time.monotonic() - before) / 60
            sys.stderr.write(f"{number} of {len(tasks)} tasks, {minutes:.1f} min\n")
            if path is not None:
                path.write_text(json.dumps({"lines": [asdict(line) for line in measured]}))
    return measured


# -------------------------------------------------------------------------- the figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """POP's time to target over another policy's, on one task and so many slots."""

    pop: Line
    other: Line

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.pop.task

    @property
    def mean(self) -> float:
        """The ratio of the means over orders."""
        return statistics.fmean(self.pop.times) / statistics.fmean(self.other.times)

    @property
    def median(self) -> float:
        """The ratio of the medians over orders."""
        return statistics.median(self.pop.times) / statistics.median(self.other.times)

    @property
    def spread(self) -> float:
        """The ratio of the ranges of the times."""
        return _over(self.pop.spread, self.other.spread)

    @property
    def quartiles(self) -> float:
        """The ratio of the interquartile ranges."""
        return _over(self.pop.quartiles, self.other.quartiles)

    def drawn(self, of: str) -> NDArray[np.float64]:
        """Return the logarithm of the mean or median for each time that orders are drawn again."""
        times = np.array([self.pop.times, self.other.times])
        orders = np.random.default_rng(0).integers(times.shape[1], size=(DRAWS, times.shape[1]))
        pop, other = getattr(np, of)(times[:, orders], axis=2)
        return np.asarray(np.log(pop / other))


def _over(one: float, other: float) -> float:
    """Return a ratio; 1 if both are 0."""
    if other > 0:
        return one / other
    return math.inf if one > 0 else 1.0


def ratios(lines: Iterable[Line]) -> list[Ratio]:
    """Return the ratios of POP to every other policy."""
    by_place = {(line.task, line.slots, line.policy): line for line in lines}
    return [
        Ratio(pop=by_place[task, slots, "POP"], other=line)
        for (task, slots, policy), line in by_place.items()
        if policy != "POP" and (task, slots, "POP") in by_place
    ]


def figures(found: Sequence[Ratio]) -> list[Figure]:
    """Return the figures, some with bounds; means over tasks and slots are geometric."""
    every: list[Figure] = []
    found = [each for each in found if not each.task.startswith(MADE)]
    for kind in dict.fromkeys(each.pop.kind for each in found):
        for policy in dict.fromkeys(each.other.policy for each in found):
            some = [each for each in found if (each.pop.kind, each.other.policy) == (kind, policy)]
            every += _times(kind, policy, some)
            every += _spreads(kind, policy, some) if policy in POLICIES else ()
    default = [each for each in found if each.other.policy == "Default"]
    if default:
        worst = max(default, key=lambda each: each.median)
        every.append(
            Figure(
                name="POP's median time to target over Default's, where it is largest",
                value=worst.median,
                unit="x",
                at_most=1.0,
                note=f"{worst.task}, {worst.pop.slots} slots",
            )
        )
    return every


def _times(kind: str, policy: str, some: Sequence[Ratio]) -> Iterator[Figure]:
    for of in ("mean", "median"):
        values = [getattr(each, of) for each in some]
        value = statistics.geometric_mean(values)
        low, high = _interval(some, of)
        yield Figure(
            name=f"{kind}: POP's {of} time to target over {policy}'s",
            value=value,
            unit="x",
            at_most=BOUNDS.get((kind, of, policy)),
            note=f"{1 / value:.2f} times as fast ({1 / high:.2f} to {1 / low:.2f}); "
            f"{1 / max(values):.2f} to {1 / min(values):.2f} on {len(values)} pairs of task and "
            "slots",
        )


def _interval(some: Sequence[Ratio], of: str) -> tuple[float, float]:
    """Return the 95% interval of a geometric mean: tasks are drawn again, and their orders."""
    tasks = list(dict.fromkeys(each.task for each in some))
    logs = np.array(
        [np.mean([each.drawn(of) for each in some if each.task == task], axis=0) for task in tasks]
    )
    drawn = np.random.default_rng(1).integers(len(tasks), size=(len(tasks), DRAWS))
    low, high = np.quantile(logs[drawn, np.arange(DRAWS)].mean(axis=0), (0.025, 0.975))
    return math.exp(low), math.exp(high)


def _spreads(kind: str, policy: str, some: Sequence[Ratio]) -> Iterator[Figure]:
    for of, words in (("spread", "range"), ("quartiles", "interquartile range")):
        yield Figure(
            name=f"{kind}: {words} of POP's times over orders, over {policy}'s",
            value=statistics.median(getattr(each, of) for each in some),
            unit="x",
            at_most=1.0 if of == "spread" else None,
            note=f"median of {len(some)} pairs of task and slots",
        )


def schedule_figures(lines: Iterable[Line]) -> list[Figure]:
    """Return the median times of POP over those of others, over all studies of a source."""
    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    for line in lines:
        for source in SCHEDULES:
            if line.task.startswith(source):
                of_source = times.setdefault((source, line.slots), {})
                of_source.setdefault(line.policy, []).extend(line.times)
    every = []
    for (source, slots), of_policies in times.items():
        for policy in [each for each in ("POP", ENDS_POOR) if each in of_policies]:
            for other in sorted(of_policies.keys() - {"POP", ENDS_POOR, ORACLE}):
                pair = np.array([of_policies[policy], of_policies[other]])
                every.append(_median_ratio(source, slots, (policy, other), pair))
    return every


def _median_ratio(
    source: str, slots: int, policies: tuple[str, str], times: NDArray[np.float64]
) -> Figure:
    drawn = np.random.default_rng(0).integers(times.shape[1], size=(DRAWS, times.shape[1]))
    medians = np.median(times[:, drawn], axis=2)
    low, high = np.quantile(medians[1] / medians[0], (0.025, 0.975))
    value = float(np.median(times[0]) / np.median(times[1]))
    policy, other = policies
    is_bound = policies == ("POP", "Default")
    return Figure(
        name=f"{source}, {slots} slots: {policy}'s median time to target over {other}'s",
        value=value,
        unit="x",
        at_most=SOONER.get(source, 1.0) if is_bound else None,
        note=f"{1 / value:.2f} times as fast ({low:.2f} to {high:.2f}); {policy} reached it in "
        f"{np.mean(times[0] < 1):.0%} of {times.shape[1]} studies, {other} in "
        f"{np.mean(times[1] < 1):.0%}",
    )


def table(lines: Iterable[Line]) -> Table:
    """Return the times as a table for a terminal, a line for each task, slots and policy."""
    title = "time to target, in parts of the time that a run may take"
    made = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for name in ("task", "slots", "policy"):
        made.add_column(name, max_width=40, no_wrap=True)
    for name in ("mean", "median", "range", "IQR", "reached"):
        made.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        made.add_row(
            line.task,
            str(line.slots),
            line.policy,
            f"{statistics.fmean(line.times):.3f}",
            f"{statistics.median(line.times):.3f}",
            f"{line.spread:.3f}",
            f"{line.quartiles:.3f}",
            f"{line.reached}/{len(line.times)}",
        )
    return made


def main() -> int:
    """Return 1 if a bound was missed, 2 if what was asked for is not there, else 0."""
    options = _parser().parse_args()
    usual = SHORT if options.short else FULL
    plan = Plan(
        orders=options.orders or usual.orders,
        slots=tuple(options.slots or usual.slots),
        trials=options.trials or usual.trials,
        policies=tuple(options.policies),
    )
    try:
        every = _tasks(options)
    except ConfigurationError as error:
        sys.stderr.write(f"time_to_target.py: {error}\n")
        return 2
    tasks = few(every, options.tasks or (SHORT_TASKS if options.short else None))
    lines = measure(tasks, plan, options.processes, options.json)
    Console(width=WIDTH).print(table(lines))
    more = {
        "machine": machine(),
        "plan": {"share": options.share, **asdict(plan)},
        "lines": [asdict(line) for line in lines],
    }
    return publish(
        "time_to_target",
        [*figures(ratios(lines)), *schedule_figures(lines)],
        short=options.short,
        path=options.json,
        more=more,
    )


def _tasks(options: argparse.Namespace) -> list[NamedTrace]:
    """Return the tasks that an option names: recorded ones, or with ``made`` made-up ones."""
    made = [each for each in options.sources if each.startswith("made")]
    others = [each for each in options.sources if not each.startswith("made")]
    sets: list[RecordedSet] = []
    if others or not made:
        every = recorded.load(options.data, others)
        sets += recorded.part(every, choosing=options.choosing)
    drawn = curve_studies.load() if options.choosing else curve_families.load(made) if made else ()
    sets += map(recorded.with_rates, drawn)
    named = (targets.named(each, options.share) for each in sets)
    return [each for each in named if each is not None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="time_to_target.py")
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded curves")
    parser.add_argument("--sources", nargs="+", default=(), help="only files that begin so")
    parser.add_argument("--choosing", action="store_true", help="the tasks that chose constants")
    parser.add_argument("--orders", type=int, help="orders of configurations")
    parser.add_argument("--slots", type=int, nargs="+", help="how many run at the same time")
    parser.add_argument("--trials", type=int, help="configurations that are tried")
    parser.add_argument("--tasks", type=int, help="tasks of each source; all if not given")
    parser.add_argument("--share", type=float, default=SHARE, help="that reaches a target")
    parser.add_argument("--policies", nargs="+", choices=FULL.policies, default=FULL.policies)
    parser.add_argument("--processes", type=int, default=1, help="tasks at the same time")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", "--quick", action="store_true", help="try it on something small")
    return parser


if __name__ == "__main__":
    sys.exit(main())
