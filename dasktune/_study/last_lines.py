"""The lines about a run that are printed to standard error, at its end."""

from __future__ import annotations

from collections.abc import Iterator

from dasktune._driver.history import TunerPlace
from dasktune._engine.limits import Meter
from dasktune._results.results import StudyResults
from dasktune._results.summary import savings_line
from dasktune._study.config import StudyConfig
from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.algos.forest.ranks import lines_of
from dasktune.storage.database.rows import StageRow
from dasktune.types import Step


def nothing_left(results: StudyResults) -> str:
    """Return the line of a run whose tuner had ended before, with what is known."""
    trials = counted(results.history.count_trials(), "trial")
    line = f"nothing was left to train: the study has {trials}"
    is_single = len(results.objective.metrics) == 1
    best = results.history.best_trial(results.direction) if is_single else None
    return line if best is None else f"{line}, best {results.metric} {best.value:.6g}"


def interrupted(config: StudyConfig, meter: Meter) -> str:
    """Return the line that says what is saved after an interrupt, and how to go on."""
    saved = "what ran is saved" if meter.of_this_run.steps else "no step was trained"
    how = "" if config.load_if_exists else ", with load_if_exists=True in create_study"
    return f"{config.name}: interrupted; {saved}; the same command goes on{how}"


def lines_of_end(
    results: StudyResults, tuner: Tuner, place: TunerPlace, limit: str | None, meter: Meter
) -> Iterator[str]:
    """Yield the lines of a run that has trained: its savings, and what its sampler learned from."""
    by = "" if meter.stopped_by else "ended by its limits, "
    reason = place.ending if place.has_ended else f"{by}{limit}"
    savings = savings_line(results.summary())
    yield f"{reason}; {savings}" if reason else savings
    for transfer in results.transfers:
        if transfer.tuner == place.number:
            yield f"its sampler learned from {transfer}"
    yield from lines_of(results.models(tuner) if tuner.model_weights else [])


def origin(stages: list[StageRow], steps: Step) -> str:
    """Return where the metrics of a step come from, by the stages that ran for them."""
    trained = sum(stage.steps for stage in stages)
    if not trained:
        return f"trained no step: the metrics of step {steps:,} are stored"
    start = min(stage.start for stage in stages)
    line = f"from the stored state of step {start:,}" if start else "from the beginning"
    return f"trained {counted(trained, 'step')} to step {steps:,}, {line}"
