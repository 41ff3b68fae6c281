"""Synchronous halving decides a rung when it is complete, as Algorithm 1 does."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.milestones import Milestones
from dasktune.algos.samplers import RandomSource
from dasktune.algos.sha import SHA
from dasktune.errors import ConfigurationError
from dasktune.sequences import Warmup
from dasktune.space import Float, Space
from dasktune.types import Decision, Extend, Finish, Register
from tests.algos.reports import arrived, extends

SPACE = Space(x=Float(0.0, 1.0))
GRID = Space(lr=[0.1, 0.2, 0.3, 0.4], momentum=[0.0, 0.9])


class LearningSource(RandomSource):
    learns = True


def figure_one(s: int = 0) -> SHA:
    return SHA(SPACE, trials=9, max_steps=9, min_steps=1, eta=3, s=s)


@pytest.mark.parametrize(
    ("s", "table"),
    [(0, ((1, 9), (3, 3), (9, 1))), (1, ((3, 9), (9, 3))), (2, ((9, 9),))],
)
def test_each_decision_is_that_of_figure_one(s: int, table: tuple[tuple[int, int], ...]) -> None:
    """n = 9, r = 1, R = 9, eta = 3; a smaller number is a smaller loss."""
    tuner = figure_one(s)
    decisions = tuner.ask(1)
    assert [type(one) for one in decisions] == [Register] * 9 + [Extend] * 9
    assert extends(decisions) == [(trial, table[0][0]) for trial in range(9)]
    assert tuner.ask(9) == []
    for level, (step, width) in enumerate(table):
        trials = list(range(width))
        for trial in reversed(trials[1:]):
            assert tuner.tell(arrived(trial, step, trial / 10)) == []
        found = tuner.tell(arrived(0, step, 0.0))
        if step == 9:
            assert found == [Finish()]
        else:
            above, survivors = table[level + 1]
            assert found == [
                Extend(trial=trial, until=above, priority=level + 1) for trial in range(survivors)
            ]


@given(
    order=st.permutations(range(9)),
    losses=st.lists(st.sampled_from([0.1, 0.2, 0.3, math.inf]), min_size=9, max_size=9),
    failed=st.sets(st.integers(0, 8)),
)
def test_who_goes_on_does_not_depend_on_who_arrives_first(
    order: list[int], losses: list[float], failed: set[int]
) -> None:
    tuner = figure_one()
    tuner.ask(1)
    answers = []
    for trial in order:
        state = json.loads(json.dumps(tuner.snapshot(), allow_nan=False))
        tuner = figure_one()
        tuner.restore(state)
        if trial in failed:
            answers.append(tuner.tell_failure(trial))
        else:
            answers.append(tuner.tell(arrived(trial, 1, losses[trial])))
    finite = [trial for trial in range(9) if trial not in failed and losses[trial] < math.inf]
    best = sorted(finite, key=lambda trial: losses[trial])[:3]
    expected: list[Decision] = [Extend(trial=one, until=3, priority=1) for one in best]
    assert answers == [[]] * 8 + [expected or [Finish()]]


def test_one_that_fails_while_it_waits_is_not_promoted() -> None:
    tuner = figure_one()
    tuner.ask(1)
    for trial in range(8):
        tuner.tell(arrived(trial, 1, trial / 10))
    assert tuner.tell_failure(0) == []
    assert extends(tuner.tell(arrived(8, 1, 0.8))) == [(1, 3), (2, 3), (3, 3)]


def test_what_comes_late_or_early_decides_nothing() -> None:
    tuner = figure_one()
    assert tuner.tell(arrived(0, 1, 0.1)) == []
    assert tuner.tell_failure(0) == []
    tuner.ask(1)
    assert tuner.tell(arrived(0, 0, 0.1)) == []
    for trial in range(9):
        last = tuner.tell(arrived(trial, 1, trial / 10))
    assert len(extends(last)) == 3
    assert tuner.tell(arrived(8, 3, 0.0)) == []
    assert tuner.tell_failure(8) == []


def test_widths_are_rounded_down_from_the_first() -> None:
    tuner = SHA(SPACE, trials=35, max_steps=27, min_steps=1, eta=3)
    assert tuner.schedule(0, left=35) == ((1, 35), (3, 11), (9, 3), (27, 1))


def test_a_bracket_is_added_when_workers_have_nothing_to_do() -> None:
    tuner = SHA(SPACE, trials=2, max_steps=2, min_steps=1, eta=2, brackets=4)
    decisions = tuner.ask(3)
    assert [one.trial for one in decisions if isinstance(one, Register)] == list(range(8))
    assert extends(decisions) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert tuner.ask(0) == []
    assert extends(tuner.ask(1)) == [(4, 1), (5, 1)]
    for bracket in range(3):
        assert tuner.tell(arrived(2 * bracket, 1, 0.1)) == []
        assert extends(tuner.tell(arrived(2 * bracket + 1, 1, 0.2))) == [(2 * bracket, 2)]
        assert tuner.tell(arrived(2 * bracket, 2, 0.1)) == []
    # All that began has ended, but one bracket is left.
    assert extends(tuner.ask(9)) == [(6, 1), (7, 1)]
    assert tuner.ask(9) == []
    assert tuner.tell_failure(6) == []
    assert tuner.tell_failure(7) == [Finish()]


def test_a_source_that_learns_fills_a_bracket_as_workers_come() -> None:
    sampler = LearningSource(SPACE, 0)
    tuner = SHA(SPACE, trials=4, max_steps=2, min_steps=1, eta=2, brackets=2, sampler=sampler)
    decisions = tuner.ask(3)
    assert [type(one) for one in decisions] == [Register] * 3 + [Extend] * 3
    for trial in range(3):
        assert tuner.tell(arrived(trial, 1, trial / 10)) == []
    # One place is left in the first bracket; the other two begin the next.
    assert extends(tuner.ask(3)) == [(3, 1), (4, 1), (5, 1)]
    assert extends(tuner.tell(arrived(3, 1, 0.05))) == [(0, 2), (3, 2)]


def test_a_space_may_be_a_function() -> None:
    tuner = Milestones(
        lambda trial: {"x": trial.suggest_float("x", 0, 1)}, keep={5: 1}, max_steps=9, trials=3
    )
    assert extends(tuner.ask(1)) == [(trial, 5) for trial in range(3)]


def test_few_trials_leave_out_low_rungs_without_a_minimum() -> None:
    assert SHA(SPACE, trials=15, max_steps=60).schedule(0, left=15) == ((15, 15), (60, 3))
    with pytest.raises(ConfigurationError, match=r">= 9 .*, got 8"):
        SHA(SPACE, trials=8, max_steps=9, min_steps=1, eta=3)
    assert SHA(SPACE, trials=3, max_steps=9, min_steps=1, eta=3, s=1).schedule(0, left=3) == (
        (3, 3),
        (9, 1),
    )


def test_bad_arguments_of_sha_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        SHA(SPACE, trials=0, max_steps=8, min_steps=9, eta=1, s=-1, brackets=0, seed=-1)
    assert len(caught.value.problems) == 6
    with pytest.raises(ConfigurationError, match="bracket 3 must have rungs, got 3 in all"):
        SHA(SPACE, trials=9, max_steps=9, min_steps=1, eta=3, s=3)
    with pytest.raises(ConfigurationError, match="max_steps must be an int, got None"):
        SHA(SPACE, trials=9, max_steps=None, min_steps=1)  # type: ignore[arg-type]


# Milestones.


def test_milestones_follow_the_example_of_hippo() -> None:
    tuner = Milestones(GRID, keep={5: 4}, max_steps=10)
    decisions = tuner.ask(1)
    assert extends(decisions) == [(trial, 5) for trial in range(8)]
    registered = [dict(one.params) for one in decisions if isinstance(one, Register)]
    assert registered == [dict(one.params) for one in GRID.configurations()]
    assert tuner.configurations == tuple(GRID.configurations())
    for trial in range(7):
        assert tuner.tell(arrived(trial, 5, -trial)) == []
    assert extends(tuner.tell(arrived(7, 5, -7))) == [(7, 10), (6, 10), (5, 10), (4, 10)]
    for trial in (7, 6, 5):
        assert tuner.tell(arrived(trial, 10, 0.0)) == []
    assert tuner.tell(arrived(4, 10, 0.0)) == [Finish()]


def test_milestones_come_in_the_order_of_their_steps() -> None:
    tuner = Milestones(SPACE, keep={20: 2, 5: 6}, max_steps=30, trials=7)
    assert tuner.schedule(0, left=7) == ((5, 7), (20, 6), (30, 2))
    assert tuner.configurations is not None
    assert len(tuner.configurations) == 7


def test_queued_points_are_tried_unless_the_whole_grid_is() -> None:
    grid = Milestones(GRID, keep={}, max_steps=10)
    grid.prepare({"queued": [{"lr": "0.4", "momentum": 0.9}]})
    assert len(grid.ask(1)) == 16
    drawn = Milestones(SPACE, keep={5: 1}, max_steps=10, trials=2)
    drawn.prepare({"queued": [{"x": 0.125}]})
    first = drawn.ask(1)[0]
    assert isinstance(first, Register)
    assert first.params == {"x": 0.125}


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"keep": {10: 1, 11: 9}}, ["< max_steps (10), got 10", "got 11", "more than"]),
        ({"keep": {5: 9}, "trials": 8}, ["must not keep more than there are (8), got 9"]),
        ({"keep": {0: 0}}, ["each step of keep must be >= 1, got 0", "keep[0] must be >= 1"]),
        ({"keep": [5]}, ["keep must be a mapping of step to number, got [5]"]),
        ({"keep": {5: 2}, "sampler": RandomSource(SPACE, 0)}, ["trials must be given"]),
        ({"space": lambda trial: {"lr": 0.1}}, ["trials must be given unless"]),
        (
            {"space": SPACE, "keep": {5: 2}, "seed": -1},
            ["trials must be given unless", "seed must be >= 0"],
        ),
        ({"space": Space(lr=[0.1, Warmup(3, 0.1)])}, ["ends at step 3, max_steps is 10"]),
    ],
)
def test_bad_arguments_of_milestones_are_refused(
    arguments: dict[str, object], problems: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Milestones(**{"space": GRID, "keep": {5: 2}, "max_steps": 10, **arguments})  # type: ignore[arg-type]
    assert len(caught.value.problems) == len(problems)
    for said, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in said
