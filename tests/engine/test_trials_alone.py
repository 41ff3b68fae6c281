"""Trials that are trained alone from some moment on: the engine asks for them, and records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from dasktune._engine.event_log import has_ended, replay
from dasktune._engine.trials import Alone, TrialRecord
from dasktune._engine.tuner_records import read_record
from dasktune.algos import ASHA, Grid, StoppingASHA, Tuner
from dasktune.errors import ConfigurationError
from dasktune.needs import NO_NEEDS, Needs
from dasktune.space import Float, Space
from dasktune.types import Objective, Step, TrialState
from tests.engine.test_engine import END, Bench, Halving, Metric, loss, summary


def resumed(before: Bench, metric: Metric = loss, **options: Any) -> Bench:
    """Return a bench that goes on with the trials as a database gives them back."""
    trials = {
        number: TrialRecord.from_json(
            trial.to_json(), number=number, state=trial.state.value, steps=trial.steps
        )
        for number, trial in before.trials.items()
    }
    bench = Bench(metric, trials, **options)
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
    again.take(
        again.engine.resume(Halving(), place=0, records=map(read_record, first.log), now=0.0)
    )
    again.run()
    assert summary(again.trials) == END, "as the tuner decides on the same values"
    assert replay(
        Halving(), map(read_record, again.log), Objective.single("loss", "minimize")
    ).identical
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
    again.take(
        again.engine.resume(
            tuner(), place=0, records=map(read_record, first.log), now=0.0, retry=[failed]
        )
    )
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
    assert bench.dispatcher.open.steps_repeated == 2 * 2, "the 2 that were promoted began anew"


SPACE = Space(lr=Float(0.1, 1.0))
OBJECTIVE = Objective.single("loss", "minimize")
TUNERS: dict[str, Callable[[], Tuner]] = {
    "grid": lambda: Grid(Space(lr=[0.1, 0.2, 0.3]), max_steps=8),
    "halving": Halving,
    "asha": lambda: ASHA(SPACE, trials=12, max_steps=8, min_steps=2, eta=2),
    "stopping-asha": lambda: StoppingASHA(SPACE, trials=12, max_steps=8, min_steps=2, eta=2),
}


def right(lr: float, step: Step) -> float:
    """Return another loss than `loss`, in another order of trials."""
    return 1.0 - lr + step


def run_of(tuner: Tuner) -> Bench:
    bench = Bench(loss)
    bench.begin(tuner)
    bench.run()
    assert bench.engine.finished
    return bench


def retrained(before: Bench, tuner: Tuner, *, most: int = 1000, **options: Any) -> Bench:
    """Return a bench that trains all trials again, as far as a number of stages goes."""
    again = resumed(before, right, **options)
    again.take(
        again.engine.resume(
            tuner,
            place=0,
            records=map(read_record, before.log),
            now=0.0,
            retrain=range(len(before.trials)),
        )
    )
    again.run(most)
    return again


def check_retrained(bench: Bench, before: Bench, tuner: Tuner) -> None:
    """Check that trials have new values and no mark, and that all decisions stay."""
    assert bench.engine.finished
    assert has_ended(map(read_record, bench.log))
    for number, trial in bench.trials.items():
        old = before.trials[number]
        assert (trial.state, trial.steps, trial.until) == (old.state, old.steps, None)
        assert trial.value == right(trial.sequences["lr"](0), trial.steps)  # type: ignore[arg-type]
        assert trial.alone is not None
        assert trial.alone.told == 0, "not marked"
        assert bench.dispatcher.plan.paths[number].leaf.is_alone
    assert {record["kind"] for record in bench.log[len(before.log) :]} == {"retrain", "retrained"}
    result = replay(tuner, map(read_record, bench.log), OBJECTIVE)
    assert result.identical
    assert result.calls == len(before.log), "the tuner was called no more"


def test_retrained_trial_whose_needs_are_unknown_is_not_trained() -> None:
    before = run_of(TUNERS["grid"]())

    def needs_of(values: Mapping[str, object]) -> Needs:
        if values["lr"] == 0.2:
            raise ConfigurationError("needs must be known for 0.2")
        return NO_NEEDS

    after = retrained(before, TUNERS["grid"](), needs_of=needs_of)
    assert after.engine.finished
    messages = {
        record["trial"]: record.get("message")
        for record in after.log
        if record["kind"] == "retrained"
    }
    assert sorted(messages.values(), key=str) == [None, None, "needs must be known for 0.2"]
    (failed,) = (number for number, message in messages.items() if message)
    assert after.trials[failed].sequences["lr"](0) == 0.2
    assert after.trials[failed].value == before.trials[failed].value, "the old one stays"


@pytest.mark.parametrize("name", TUNERS)
@pytest.mark.parametrize("options", [{}, {"trains_alone": True}, {"snapshot_every": 1}])
def test_retrained_trials_get_new_values(name: str, options: Any) -> None:
    before = run_of(TUNERS[name]())
    again = retrained(before, TUNERS[name](), **options)
    again.log = [record for record in again.log if record["kind"] != "snapshot"]
    check_retrained(again, before, TUNERS[name]())


@pytest.mark.parametrize("snapshot_every", [1, 1000])
@pytest.mark.parametrize("most", [0, 1, 2])
def test_retraining_that_was_killed_goes_on(most: int, snapshot_every: int) -> None:
    before = run_of(TUNERS["asha"]())
    killed = retrained(before, TUNERS["asha"](), most=most, snapshot_every=snapshot_every)
    assert not killed.engine.finished
    assert not has_ended(map(read_record, killed.log))
    again = resumed(killed, right)
    again.take(
        again.engine.resume(
            TUNERS["asha"](), place=0, records=map(read_record, killed.log), now=0.0
        )
    )
    again.run()
    assert len(again.order_of_runs) == len(before.trials) - most
    again.log = [record for record in again.log if record["kind"] != "snapshot"]
    check_retrained(again, before, TUNERS["asha"]())


def test_retrained_trial_that_raises_keeps_its_value() -> None:
    before = run_of(Halving())
    again = resumed(before, right)
    again.raises = lambda lr: lr == 0.1
    again.take(
        again.engine.resume(
            Halving(), place=0, records=map(read_record, before.log), now=0.0, retrain=range(4)
        )
    )
    again.run()
    assert again.engine.finished
    assert has_ended(map(read_record, again.log))
    (failed,) = [n for n, trial in again.trials.items() if trial.params["lr"] == 0.1]
    assert summary(again.trials)[failed] == END[failed]
    alone = again.trials[failed].alone
    assert alone is not None
    assert alone.told == END[failed][1], "still marked"
    ((message,)) = [record["message"] for record in again.log if "message" in record]
    assert "boom" in str(message)
    last = retrained(again, Halving())
    assert last.trials[failed].value == right(0.1, last.trials[failed].steps)


@pytest.mark.parametrize("stages", [2, 3])
def test_paused_trial_may_be_retrained_while_tuner_goes_on(stages: int) -> None:
    """The tuner may ask more of a trial that is trained again, or end."""
    first = Bench(loss)
    first.begin(Halving())
    first.run(stages)
    paused = [n for n, trial in first.trials.items() if trial.state is TrialState.PAUSED]
    again = resumed(first, trains_alone=True)
    again.take(
        again.engine.resume(
            Halving(), place=0, records=map(read_record, first.log), now=0.0, retrain=paused
        )
    )
    again.run()
    assert again.engine.finished
    assert summary(again.trials) == END
    assert replay(Halving(), map(read_record, again.log), OBJECTIVE).identical
    for trial in again.trials.values():
        assert trial.alone is not None
        assert trial.alone.told < trial.steps, "none is marked"


def test_trials_that_cannot_be_retrained_are_left_out() -> None:
    first = Bench(loss, raises=lambda lr: lr == 0.2)
    first.begin(TUNERS["grid"]())
    first.run(2)
    again = resumed(first)
    grid = TUNERS["grid"]()
    again.take(
        again.engine.resume(
            grid, place=0, records=map(read_record, first.log), now=0.0, retrain=range(3)
        )
    )
    told = [record["trial"] for record in again.log if record["kind"] == "retrain"]
    assert told == [0], "trial 1 has failed, and trial 2 has not reported"
