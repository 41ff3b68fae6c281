"""Figures over repeats: medians, ranges, and lines of the best value by time."""

from __future__ import annotations

import statistics

import pytest

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.simulate.comparison import Compared, Repeat, Spread, compare
from dasktune.simulate.incumbents import Incumbent
from dasktune.types import Direction

SPACE = dt.Space(lr=dt.Float(0.0, 1.0))


def curve(values: dict[str, float], step: int) -> float:
    return values["lr"] + 1 / step


def random(seed: int) -> dt.algos.Random:
    return dt.algos.Random(SPACE, trials=6, max_steps=10, seed=seed)


def repeat(*incumbents: tuple[float, float]) -> Repeat:
    return Repeat(
        incumbents=tuple(Incumbent(at, 0, value) for at, value in incumbents),
        best=incumbents[-1][1] if incumbents else None,
        seconds=9.0,
        steps=1,
        seconds_to=None,
        steps_to=None,
        completed=0,
    )


def test_compare_repeats_are_simulations_by_seed() -> None:
    (found,) = compare(
        {"random": random}, curve, repeats=4, seed=7, target=0.5, workers=2, straggling=0.5
    )
    alone = [
        dt.simulate(random(seed), curve, workers=2, straggling=0.5, seed=seed)
        for seed in range(7, 11)
    ]
    assert [one.incumbents for one in found.repeats] == [tuple(one.incumbents) for one in alone]
    assert [one.seconds_to for one in found.repeats] == [one.time_to(0.5) for one in alone]
    assert [one.steps_to for one in found.repeats] == [one.steps_to(0.5) for one in alone]
    assert found.reached == sum(one.time_to(0.5) is not None for one in alone)
    assert found.spread("completed") == Spread.of([6])
    bests = [min(trial.value for trial in one.trials) for one in alone]
    assert found.spread("best").median == statistics.median(bests)
    assert found.spread("best").low == min(bests)


def test_compare_conditions_are_equal_for_all_tuners() -> None:
    tuners = {"a": random, "b": random}
    first, second = compare(tuners, curve, repeats=2, limits=Limits(steps=13))
    assert (first.name, second.name) == ("a", "b")
    assert first.repeats == second.repeats
    assert first.spread("steps") == Spread.of([13])


def test_spread_never_is_greater_than_any_value() -> None:
    found = Spread.of([2.0, None, None])
    assert (found.median, found.low, found.high, found.mean) == (None, 2.0, None, None)
    assert Spread.of([None]) == Spread(
        mean=None, median=None, low=None, q1=None, q3=None, high=None
    )


def test_spread_has_the_values_of_a_box_plot() -> None:
    found = Spread.of([4.0, 1.0, 2.0, 3.0, 10.0])
    assert found == Spread(mean=4.0, median=3.0, low=1.0, q1=2.0, q3=4.0, high=10.0)
    assert Spread.of([1.0, 2.0]) == Spread(
        mean=1.5, median=1.5, low=1.0, q1=1.25, q3=1.75, high=2.0
    )
    assert Spread.of([1.0, 2.0, 3.0, 4.0, None]).q3 == 4.0


def test_compare_several_numbers_of_workers() -> None:
    found = compare({"a": random, "b": random}, curve, workers=(1, 3), repeats=2, target=0.9)
    assert [(one.workers, one.name) for one in found] == [(1, "a"), (1, "b"), (3, "a"), (3, "b")]
    alone = [dt.simulate(random(seed), curve, workers=3, seed=seed) for seed in (0, 1)]
    assert [one.seconds for one in found[2].repeats] == [one.seconds for one in alone]
    assert found[1].times(found[0], "seconds") == (1.0, 1.0)
    mean, median = found[2].times(found[0], "seconds")
    assert mean == median == pytest.approx(1 / 3)


def test_times_with_never_or_0_is_none() -> None:
    (never,) = compare({"a": random}, curve, repeats=2, target=-1.0)
    assert never.times(never, "seconds_to") == (None, None)


@pytest.mark.parametrize("sign", [1, -1])
def test_median_line_begins_where_most_repeats_have_values(sign: int) -> None:
    direction = Direction.MINIMIZE if sign == 1 else Direction.MAXIMIZE
    repeats = (
        repeat((1.0, sign * 5.0), (4.0, sign * 1.0)),
        repeat((2.0, sign * 3.0), (5.0, sign * 2.0)),
        repeat((3.0, sign * 4.0)),
    )
    line = Compared(name="x", workers=1, direction=direction, repeats=repeats).median_line()
    assert line == [(2.0, sign * 5.0), (3.0, sign * 4.0), (4.0, sign * 3.0), (5.0, sign * 2.0)]
    nothing = Compared(name="x", workers=1, direction=direction, repeats=(repeat(),))
    assert nothing.median_line() == []
    assert nothing.spread("best") == Spread.of([None])
