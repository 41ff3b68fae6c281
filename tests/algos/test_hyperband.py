"""Hyperband loops through brackets, synchronous or not, until its trials are drawn."""

from __future__ import annotations

import json

import pytest

from dasktune.algos.hyperband import AsyncHyperband, Hyperband, loop
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Extend, Finish, Register
from tests.algos.reports import arrived, extends

SPACE = Space(x=Float(0.0, 1.0))


def run(tuner: Hyperband | AsyncHyperband, workers: int = 1) -> dict[int, list[int]]:
    """Return the steps that each trial was trained to; a lower number is a lower loss."""
    reached: dict[int, list[int]] = {}
    waiting = extends(tuner.ask(workers))
    while True:
        if not waiting:
            waiting = extends(tuner.ask(workers))
            assert waiting
        trial, until = waiting.pop(0)
        reached.setdefault(trial, []).append(until)
        decisions = tuner.tell(arrived(trial, until, trial / 1000))
        waiting += extends(decisions)
        if Finish() in decisions:
            assert not waiting
            return reached


def test_sizes_are_those_of_the_published_table() -> None:
    """Li et al. (JMLR 2018), Table 1: R = 81, eta = 3."""
    tuner = Hyperband(SPACE, trials=143, max_steps=81, min_steps=1, eta=3)
    assert [tuner.schedule(index, left=143) for index in range(6)] == [
        ((1, 81), (3, 27), (9, 9), (27, 3), (81, 1)),
        ((3, 34), (9, 11), (27, 3), (81, 1)),
        ((9, 15), (27, 5), (81, 1)),
        ((27, 8), (81, 2)),
        ((81, 5),),
        ((1, 81), (3, 27), (9, 9), (27, 3), (81, 1)),
    ]


def test_widths_do_not_lose_a_trial_to_rounding() -> None:
    assert [one.width for one in loop((1, 4, 16), eta=4)] == [16, 6, 3]
    assert [one.width for one in loop((5,), eta=4)] == [1]


def test_one_loop_trains_what_the_table_says() -> None:
    reached = run(Hyperband(SPACE, trials=17, max_steps=9, min_steps=1, eta=3))
    assert [reached[trial][-1] for trial in range(9)] == [9, 3, 3, 1, 1, 1, 1, 1, 1]
    assert [reached[trial] for trial in range(9, 14)] == [[3, 9], [3], [3], [3], [3]]
    assert [reached[trial] for trial in range(14, 17)] == [[9], [9], [9]]


def test_the_next_bracket_begins_when_workers_are_idle() -> None:
    tuner = Hyperband(SPACE, trials=17, max_steps=9, min_steps=1, eta=3)
    decisions = tuner.ask(4)
    assert [one.trial for one in decisions if isinstance(one, Register)] == list(range(17))
    assert extends(decisions) == [(trial, 1) for trial in range(9)]
    assert extends(tuner.ask(1)) == [(trial, 3) for trial in range(9, 14)]
    assert extends(tuner.ask(2)) == [(trial, 9) for trial in range(14, 17)]
    assert tuner.ask(9) == []
    many = Hyperband(SPACE, trials=34, max_steps=9, min_steps=1, eta=3).ask(18)
    assert len(extends(many)) == 26


@pytest.mark.parametrize(
    ("left", "schedule"),
    [
        (9, ((1, 9), (3, 3), (9, 1))),
        (8, ((3, 8), (9, 2))),
        (3, ((3, 3), (9, 1))),
        (2, ((9, 2),)),
        (1, ((9, 1),)),
    ],
)
def test_last_bracket_is_cut_and_still_reaches_the_end(
    left: int, schedule: tuple[tuple[int, int], ...]
) -> None:
    tuner = Hyperband(SPACE, trials=17 + left, max_steps=9, min_steps=1, eta=3)
    assert tuner.schedule(3, left=left) == schedule
    assert len(run(tuner)) == 17 + left


