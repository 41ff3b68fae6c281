"""Which results and steps are withdrawn after an audit found a difference."""

from __future__ import annotations

from typing import Any

from dasktune._engine.trials import Alone, TrialRecord
from dasktune._results.withdrawn import Withdrawn, withdrawn_of
from dasktune.sequences import Constant, MultiStep

DIFFERENCE = {"audit": "differs", "trials": [1, 2], "after": 10}
"""A note of an audit: what trials 1 and 2 reported after step 10 cannot be relied on."""

ENDED = {"steps": 40}
BEGUN = {"alone": Alone(told=5, trained=25)}
"""Of a trial of 40 steps that branched off the others at step 20, and was trained to step 25."""


def trial(number: int, **state: Any) -> TrialRecord:
    lr = Constant(0.1) if number == 0 else MultiStep(0.1, [20], gamma=number / 10)
    return TrialRecord(
        number=number, tuner=0, local=number, params={}, sequences={"lr": lr}, max_steps=40, **state
    )


def withdrawn(*trials: TrialRecord, notes: Any = (DIFFERENCE,)) -> Withdrawn:
    return withdrawn_of(notes, trials)


def test_nothing_is_withdrawn_without_a_difference() -> None:
    assert withdrawn(trial(0, **ENDED), trial(1, **BEGUN), notes=()) == Withdrawn()


def test_trials_beyond_the_difference_are_marked() -> None:
    found = withdrawn(trial(0, **ENDED), trial(1, **ENDED), trial(2, steps=10))
    assert (found.trials, found.others, found.steps) == ((1,), 2, 0)


def test_steps_of_trials_alone_that_none_shares_are_withdrawn() -> None:
    found = withdrawn(trial(0, **ENDED), trial(1, **BEGUN))
    assert found.steps == 5  # trial 0 has the first 20


def test_steps_that_trials_alone_had_shared_are_withdrawn_once() -> None:
    assert withdrawn(trial(1, **BEGUN), trial(2, **BEGUN)).steps == 20 + 5 + 5
