"""Words for a study that has no best trial: how its trials ended, and what they have reported."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dasktune._engine.trials import Trial
from dasktune._words import counted
from dasktune.errors import plain
from dasktune.types import Direction, TrialState


def no_best_text(trials: Sequence[Trial], metric: str, direction: Direction) -> str:
    """Return why no trial is the best one: the failures, and the values before a trial's end."""
    failed = [trial for trial in trials if trial.state is TrialState.FAIL]
    reports = [
        (trial.number, step, value)
        for trial in trials
        if trial.state is not TrialState.FAIL
        for step, value in trial.intermediate_values.items()
    ]
    finite = [report for report in reports if math.isfinite(report[2])]
    parts = []
    if failed:
        lines = (failed[-1].error or "").strip().splitlines()
        share = "all" if len(failed) == len(trials) else f"{len(failed)} of"
        whose = f"{share} {counted(len(trials), 'trial')} failed, such as"
        if len(trials) == 1:
            whose = "the only trial failed,"
        parts.append(
            f"{whose} trial {failed[-1].number}: {plain(lines[-1]) if lines else 'no message'}"
        )
    if finite:
        best = max if direction is Direction.MAXIMIZE else min
        number, step, value = best(finite, key=lambda report: report[2])
        parts.append(
            f"{counted(len({report[0] for report in reports}), 'trial')} without a finite final "
            f"value reported {counted(len(reports), 'value')}; the best is {metric} {value:.6g}, "
            f"of trial {number} at step {step:,} (see trial.intermediate_values)"
        )
    elif reports:
        parts.append(f"{counted(len(reports), 'value')} were reported, all NaN or infinite")
    return "; ".join(parts) or f"{counted(len(trials), 'trial')} and no report"
