"""Failed trials that their tuner takes back: engine, tuners and event log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dasktune._engine.event_log import ending_of, has_ended, replay
from dasktune._engine.tuner_records import Document, FailureTold, Record, TrialRetried, read_record
from dasktune.algos import (
    ASHA,
    PBT,
    SHA,
    Bandit,
    Grid,
    MedianStopping,
    PatienceStopping,
    Random,
    StoppingASHA,
    Tuner,
)
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Objective, Step, TrialState
from tests.engine.test_engine import Bench

SPACE = Space(lr=Float(0.1, 1.0))
OBJECTIVE = Objective.single("loss", "minimize")
TUNERS: dict[str, Callable[[], Tuner]] = {
    "grid": lambda: Grid(Space(lr=[0.1 * n for n in range(1, 9)]), max_steps=8),
    "random": lambda: Random(SPACE, trials=8, max_steps=8),
    "median": lambda: MedianStopping(SPACE, trials=8, max_steps=8, every=2),
    "patience": lambda: PatienceStopping(SPACE, trials=8, max_steps=8, every=2, patience=3),
    "bandit": lambda: Bandit(SPACE, trials=8, max_steps=8, every=2, slack=0.3),
    "asha": lambda: ASHA(SPACE, trials=12, max_steps=8, min_steps=2, eta=2),
    "stopping-asha": lambda: StoppingASHA(SPACE, trials=12, max_steps=8, min_steps=2, eta=2),
}
IN_FULL = ("grid", "random")


def loss(lr: float, step: Step) -> float:
    return lr / step


def after_failures(tuner: Tuner, raises: Callable[[float], bool]) -> Bench:
    """Return a finished run in which the trainer raised at some learning rates."""
    bench = Bench(loss, raises=raises)
    bench.begin(tuner)
    bench.run()
    assert bench.engine.finished
    return bench


def taken_back(bench: Bench, tuner: Tuner, raises: Callable[[float], bool]) -> Bench:
    """Return a run that takes all failed trials back and goes on to its end."""
    failed = [one.local for one in bench.trials.values() if one.state is TrialState.FAIL]
    again = Bench(loss, bench.trials, raises=raises)
    again.log = list(bench.log)
    again.take(
        again.engine.resume(
            tuner, place=0, records=map(read_record, bench.log), now=0.0, retry=failed
        )
    )
    again.run()
    assert again.engine.finished
    return again


@pytest.mark.parametrize("name", TUNERS)
@pytest.mark.parametrize("share", [0.4, 2.0], ids=["some", "all"])
def test_tuner_takes_failed_trials_back(name: str, share: float) -> None:
    bench = after_failures(TUNERS[name](), lambda lr: lr < share)
    assert any(one.state is TrialState.FAIL for one in bench.trials.values())
    assert has_ended(map(read_record, bench.log))
    again = taken_back(bench, TUNERS[name](), lambda lr: False)
    assert all(one.state is not TrialState.FAIL for one in again.trials.values())
    assert all(one.value is not None for one in again.trials.values())
    assert all(one.message == "" for one in again.trials.values())
    assert {one["kind"] for one in again.log} >= {"fail", "retry"}
    assert replay(TUNERS[name](), map(read_record, again.log), OBJECTIVE).identical
    if name in IN_FULL:
        straight = after_failures(TUNERS[name](), lambda lr: False)
        values = {number: one.value for number, one in straight.trials.items()}
        assert {number: one.value for number, one in again.trials.items()} == values
        assert all(one.state is TrialState.COMPLETE for one in again.trials.values())


def test_trial_that_fails_again_is_final_until_the_next_retry() -> None:
    bench = after_failures(TUNERS["grid"](), lambda lr: lr < 0.4)
    again = taken_back(bench, TUNERS["grid"](), lambda lr: lr < 0.2)
    states = [one.state for one in again.trials.values()]
    assert states == [TrialState.FAIL] + [TrialState.COMPLETE] * 7
    assert has_ended(map(read_record, again.log))
    last = taken_back(again, TUNERS["grid"](), lambda lr: False)
    assert {one.state for one in last.trials.values()} == {TrialState.COMPLETE}


def test_log_that_ends_with_a_retry_has_not_ended() -> None:
    failed = FailureTold(trial=0, message="boom", traceback="")
    ends: Document = {"do": "finish", "reason": "target reached"}
    finish = Record(cause=failed, place=0, decisions=(ends,))
    extends: Document = {"do": "extend", "trial": 0}
    retry = Record(cause=TrialRetried(trial=0, step=0), place=0, decisions=(extends,))
    assert has_ended([finish])
    assert not has_ended([finish, retry])
    assert (ending_of([finish]), ending_of([finish, retry])) == ("target reached", "")


@pytest.mark.parametrize(
    "tuner",
    [
        SHA(SPACE, trials=4, max_steps=8, min_steps=2, eta=2),
        PBT(SPACE, population=4, max_steps=8, truncation=0.5),
    ],
    ids=lambda tuner: type(tuner).__name__,
)
def test_tuner_that_decided_without_a_trial_refuses_it(tuner: Tuner) -> None:
    assert not tuner.takes_back
    with pytest.raises(ConfigurationError, match="cannot take a failed trial back"):
        tuner.tell_retry(0, 2)
