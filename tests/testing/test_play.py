"""The game of the conformance suite, tested by its list of calls."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from dasktune.algos import Random, Tuner
from dasktune.space import Float, Space
from dasktune.testing import ConformanceError, Game, play
from dasktune.testing.calls import AskCall, Call, Cause, FailCall, TellCall, WidenCall
from dasktune.types import Decision, Extend, Finish, Register, Report, Sequences, Step, Stop

SPACE = Space(lr=Float(0.01, 1.0))


def falling(trial: int, step: Step, sequences: Sequences) -> float:
    return trial + 1 / step


class Scripted(Tuner):
    """Registers trials at the first ask, and gives fixed answers to reports."""

    max_steps = 9
    state = ("asked",)

    def __init__(self, first: list[Decision], answers: dict[tuple[int, Step], list[Decision]]):
        self.asked = False
        self.first, self.answers = first, answers
        self.trials = 1 + max(one.trial for one in first if isinstance(one, Extend))

    def ask(self, capacity: int) -> list[Decision]:
        if self.asked:
            return []
        self.asked = True
        registered = [Register(trial=n, sequences={}, max_steps=9) for n in range(self.trials)]
        return [*registered, *self.first]

    def tell(self, report: Report) -> list[Decision]:
        return self.answers.get((report.trial, report.step), [])

    def tell_failure(self, trial: int) -> list[Decision]:
        return self.answers.get((trial, -1), [])

    def identity(self) -> dict[str, object]:
        return {}


def causes(game: Game) -> list[Cause]:
    return [call.cause for call in game.calls if not isinstance(call.cause, AskCall)]


def told(game: Game) -> list[tuple[int, Step]]:
    reports = [cause.report for cause in causes(game) if isinstance(cause, TellCall)]
    return [(report.trial, report.step) for report in reports]


def make_random() -> Tuner:
    return Random(SPACE, trials=6, max_steps=8)


def test_play_with_one_seed_repeats_all_calls() -> None:
    games = [play(make_random(), seed=seed, loss=falling, failures=0.3).calls for seed in (1, 1, 2)]
    assert games[0] == games[1]
    assert games[0] != games[2]


def test_play_report_order_follows_the_seed_or_the_step() -> None:
    orders = {tuple(told(play(make_random(), seed=seed, loss=falling))) for seed in range(20)}
    assert len(orders) > 15
    in_turn = told(play(make_random(), seed=3, loss=falling, in_turn=True))
    assert in_turn == [(trial, 8) for trial in range(6)]


def test_play_reports_each_requested_step_in_order() -> None:
    first: list[Decision] = [
        Extend(trial=0, until=9, reports=(2, 5)),
        Extend(trial=1, until=9, reports=(3,)),
    ]
    answers: dict[tuple[int, Step], list[Decision]] = {(0, 9): [Finish()]}
    orders = set()
    for seed in range(20):
        found = told(play(Scripted(first, answers), seed=seed, loss=falling))
        assert [step for trial, step in found if trial == 0] == [2, 5, 9]
        other = [step for trial, step in found if trial == 1]
        assert other == [3, 9][: len(other)]
        orders.add(tuple(found))
    assert len(orders) > 5


def test_play_new_request_replaces_the_old_one() -> None:
    first: list[Decision] = [Extend(trial=0, until=9, reports=(2, 5))]
    answers: dict[tuple[int, Step], list[Decision]] = {
        (0, 2): [Extend(trial=0, until=7)],
        (0, 7): [Finish()],
    }
    assert told(play(Scripted(first, answers), seed=0, loss=falling)) == [(0, 2), (0, 7)]


def test_play_stopped_trial_sends_no_report() -> None:
    first: list[Decision] = [
        Extend(trial=0, until=9, reports=(2, 5)),
        Extend(trial=1, until=9),
    ]
    answers: dict[tuple[int, Step], list[Decision]] = {
        (0, 2): [Stop(trial=0)],
        (1, 9): [Finish()],
    }
    game = play(Scripted(first, answers), seed=0, loss=falling, in_turn=True)
    assert told(game) == [(0, 2), (1, 9)]
    assert [trial.reach for trial in game.trials] == [2, 9]


def test_play_failure_replaces_a_report() -> None:
    game = play(make_random(), seed=0, loss=falling, failures=1.0)
    assert sorted(one.trial for one in causes(game) if isinstance(one, FailCall)) == list(range(6))
    assert told(game) == []
    some = play(make_random(), seed=0, loss=falling, failures=0.5)
    assert 0 < len(told(some)) < 6


def test_play_nan_metric_has_an_infinite_loss() -> None:
    game = play(make_random(), seed=0, loss=lambda trial, step, sequences: float("nan"))
    reports = [one.report for one in causes(game) if isinstance(one, TellCall)]
    assert {report.losses for report in reports} == {(float("inf"),)}


def test_play_in_parts_equals_the_whole_game() -> None:
    game = Game(make_random(), seed=4, loss=falling)
    for _ in range(5):
        game.run(1)
    assert len(game.calls) == 5
    assert game.run().calls == play(make_random(), seed=4, loss=falling).calls


def test_play_adds_the_calls_to_a_tuners_error() -> None:
    tuner = Scripted([Extend(trial=0, until=9)], {(0, 9): None})  # type: ignore[dict-item]
    with pytest.raises(TypeError) as caught:
        play(tuner, seed=0, loss=falling)
    (note,) = caught.value.__notes__
    assert note.splitlines()[0] == "in tell(trial 0, step 9, loss 0.111111) after"
    assert "0 ask(4) -> register 0; extend 0 to 9" in note


def test_conformance_error_lists_calls_and_pickles() -> None:
    tuner = Scripted([Extend(trial=0, until=10)], {})
    with pytest.raises(ConformanceError, match="until must lie between") as caught:
        play(tuner, seed=0, loss=falling)
    assert "0 ask(4) -> register 0; extend 0 to 10" in str(caught.value)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.problem, copied.calls) == (caught.value.problem, caught.value.calls)


def test_conformance_error_shows_the_last_60_calls() -> None:
    calls = [Call(cause=WidenCall(trials=number), decisions=()) for number in range(100)]
    lines = str(ConformanceError("problem", calls)).splitlines()
    assert lines[:3] == ["problem", "  (40 earlier calls)", "    40 widen(40) -> nothing"]
    assert lines[-1] == "    99 widen(99) -> nothing"


@pytest.mark.process
def test_testing_imports_without_pytest() -> None:
    code = "import dasktune.testing, sys; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
