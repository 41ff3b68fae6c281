"""Trials that are trained alone from some moment on: the engine asks for them, and records it."""

from __future__ import annotations

import pytest

from dasktune.algos import Grid
from dasktune.engine.event_log import replay
from dasktune.engine.trials import Alone, TrialRecord
from dasktune.space import Space
from dasktune.types import Objective, TrialState
from tests.engine.test_engine import END, Bench, Halving, loss, summary


def resumed(before: Bench, **options: bool) -> Bench:
    """Return a bench that goes on with the trials as a database gives them back."""
    trials = {
        number: TrialRecord.from_json(
            trial.to_json(), number=number, state=trial.state.value, steps=trial.steps
        )
        for number, trial in before.trials.items()
    }
    bench = Bench(loss, trials, **options)
    bench.log = list(before.log)
    return bench


@pytest.mark.parametrize("stages", [1, 3, 5])
def test_trials_asked_for_later_are_trained_alone(stages: int) -> None:
    first = Bench(loss)
    first.begin(Halving())
    first.run(stages)
    waiting = {number for number, trial in first.trials.items() if trial.until is not None}
    told = {number: trial.steps for number, trial in first.trials.items()}
    again = resumed(first, trains_alone=True)
    again.take(again.engine.resume(Halving(), place=0, records=first.log, now=0.0))
    again.run()
    assert summary(again.trials) == END, "as the tuner decides on the same values"
    assert replay(Halving(), again.log, Objective.single("loss", "minimize")).identical
    alone = {number for number, trial in again.trials.items() if trial.alone is not None}
    assert waiting <= alone <= waiting | {1, 3}, "those that were promoted later, too"
    for number, trial in again.trials.items():
        assert again.dispatcher.plan.paths[number].leaf.is_alone == (number in alone)
        assert trial.alone is None or told[number] <= trial.alone.told <= trial.steps
    last = resumed(again)
    assert {number: trial.alone for number, trial in last.trials.items()} == {
        number: trial.alone for number, trial in again.trials.items()
    }


def test_failed_trial_that_is_taken_back_is_trained_alone() -> None:
    def tuner() -> Grid:
        return Grid(Space(lr=[0.1, 0.2, 0.3]), max_steps=8)

    first = Bench(loss, raises=lambda lr: lr == 0.2)
    first.begin(tuner())
    first.run()
    (failed,) = [n for n, trial in first.trials.items() if trial.state is TrialState.FAIL]
    again = resumed(first, trains_alone=True)
    again.take(again.engine.resume(tuner(), place=0, records=first.log, now=0.0, retry=[failed]))
    again.run()
    assert {trial.state for trial in again.trials.values()} == {TrialState.COMPLETE}
    assert {number: trial.alone for number, trial in again.trials.items()} == {
        number: Alone() if number == failed else None for number in again.trials
    }


def test_new_trials_are_trained_alone() -> None:
    bench = Bench(loss, trains_alone=True)
    bench.begin(Halving())
    bench.run()
    assert summary(bench.trials) == END
    assert {trial.alone for trial in bench.trials.values()} == {Alone()}
    assert bench.dispatcher.steps_repeated == 2 * 2, "the 2 that were promoted began anew"
