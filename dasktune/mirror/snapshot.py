"""A snapshot of a study as an Optuna study in memory."""

from __future__ import annotations

import logging
import time
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dasktune._engine.trials import TrialRecord
from dasktune.graph.plan import SearchPlan
from dasktune.storage.database.rows import StageRow
from dasktune.types import Metrics, Objective, Step, TrialState

if TYPE_CHECKING:
    import optuna

Seen = tuple[TrialRecord, Mapping[Step, Metrics]]
"""A trial and its metrics by step."""

Span = tuple[float, float]
"""Start and end, in epoch seconds."""

_LOGGERS: Final = ("_in_memory", "_rdb.storage", "journal._storage")
"""Modules of ``optuna.storages`` that log each new study."""


def optuna_study(
    name: str,
    objective: Objective,
    trials: Iterable[Seen],
    spans: Mapping[int, Span] | None = None,
) -> optuna.Study:
    """Return an Optuna study in memory with these trials.

    Parameters
    ----------
    name
        The name of the study.
    objective
        Gives the directions and the names of the metrics.
    trials
        All trials, from number 0 on, each with all its metrics.
    spans
        Start and end of each trial's training, by number; the present time by default.
    """
    import optuna
    from optuna.study import StudyDirection

    from dasktune.mirror.frozen import Translator

    seen = sorted(trials, key=lambda pair: pair[0].number)
    translator = Translator(objective, [record for record, _ in seen])
    directions = [StudyDirection[direction.name] for direction in objective.directions]
    with unlogged(name):
        study = optuna.create_study(study_name=name, directions=directions)
    metrics_named(study, objective.metrics)
    now = time.time()
    for record, metrics in seen:
        span = (spans or {}).get(record.number, (now, now))
        study.add_trial(translator.translate(record, metrics, span))
    return study


def metrics_named(study: optuna.Study, names: Sequence[str]) -> None:
    """Give an Optuna study the names of its metrics."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study.set_metric_names(list(names))


@contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Leave out Optuna's log record of a new study, which nobody has asked for."""
    loggers = [logging.getLogger(f"optuna.storages.{module}") for module in _LOGGERS]

    def is_other(record: logging.LogRecord) -> bool:
        return name not in record.getMessage()

    for logger in loggers:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)


def spans_of(
    plan: SearchPlan, stages: Iterable[StageRow], records: Mapping[int, TrialRecord]
) -> dict[int, Span]:
    """Return start and end of the training of each trial, by number.

    A stage that several trials share counts for each of them. A trial has no span if this study
    trained none of its stages, because another study had trained them before. Stages that other
    trials trained beyond the trial's last step do not count.
    """
    by_key: dict[tuple[Step, str], list[StageRow]] = {}
    for stage in stages:
        if stage.started and stage.ended:
            by_key.setdefault((stage.stop, stage.key), []).append(stage)
    stops = sorted({stop for stop, _ in by_key})
    by_trial: dict[int, Span] = {}
    for number in plan.paths.keys() & records.keys():
        record = records[number]
        last = max(record.steps, record.until or 0)
        if record.state is TrialState.FAIL:
            last = record.max_steps  # The failed stage goes beyond the last report.
        # A stage may end inside a node: a plan that is read again is cut at no request.
        own = [
            stage
            for node in plan.nodes_of(number)
            for stop in stops[bisect_right(stops, node.start) : bisect_right(stops, node.stop)]
            for stage in by_key.get((stop, node.key_at(stop)), ())
            if stage.start < last
        ]
        if own:
            ends = [stage.ended for stage in own if stage.ended is not None]
            by_trial[number] = min(stage.started for stage in own), max(ends)
    return by_trial
