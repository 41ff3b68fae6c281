"""The problems of a new tuner that its reports would show, as far as they are known before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dasktune._engine.trials import TrialRecord
from dasktune._results.results import StudyResults
from dasktune._study.config import StudyConfig
from dasktune.algos.base import Tuner
from dasktune.algos.stopping import beyond_bounds
from dasktune.errors import unknown
from dasktune.trainer.base import change_problems_of, name_problems_of
from dasktune.trainer.metrics import metric_names


def known_problems(config: StudyConfig, results: StudyResults, tuner: Tuner) -> Iterator[str]:
    """Yield the problems of a new tuner.

    The names of all metrics are often known from the trainer's source, and values of the
    metric from the last reports of earlier trials. Some trainers know their hyper-parameters.
    """
    trainer, space = config.known_trainer, tuner.searched_space
    if space is not None:
        yield from name_problems_of(trainer, space.names)
    configurations = (each.sequences for each in tuner.configurations or ())
    yield from change_problems_of(trainer, configurations, tuner.max_steps, config.config or {})
    known = metric_names(trainer)
    for name in sorted(tuner.metrics_needed - known) if known else ():
        yield f"{type(tuner).__name__}: {unknown('metric', name, known)}"
    for problem in tuner.contradictions(results.metric):
        yield f"{type(tuner).__name__}: {problem}"
    for record in results.records.values():
        if record.value is not None:
            where = f" at step {record.steps} of trial {record.number}, an earlier one"
            metric, bounds = results.metric, tuner.value_bounds
            beyond = list(beyond_bounds(record.value, *bounds, metric=metric, where=where))
            if beyond:
                yield f"{type(tuner).__name__}: {beyond[0]}"
                return


def other_names(hp: Mapping[str, object], records: Iterable[TrialRecord]) -> Iterator[str]:
    """Yield a problem for each name that no trial has, if a name that all trials have is missing.

    Trials without a report do not count: a wrong name may be why they failed.
    """
    known = [
        set(record.sequences) for record in records if record.was_trained_here and record.steps
    ]
    missing = set.intersection(*known) - set(hp) if known else set()
    for name in hp if missing else ():
        if not any(name in names for names in known):
            yield unknown("hyper-parameter", name, sorted(set().union(*known)))
