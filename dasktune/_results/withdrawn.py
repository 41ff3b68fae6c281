"""Results that rest on withdrawn metrics: on steps behind a difference that an audit found.

From then on trials are trained alone, and what they report is right. Reports and decisions before
stand in the log as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dasktune._driver.audit_notes import named
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import Document
from dasktune.graph.cost import steps_together
from dasktune.types import Step, TrialState

RETRAIN = "study.retrain_withdrawn(), or dasktune run --retrain-withdrawn, trains them again, alone"
"""Advice for results that rest on withdrawn metrics, or may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Results that rest on withdrawn metrics: an audit found a difference behind them.

    Parameters
    ----------
    trials
        Trials whose last report is of steps in which, or after which, an audit found a difference.
        A failed trial has no result.
    others
        Number of other trials whose last report was made while trials were merged: they may be
        wrong as well if they resumed.
    steps
        Number of trained steps that are of no use any more, since their trials are trained alone.

    Examples
    --------
    >>> print(Withdrawn(trials=(1, 2)))
    trials 1, 2 rest on a withdrawn metric; \
study.retrain_withdrawn(), or dasktune run --retrain-withdrawn, trains them again, alone
    """

    trials: tuple[int, ...] = ()
    others: int = 0
    steps: Step = 0

    def __str__(self) -> str:
        """Return the trials in words; empty if all is right."""
        parts = []
        if self.trials:
            rest = "rest" if len(self.trials) > 1 else "rests"
            parts.append(f"{named(self.trials)} {rest} on a withdrawn metric")
        if self.others:
            other = "other " if self.trials else ""
            of_one = f"1 {other}trial was merged, and may be wrong if it resumed"
            of_more = f"{self.others:,} {other}trials were merged, and may be wrong if they resumed"
            parts.append(of_one if self.others == 1 else of_more)
        if parts:
            parts.append(RETRAIN)
        return "; ".join(parts)


def withdrawn_of(differences: Sequence[Document], records: Iterable[TrialRecord]) -> Withdrawn:
    """Return the results of trials that rest on metrics which these differences withdraw."""
    if not differences:
        return Withdrawn()
    known = [record for record in records if record.was_trained_here]
    merged = merged_results(known)
    resting = {
        number
        for note in differences
        for number in note["trials"]
        if merged.get(number, 0) > note["after"]
    }
    return Withdrawn(
        trials=tuple(sorted(resting)),
        others=len(merged) - len(resting),
        steps=_withdrawn_steps(known),
    )


def merged_results(trials: Iterable[TrialRecord]) -> dict[int, Step]:
    """Return the last reported step of each trial whose result was made while trials were merged.

    Failed trials have no result, and that of an added trial is its user's.
    """
    # What was told before a trial was trained alone stands in the log until its next report, or
    # until it is trained again.
    return {
        trial.number: trial.steps
        for trial in trials
        if trial.steps
        and trial.was_trained_here
        and trial.state is not TrialState.FAIL
        and (trial.alone is None or trial.alone.told == trial.steps)
    }


def _withdrawn_steps(trials: Iterable[TrialRecord]) -> Step:
    """Return the number of steps that only trials have trained which are trained alone since."""
    kept, left = [], []
    for trial in trials:
        if trial.alone is None:
            kept.append((trial.seed, trial.keyed_sequences, max(trial.steps, trial.until or 0)))
        elif trial.alone.trained:
            left.append((trial.seed, trial.keyed_sequences, trial.alone.trained))
    return steps_together([*kept, *left])[1] - steps_together(kept)[1]
