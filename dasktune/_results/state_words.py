"""The words for the states of trials: in `dasktune status`, results, reports and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dasktune.types import TrialState

WORDS: Final[Mapping[TrialState, str]] = {
    TrialState.RUNNING: "running",
    TrialState.PAUSED: "paused",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

WAITING: Final = "waiting to go on"
"""The word for a trial that is to be trained further, in a study that no driver runs."""


def state_word(state: TrialState | str, *, is_driven: bool) -> str:
    """Return the word for the state of a trial, whose study a driver runs now or not.

    A trial is stored as ``RUNNING`` as long as its tuner wants more steps of it, also if the run
    was interrupted or has reached a limit. Until the next run it waits.

    Examples
    --------
    >>> state_word("RUNNING", is_driven=True), state_word("RUNNING", is_driven=False)
    ('running', 'waiting to go on')
    """
    state = TrialState(state)
    return WAITING if state is TrialState.RUNNING and not is_driven else WORDS[state]


def states_text(counts: Mapping[str, int], *, is_driven: bool) -> str:
    """Return the numbers of trials by state in words, in the order of `WORDS`.

    Examples
    --------
    >>> states_text({"FAIL": 1, "RUNNING": 1200}, is_driven=False)
    '1,200 waiting to go on, 1 failed'
    """
    known = [state for state in WORDS if counts.get(state.value)]
    return (
        ", ".join(f"{counts[s.value]:,} {state_word(s, is_driven=is_driven)}" for s in known)
        or "none"
    )