def test_more_trials_go_on_with_the_loop() -> None:
    wide = Hyperband(SPACE, trials=30, max_steps=9, eta=3)
    tuner = wide.widened_from(Hyperband(SPACE, trials=17, max_steps=9, eta=3).identity())
    assert tuner is not None
    run(tuner)
    assert [one.trial for one in tuner.widen(30) if isinstance(one, Register)] == [*range(17, 30)]
    restored = Hyperband(SPACE, trials=30, max_steps=9, eta=3)
    restored.restore(json.loads(json.dumps(tuner.snapshot())))
    assert extends(restored.ask(1)) == [(trial, 1) for trial in range(17, 26)]
    assert extends(restored.ask(1)) == [(trial, 3) for trial in range(26, 30)]


def test_widening_keeps_the_rungs_that_few_trials_had() -> None:
    wide = Hyperband(SPACE, trials=30, max_steps=9, eta=3)
    tuner = wide.widened_from(Hyperband(SPACE, trials=4, max_steps=9, eta=3).identity())
    assert tuner is not None
    assert extends(tuner.ask(1)) == [(0, 3), (1, 3), (2, 3)]
    tuner.widen(30)
    wide.restore(json.loads(json.dumps(tuner.snapshot())))
    assert extends(wide.ask(1)) == [(3, 9), (4, 9)]
    assert extends(wide.ask(1)) == [(5, 3), (6, 3), (7, 3)]


# Asynchronous.


def test_new_trials_fill_one_bracket_after_the_other() -> None:
    tuner = AsyncHyperband(SPACE, trials=40, max_steps=9, min_steps=1, eta=3)
    loop_of_17 = [1] * 9 + [3] * 5 + [9] * 3
    bases = [until for _, until in extends(tuner.ask(1))]
    assert bases == (loop_of_17 * 3)[:40]


def test_promotions_happen_in_every_bracket_at_any_time() -> None:
    tuner = AsyncHyperband(SPACE, trials=40, max_steps=9, min_steps=1, eta=3)
    tuner.ask(1)
    for trial in (0, 9, 1, 10):
        assert tuner.tell(arrived(trial, 1 if trial < 9 else 3, 0.1)) == []
    assert tuner.tell(arrived(11, 3, 0.2)) == [Extend(trial=9, until=9, priority=1)]
    # A trial of the second loop meets those of the first in the rung that they share.
    assert tuner.tell(arrived(17, 1, 0.2)) == [Extend(trial=0, until=3, priority=1)]


def test_the_asynchronous_loop_trains_everything_that_is_drawn() -> None:
    reached = run(AsyncHyperband(SPACE, trials=40, max_steps=9, min_steps=1, eta=3), workers=4)
    assert sorted(reached) == list(range(40))
    assert sum(steps[-1] == 9 for steps in reached.values()) >= 6


def test_more_trials_go_on_with_the_asynchronous_loop() -> None:
    wide = AsyncHyperband(SPACE, trials=40, max_steps=9, min_steps=1, eta=3)
    narrow = AsyncHyperband(SPACE, trials=20, max_steps=9, min_steps=1, eta=3)
    tuner = wide.widened_from(narrow.identity())
    assert tuner is not None
    first = extends(tuner.ask(1))
    assert first + extends(tuner.widen(40)) == extends(wide.ask(1))


@pytest.mark.parametrize("kind", [Hyperband, AsyncHyperband])
def test_bad_arguments_are_refused_at_once(kind: type[Hyperband | AsyncHyperband]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(SPACE, trials=0, max_steps=8, min_steps=9, eta=1, seed=-1)
    assert len(caught.value.problems) == 4
    with pytest.raises(ConfigurationError, match=r">= 9 .*, got 8"):
        kind(SPACE, trials=8, max_steps=9, min_steps=1, eta=3)
    few = kind(SPACE, trials=8, max_steps=9, eta=3)
    assert extends(few.ask(1))[0] == (0, 3)
