"""A study's trials as a trace: what was measured, and what it took, for the simulator."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.graph.keys import runs
from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import RunRow, StageRow
from dasktune.traces.timing import Overheads
from dasktune.traces.trace import Shared, Trace
from dasktune.types import Metrics, Objective, Step


@dataclass(frozen=True, slots=True)
class _Measured:
    """A state that was measured, and what a step took since the one before."""

    step: Step
    metrics: Metrics
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Way:
    """What was trained of a configuration."""

    configuration: dict[str, object]
    nodes: list[Node]

    @property
    def known(self) -> Step:
        """The last step that was measured; 0 if none was."""
        return max((step for node in self.nodes for step in node.metrics), default=0)


def trace_of(
    plan: SearchPlan,
    records: Iterable[TrialRecord],
    *,
    database: Database,
    study_id: int,
    objective: Objective,
) -> Trace:
    """Return all that is known of trials as a trace, one configuration a trial.

    Trials of which nothing was measured are left out. One that was ended early is known as far
    as it, or any that has the same states, was trained. Trials with the same hyper-parameters
    and seed are one configuration: the one of which most is known, where the first of them was.

    Parameters
    ----------
    plan
        Knows the trials, and the metrics of their states.
    records
        The trials.
    database
        Knows what steps, saves and stages took.
    study_id
        The study's number there.
    objective
        What was optimised.

    Raises
    ------
    ConfigurationError
        If nothing was measured.
    """
    ways = _ways(plan, records)
    if not ways:
        raise ConfigurationError("there is nothing to make a trace of: no step was measured yet")
    roots = {plan.root_key_of(node) for way in ways for node in way.nodes}
    seconds = {row.key: row.seconds for root in roots for row in database.metrics(root)}
    known = {node: list(_measured(node, seconds)) for way in ways for node in way.nodes}
    curves = [[one for node in way.nodes for one in known[node]] for way in ways]
    names = list(objective.metrics)
    names += sorted({name for curve in curves for one in curve for name in one.metrics} - {*names})
    steps = max(one.step for curve in curves for one in curve)
    shape = (len(curves), steps)
    values, paces = np.full((*shape, len(names)), np.nan), np.full(shape, np.nan)
    measured = np.zeros(shape, bool)
    for row, curve in enumerate(curves):
        before = 0
        for one in curve:
            at = one.step - 1
            measured[row, at] = True
            values[row, at] = [one.metrics.get(name, np.nan) for name in names]
            paces[row, before : one.step] = np.nan if one.seconds is None else one.seconds
            before = one.step
    shared = tuple(_shared([way.nodes for way in ways], steps))
    return Trace(
        metrics=tuple(names),
        values=values,
        seconds=None if np.isnan(paces).all() else paces,
        measured=measured,
        configurations=tuple(way.configuration for way in ways),
        directions=dict(zip(objective.metrics, objective.directions, strict=True)),
        shared=shared if any(most for _, most in shared) else (),
        overheads=_overheads(database, study_id, roots),
    )


def _ways(plan: SearchPlan, records: Iterable[TrialRecord]) -> list[_Way]:
    """Return the ways of which something is known, in the order of their first trials."""
    found: dict[tuple[str, str], _Way] = {}
    for record in records:
        way = _Way(_configuration(record), plan.nodes_of(record.number))
        if not record.was_trained_here or not way.known:
            continue
        name = plan.root_key_of(way.nodes[0]), json.dumps(way.configuration, sort_keys=True)
        if name not in found or way.known > found[name].known:
            found[name] = way
    return list(found.values())


def _measured(node: Node, seconds: Mapping[str, float | None]) -> Iterator[_Measured]:
    """Yield the states of a node that were measured, in order."""
    if node.parent is None:
        return
    wanted = sorted(node.metrics)
    chain, start = node.parent.chain_at(node.start), node.start
    for until, encoded in runs(node.sequences, node.start, node.stop):
        here = wanted[bisect_right(wanted, start) : bisect_right(wanted, until)]
        keys = chain.keys(encoded, [step - start for step in here])
        for step, key in zip(here, keys, strict=True):
            yield _Measured(step, node.metrics[step], seconds.get(key))
        chain, start = chain.extend(encoded, until - start), until


def _shared(ways: Iterable[list[Node]], steps: Step) -> Iterator[Shared]:
    """Yield for each way the earlier one that it has most first steps in common with."""
    first: dict[Node, int] = {}
    for number, nodes in enumerate(ways):
        others = [node for node in nodes if node.stop and first.setdefault(node, number) != number]
        if others:
            yield first[others[-1]], min(steps, others[-1].stop)
        else:
            yield 0, 0


def _configuration(record: TrialRecord) -> dict[str, object]:
    """Return the hyper-parameters of a trial: plain values, or sequences as JSON."""
    return {
        name: one.value if isinstance(one, Constant) else one.to_json()
        for name, one in record.sequences.items()
    }


def _overheads(database: Database, study_id: int, roots: Iterable[str]) -> Overheads:
    """Return what was measured beside the steps."""
    stages = list(database.stages(study_id))
    begun = [(one.start, one.start_seconds) for one in stages if one.start_seconds is not None]
    saves = [row for root in roots for row in database.checkpoints(root)]
    return Overheads(
        begin=_mean(_beginnings(database.runs(study_id), stages)),
        build=_mean(seconds for start, seconds in begun if start == 0),
        load=_mean(seconds for start, seconds in begun if start and seconds),
        save=_mean(one.hold_up for one in saves),
        report=_mean(one.latency for one in saves),
        handover=_gap(stages),
    )


def _beginnings(runs: Iterable[RunRow], stages: Iterable[StageRow]) -> Iterator[float]:
    """Yield the time from the beginning of each run until its first stage began, if one did."""
    first: dict[str, float] = {}
    for one in stages:
        if one.started:
            first[one.run] = min(one.started, first.get(one.run, one.started))
    for run in runs:
        if run.run in first:
            yield max(0.0, first[run.run] - run.began)


def _mean(seconds: Iterable[float | None]) -> float:
    """Return the mean of what is known, 0 if nothing is."""
    known = [one for one in seconds if one is not None]
    return statistics.fmean(known) if known else 0.0


def _gap(stages: Iterable[StageRow]) -> float:
    """Return the median time between two stages on a worker: some wait for lack of work."""
    by_worker: dict[tuple[str, str], list[StageRow]] = {}
    for one in stages:
        if one.started and one.ended:
            by_worker.setdefault((one.run, one.worker), []).append(one)
    gaps = [
        max(0.0, later.started - (one.ended or 0.0))
        for rows in by_worker.values()
        for one, later in pairwise(sorted(rows, key=lambda row: row.started))
    ]
    return statistics.median(gaps) if gaps else 0.0
