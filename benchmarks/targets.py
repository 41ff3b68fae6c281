"""Recorded curves as traces with a target that few of their configurations reach.

HyperDrive asks for 77% on CIFAR-10, close to the best that is known; in its figure three of 50
configurations get above 75%. Nobody knows such a figure for every task here, so a target is the
value that a share of `SHARE` of the configurations reach: 4 of 100. AlgoPerf's runs ended when
they reached the target of their workload: there it is that one. A task is left out if more
than `MOST` of its configurations reach the target, for then it says nothing of a search: one
whose best value many have, or a workload with an easy target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import recorded
from numpy.typing import NDArray
from recorded import RecordedCurve, RecordedSet, shared_steps

from dasktune.algos.samplers import GivenSource
from dasktune.simulate import Trace
from dasktune.space import Space
from dasktune.types import Direction

Array = NDArray[Any]
Configurations = Sequence[Mapping[str, object]]

SHARE = 0.04
"""Share of the configurations that reach a target."""

MOST = 0.2
"""Share that may reach a target."""

EVALUATIONS = 100
"""Evaluations in the time that a run has at most, where they were not made at equal steps."""

METRIC = "value"
"""The name of the metric in all traces."""

KILL = {"own": 0.15}
"""By how a source's name begins: its kill threshold, HyperDrive's for one of ten classes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedTrace:
    """A trace, whose one metric is `METRIC`, and the target that is asked of it.

    Its kind is ``rl`` for returns of agents, ``accuracy`` for all others that get better upwards,
    ``loss`` for what gets better downwards. `soonest` has the seconds until each configuration has
    reached the target in a full run, infinite if it does not; `durations` those of full runs. A
    trial below `kill` does not learn; None if nobody knows such a value.
    """

    name: str
    kind: str
    trace: Trace
    direction: Direction
    low: float
    high: float
    target: float
    soonest: tuple[float, ...]
    durations: tuple[float, ...]
    kill: float | None

    @property
    def share(self) -> float:
        """The part of the configurations that reach the target."""
        return sum(map(math.isfinite, self.soonest)) / len(self.soonest)


def load(
    folder: Path,
    sources: Iterable[str] = (),
    share: float = SHARE,
    *,
    timed_share: float | None = None,
) -> list[NamedTrace]:
    """Return the traces in a folder; the rest is as in `recorded.load` and `named`."""
    every = recorded.load(folder, sources)
    named_traces = (named(each, share, timed_share=timed_share) for each in every)
    return [trace for trace in named_traces if trace is not None]


def named(
    of: RecordedSet, share: float = SHARE, *, timed_share: float | None = None
) -> NamedTrace | None:
    """Return the trace of a set, or None if too many or too few runs reach its target.

    With a `timed_share`, the target of a workload that has its own is the value which that share
    of its runs reaches.
    """
    scores, seconds, configurations = _timed(of) if of.target is not None else _stepped(of)
    best = np.max(scores, axis=1, initial=-np.inf, where=np.isfinite(scores))
    target = of.target
    if target is None:
        target = float(np.sort(best)[-max(1, round(share * len(best)))])
    reaches = best >= target
    if not 0 < reaches.mean() <= MOST:
        return None
    if timed_share is not None and of.target is not None:
        target = float(np.sort(best)[-max(1, round(timed_share * len(best)))])
        reaches = best >= target
    steps = np.argmax(scores >= target, axis=1) + 1
    sign = 1.0 if of.maximize else -1.0
    low, high = (of.low, of.high) if of.maximize else (0.0 - of.high, 0.0 - of.low)
    return NamedTrace(
        name=of.name,
        kind="rl" if of.source == "rl" else "accuracy" if of.maximize else "loss",
        trace=_trace(sign * scores, seconds, configurations),
        direction=Direction.MAXIMIZE if of.maximize else Direction.MINIMIZE,
        low=low,
        high=high,
        target=sign * target,
        soonest=tuple(np.where(reaches, steps * seconds, np.inf).tolist()),
        durations=tuple((scores.shape[1] * seconds).tolist()),
        kill=next((item for name, item in KILL.items() if of.source.startswith(name)), None),
    )


def _trace(values: Array, seconds: Array, configurations: Configurations) -> Trace:
    """Return the trace; configurations that change and begin alike share what they can."""
    trace = Trace.from_arrays({METRIC: values}, seconds=seconds, configurations=configurations)
    if not any(isinstance(item, list) for each in configurations for item in each.values()):
        return trace
    return replace(trace, shared=shared_steps(configurations, trace.steps))


def _stepped(of: RecordedSet) -> tuple[Array, Array, Configurations]:
    """Return the scores after each step, and the mean seconds of a step; 1 if none are known.

    They are as many as nine in ten runs have; shorter runs are left out, and what was measured
    before the first step.
    """
    rows = [_after_the_start(each) for each in of.curves]
    length = int(np.quantile([len(row) for row in rows], 0.1, method="lower"))
    kept = [place for place, row in enumerate(rows) if len(row) >= length]
    seconds = np.ones(len(kept))
    if all(curve.seconds for curve in of.curves):
        seconds = np.array([of.curves[place].seconds[length - 1] / length for place in kept])
    configurations = [of.curves[place].configuration for place in kept]
    return np.array([rows[place][:length] for place in kept]), seconds, configurations


def _after_the_start(curve: RecordedCurve) -> tuple[float, ...]:
    return curve.scores[1:] if curve.steps[0] == 0 else curve.scores


def _timed(of: RecordedSet) -> tuple[Array, Array, Configurations]:
    """Return the values known at equal times, and the seconds between these times.

    A run that ended keeps what it had: it had reached its target, or its time was over.
    """
    times = (of.within or 0.0) * np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    rows = []
    for known_curve in of.curves:
        known = np.searchsorted(known_curve.seconds, times, side="right") - 1
        rows.append(np.where(known >= 0, np.array(known_curve.scores)[known], np.nan))
    return (
        np.array(rows),
        np.full(len(rows), times[0]),
        [curve.configuration for curve in of.curves],
    )


def shuffled(space: Space, seed: int) -> GivenSource:
    """Return every point of a grid in random order: the same for all tuners with this seed."""
    configurations = list(space.configurations())
    order = np.random.default_rng(seed).permutation(len(configurations))
    return GivenSource((configurations[at] for at in order), "shuffled")
