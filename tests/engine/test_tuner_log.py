"""The log of a tuner at work: records, proposals and snapshots."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dasktune._engine.session import Session
from dasktune._engine.trial_keeper import TrialKeeper
from dasktune._engine.tuner_log import TunerLog, replay_record
from dasktune._engine.tuner_records import (
    ClockNoted,
    Record,
    SnapshotTaken,
    TimeTold,
    WorkAsked,
)
from dasktune.algos import Grid
from dasktune.errors import ConfigurationError
from dasktune.space import Space
from dasktune.types import Finish, Objective

LOSS = Objective.single("loss", "minimize")
PROPOSAL = {"lr": 0.1}
ASKED = WorkAsked(capacity=1)


class Proposing(Grid):
    """A tuner whose sampler has just proposed a point."""

    proposals: list[Mapping[str, object]]

    def take_proposals(self) -> list[Mapping[str, object]]:
        taken, self.proposals = self.proposals, []
        return taken


def session() -> Session:
    tuner = Proposing(Space(lr=[0.1]), max_steps=4)
    tuner.proposals = [PROPOSAL]
    return Session(tuner, 2)


def test_log_record_has_the_place_and_the_proposals() -> None:
    log, tuner = TunerLog(), session()
    log.note(tuner, ASKED, [Finish()])
    record = Record(cause=ASKED, place=2, decisions=(Finish(),), proposals=[PROPOSAL])
    assert log.take(tuner) == (record,)
    assert log.take(tuner) == ()


def test_log_record_that_is_added_leaves_the_proposals() -> None:
    log, tuner = TunerLog(), session()
    log.add(tuner, ClockNoted(seconds=1.0))
    assert log.take(None) == (Record(cause=ClockNoted(seconds=1.0), place=2),)
    assert tuner.tuner.take_proposals() == [PROPOSAL]
    assert tuner.since_snapshot == 0


def test_log_forgets_records_that_are_dropped() -> None:
    log, tuner = TunerLog(), session()
    log.note(tuner, ASKED)
    log.drop()
    assert log.take(tuner) == ()


@pytest.mark.parametrize(("trials", "snapshot_at"), [(0, 2), (2, 2), (3, 3)])
def test_log_snapshot_follows_as_many_records_as_trials(trials: int, snapshot_at: int) -> None:
    log, tuner = TunerLog(snapshot_every=2), session()
    tuner.numbers = {number: number for number in range(trials)}
    for count in range(1, snapshot_at + 1):
        log.note(tuner, ASKED)
        last = log.take(tuner)[-1].cause
        assert isinstance(last, SnapshotTaken) == (count == snapshot_at)
    assert tuner.since_snapshot == 0


def test_log_keeps_the_latest_time_of_its_causes() -> None:
    log, tuner = TunerLog(), session()
    for seconds in (3.0, 2.0):
        log.note(tuner, TimeTold(seconds=seconds))
    assert tuner.seconds == 3.0


def test_replay_of_a_record_refuses_another_decision() -> None:
    tuner = session()
    record = Record(cause=ASKED, place=2, decisions=({"do": "finish"},))
    with pytest.raises(ConfigurationError, match="must decide as recorded: after being asked"):
        replay_record(tuner, TrialKeeper({}, LOSS), record, LOSS)


def test_session_is_what_it_was_after_its_snapshot() -> None:
    before, after = session(), session()
    before.ending, before.finished, before.seconds = "target reached", True, 2.5
    before.questions, before.retrained, before.assessed = {1}, {2}, {3}
    before.stopped = {4}
    after.restore(before.snapshot())
    assert after.snapshot() == before.snapshot()
    assert (after.ending, after.seconds, after.stopped) == ("target reached", 2.5, {4})
