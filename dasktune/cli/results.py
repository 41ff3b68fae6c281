"""The results that a run prints at its end: best trials, failed trials, saved steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune._engine.limits import ALIKE, STOPPED
from dasktune._engine.trials import Trial
from dasktune._results.state_words import state_word
from dasktune._results.summary import savings_line
from dasktune._words import counted
from dasktune.report.formats import printable
from dasktune.types import Direction, TrialState

if TYPE_CHECKING:
    from dasktune._study.study import Study

MOST_TRIALS = 5
"""Rows of the table of the best trials."""

MOST_FAILURES = 10
"""Failed trials in the text; the report has them all."""

WIDEST = 24
"""Letters of a value in that table; the best trial is also shown in full."""


def failed(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that failed."""
    return [trial for trial in trials if trial.state is TrialState.FAIL]


def ranking(trials: Iterable[Trial], direction: Direction) -> list[Trial]:
    """Return the trials with a finite value that did not fail, the best first."""
    sign = -1 if direction is Direction.MAXIMIZE else 1
    ranked = [
        (sign * trial.value, trial.number, trial)
        for trial in trials
        if trial.state is not TrialState.FAIL
        and trial.value is not None
        and math.isfinite(trial.value)
    ]
    return [trial for _, _, trial in sorted(ranked, key=lambda row: row[:2])]


def as_text(study: Study, trials: Sequence[Trial]) -> str:
    """Return the results of a study as text."""
    summary = study.summary()
    withdrawn = summary["withdrawn"]["trials"]
    if len(study.objective.metrics) > 1:
        best = _front(study, withdrawn)
    else:
        best = _best(study, ranking(trials, study.direction), withdrawn)
    parts = [*best, *_failures(failed(trials)), savings_line(summary)]
    differences = summary["audits"]["differences"]
    parts += ["\n".join(map(printable, text.splitlines())) for text in differences]
    parts += [printable(f"a sampler learned from {each}") for each in study.transfers]
    if study.had_ended:
        parts.append("nothing was left to train in this run")
    if study.ending:
        parts.append(f"ended: {study.ending}")
    if study.limit is not None:
        parts.append(_limit_text(study.limit))
    return "\n".join(parts)


def _limit_text(limit: str) -> str:
    """Return the line about the limit that ended a run, with the way to go on."""
    if limit.startswith(STOPPED):
        return f"{limit}; the same command goes on"
    remedy = "--keep-going trains on" if limit.startswith(ALIKE) else "a larger limit goes on"
    return f"ended by its limits: {limit}; {remedy}"


def as_json(study: Study, trials: Sequence[Trial], report: Path | None) -> dict[str, object]:
    """Return the results of a study as a JSON document."""
    several = len(study.objective.metrics) > 1
    directions = [direction.value for direction in study.objective.directions]
    return {
        "study": study.name,
        "metric": list(study.objective.metrics) if several else study.metric,
        "direction": directions if several else study.direction.value,
        "best": None if several else next(map(trial_json, study.best_trials), None),
        "best_trials": list(map(trial_json, study.best_trials)),
        "limit": study.limit,
        "ending": study.ending or None,
        "had_ended": study.had_ended,
        "failed": [{"number": trial.number, "error": last_line(trial)} for trial in failed(trials)],
        "transfers": list(map(asdict, study.transfers)),
        "summary": dict(study.summary()),
        "report": None if report is None else str(report),
    }


def trial_json(trial: Trial) -> dict[str, object]:
    """Return a trial with a finite value as a JSON document."""
    return {
        "number": trial.number,
        "state": trial.state.value,
        "steps": trial.steps,
        "value": trial.value,
        "values": trial.values,
        "params": dict(trial.params),
    }


def last_line(trial: Trial) -> str:
    """Return the last line of a failed trial's error."""
    lines = (trial.error or "").strip().splitlines()
    return printable(lines[-1]) if lines else "failed"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    r"""Return the lines of a table, its columns as wide as their contents.

    Examples
    --------
    >>> print("\n".join(table(["trial", "loss"], [[7, 0.25], [12, 1.0]])))
    trial  loss
    7      0.25
    12     1
    """
    cells = [list(map(printable, header)), *([shown(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def shown(value: object) -> str:
    """Return a value as text: floats with six digits, without control characters."""
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def _best(study: Study, ranked: Sequence[Trial], withdrawn: Collection[int]) -> list[str]:
    if not ranked:
        return ["no trial has a finite value"]
    best = ranked[0]
    steps = counted(best.steps, "step")
    lines = [
        f"best {study.metric}: {shown(best.value)} (trial {best.number}, {steps})"
        + (", rests on a withdrawn metric" if best.number in withdrawn else ""),
        *_params(best.params),
    ]
    if len(ranked) == 1:
        return lines
    header = ["trial", study.metric, "steps", "state", *best.params]
    rows = [
        [trial.number, trial.value, trial.steps, _state(trial, withdrawn)]
        + [_cut(shown(trial.params.get(name, ""))) for name in best.params]
        for trial in ranked[:MOST_TRIALS]
    ]
    return [*lines, "", *table(header, rows), ""]


def _state(trial: Trial, withdrawn: Collection[int]) -> str:
    state = state_word(trial.state, is_driven=False)
    return f"{state}, withdrawn" if trial.number in withdrawn else state


def _front(study: Study, withdrawn: Collection[int]) -> list[str]:
    """Return a table of the Pareto front: no other trial beats these in every metric."""
    front = study.best_trials
    if not front:
        return ["no trial has finite values"]
    metrics = study.objective.metrics
    header = ["trial", *metrics, "steps", "state", *front[0].params]
    rows = [
        [trial.number, *(trial.values or ()), trial.steps, _state(trial, withdrawn)]
        + [_cut(shown(trial.params.get(name, ""))) for name in front[0].params]
        for trial in front[:MOST_TRIALS]
    ]
    of = f"the first {MOST_TRIALS} of " if len(front) > MOST_TRIALS else ""
    trials = f"{of}{counted(len(front), 'trial')}"
    heading = f"{trials} that no other beats in {' and '.join(metrics)}:"
    return [heading, *table(header, rows), ""]


def _params(params: Mapping[str, object]) -> list[str]:
    width = max(map(len, params), default=0)
    return [f"  {name.ljust(width)}  {shown(value)}" for name, value in params.items()]


def _failures(trials: Sequence[Trial]) -> list[str]:
    if not trials:
        return []
    lines = [f"{len(trials)} failed:"]
    lines += [f"  trial {trial.number}: {last_line(trial)}" for trial in trials[:MOST_FAILURES]]
    if len(trials) > MOST_FAILURES:
        lines.append(f"  and {len(trials) - MOST_FAILURES} more")
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
