"""Recording: a study's trials as a trace, with their measured values and times."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dasktune._engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.graph.keys import runs
from dasktune.graph.plan import Node, SearchPlan
from dasktune.sequences import Constant
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import MetricRow, RunRow, StageRow
from dasktune.traces.classes import UNKNOWN
from dasktune.traces.timing import Overheads
from dasktune.traces.trace import Shared, Trace
from dasktune.types import Metrics, Objective, Step


@dataclass(frozen=True, slots=True)
class _Measured:
    """A measured state, the seconds of a step since the one before, and the class that took them.

    Class and seconds are None if they are unknown.
    """

    step: Step
    metrics: Metrics
    seconds: float | None
    kind: str | None


@dataclass(frozen=True, slots=True)
class _Path:
    """The path of a configuration through the plan."""

    configuration: dict[str, object]
    nodes: list[Node]

    @property
    def known(self) -> Step:
        """The last measured step, or 0."""
        return max((step for node in self.nodes for step in node.metrics), default=0)


def trace_of(
    plan: SearchPlan,
    records: Iterable[TrialRecord],
    *,
    database: Database,
    study_id: int,
    objective: Objective,
) -> Trace:
    """Return trials as a trace: a configuration for each trial.

    Trials without measurements are left out. A trial has the values of all trials that trained
    the same states, even beyond its own end. Trials with equal hyper-parameters and seeds become
    one configuration: the longest of them, in the place of the first.

    Parameters
    ----------
    plan
        The search plan with the metrics of all states.
    database
        The database, which has the times of steps, saves and stages.
    study_id
        The study's number there.

    Raises
    ------
    ConfigurationError
        If the trials have no measured value.
    """
    paths = _paths(plan, records)
    if not paths:
        raise ConfigurationError("there is nothing to make a trace of: no step was measured yet")
    roots = {plan.root_key_of(node) for path in paths for node in path.nodes}
    rows = {row.key: row for root in roots for row in database.metrics(root)}
    known = {node: list(_measured(node, rows)) for path in paths for node in path.nodes}
    curves = [[state for node in path.nodes for state in known[node]] for path in paths]
    names = list(objective.metrics)
    names += sorted(
        {name for curve in curves for state in curve for name in state.metrics} - {*names}
    )
    steps = max(state.step for curve in curves for state in curve)
    shape = (len(curves), steps)
    values, paces = np.full((*shape, len(names)), np.nan), np.full(shape, np.nan)
    measured = np.zeros(shape, bool)
    classes = _classes(curves)
    kinds = np.full(shape, UNKNOWN, np.int16)
    for row, curve in enumerate(curves):
        before = 0
        for state in curve:
            at = state.step - 1
            measured[row, at] = True
            values[row, at] = [state.metrics.get(name, np.nan) for name in names]
            paces[row, before : state.step] = np.nan if state.seconds is None else state.seconds
            kinds[row, before : state.step] = classes.get(state.kind or "", UNKNOWN)
            before = state.step
    shared = tuple(_shared([path.nodes for path in paths], steps))
    return Trace(
        metrics=tuple(names),
        values=values,
        seconds=None if np.isnan(paces).all() else paces,
        measured=measured,
        configurations=tuple(path.configuration for path in paths),
        directions=dict(zip(objective.metrics, objective.directions, strict=True)),
        shared=shared if any(most for _, most in shared) else (),
        overheads=_overheads(database, study_id, roots),
        classes=tuple(classes) if len(classes) > 1 else (),
        kinds=kinds if len(classes) > 1 else None,
    )


def _classes(curves: Iterable[Iterable[_Measured]]) -> dict[str, int]:
    """Return the number of each compute class that measured seconds, in the order of names."""
    timed = (state for curve in curves for state in curve if state.seconds is not None)
    names = sorted({state.kind for state in timed if state.kind is not None})
    return {name: number for number, name in enumerate(names)}


def _paths(plan: SearchPlan, records: Iterable[TrialRecord]) -> list[_Path]:
    """Return the paths with a measured state, in the order of their first trials."""
    by_name: dict[tuple[str, str], _Path] = {}
    for record in records:
        path = _Path(_configuration(record), plan.nodes_of(record.number))
        if not record.was_trained_here or not path.known:
            continue
        name = plan.root_key_of(path.nodes[0]), json.dumps(path.configuration, sort_keys=True)
        if name not in by_name or path.known > by_name[name].known:
            by_name[name] = path
    return list(by_name.values())


def _measured(node: Node, rows: Mapping[str, MetricRow]) -> Iterator[_Measured]:
    """Yield the measured states of a node, in order; `rows` are those of the database by key."""
    if node.parent is None:
        return
    wanted = [*node.metrics]
    chain, start = node.parent.chain_at(node.start), node.start
    for until, encoded in runs(node.sequences, node.start, node.stop):
        here = wanted[bisect_right(wanted, start) : bisect_right(wanted, until)]
        keys = chain.keys(encoded, [step - start for step in here])
        for step, key in zip(here, keys, strict=True):
            row = rows.get(key)
            seconds, kind = (None, None) if row is None else (row.seconds, row.kind)
            yield _Measured(step, node.metrics[step], seconds, kind)
        chain, start = chain.extend(encoded, until - start), until


def _shared(paths: Iterable[list[Node]], steps: Step) -> Iterator[Shared]:
    """Yield for each path the earlier path with which it shares most first steps."""
    first: dict[Node, int] = {}
    for number, nodes in enumerate(paths):
        others = [node for node in nodes if node.stop and first.setdefault(node, number) != number]
        if others:
            yield first[others[-1]], min(steps, others[-1].stop)
        else:
            yield 0, 0


def _configuration(record: TrialRecord) -> dict[str, object]:
    """Return the hyper-parameters of a trial: plain values, or sequences as JSON."""
    return {
        name: sequence.value if isinstance(sequence, Constant) else sequence.to_json()
        for name, sequence in record.sequences.items()
    }


def _overheads(database: Database, study_id: int, roots: Iterable[str]) -> Overheads:
    """Return the measured overheads of a study."""
    stages = list(database.stages(study_id))
    begun = [
        (stage.start, stage.start_seconds) for stage in stages if stage.start_seconds is not None
    ]
    saves = [row for root in roots for row in database.checkpoints(root)]
    return Overheads(
        begin=_mean(_beginnings(database.runs(study_id), stages)),
        build=_mean(seconds for start, seconds in begun if start == 0),
        load=_mean(seconds for start, seconds in begun if start and seconds),
        save=_mean(row.hold_up for row in saves),
        report=_mean(row.latency for row in saves),
        handover=_gap(stages),
    )


def _beginnings(runs: Iterable[RunRow], stages: Iterable[StageRow]) -> Iterator[float]:
    """Yield the time from the beginning of each run until its first stage began."""
    first: dict[str, float] = {}
    for stage in stages:
        if stage.started:
            first[stage.run] = min(stage.started, first.get(stage.run, stage.started))
    for run in runs:
        if run.run in first:
            yield max(0.0, first[run.run] - run.began)


def _mean(seconds: Iterable[float | None]) -> float:
    """Return the mean of the known values, or 0."""
    known = [each for each in seconds if each is not None]
    return statistics.fmean(known) if known else 0.0


def _gap(stages: Iterable[StageRow]) -> float:
    """Return the median time between two stages on a worker: some workers wait for work."""
    by_worker: dict[tuple[str, str], list[StageRow]] = {}
    for stage in stages:
        if stage.started and stage.ended:
            by_worker.setdefault((stage.run, stage.worker), []).append(stage)
    gaps = [
        max(0.0, later.started - (earlier.ended or 0.0))
        for rows in by_worker.values()
        for earlier, later in pairwise(sorted(rows, key=lambda row: row.started))
    ]
    return statistics.median(gaps) if gaps else 0.0
