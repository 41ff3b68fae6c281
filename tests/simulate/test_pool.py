"""Simulated workers of several classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.simulate.comparison import compare
from dasktune.simulate.pool import step_seconds
from tests.simulate.cases import UNIQUE, grid, wavy

FACTORS = {"fast": 1.0, "slow": 4.0}


def seconds(values: Mapping[str, object], kind: str) -> float:
    return FACTORS[kind]


def two(steps: int = 10) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[Constant(0.1), Constant(0.2)]), max_steps=steps)


def test_classes_train_at_their_own_speed() -> None:
    found = dt.simulate(two(), wavy, workers={"fast": 1}, seconds_per_step=seconds)
    assert (found.seconds, found.busy_seconds) == (20.0, {"fast": 20.0})
    found = dt.simulate(two(), wavy, workers={"slow": 2}, seconds_per_step=seconds)
    assert (found.seconds, found.busy_seconds) == (40.0, {"slow": 80.0})


@pytest.mark.parametrize("drop", [0.0, 0.02])
def test_classes_are_busy_for_all_worker_seconds(drop: float) -> None:
    pool = {"fast": 2, "slow": 1}
    found = dt.simulate(grid(), wavy, workers=pool, seconds_per_step=seconds, drop=drop)
    assert set(found.busy_seconds) == {"fast", "slow"}
    assert sum(found.busy_seconds.values()) == pytest.approx(found.worker_seconds)
    assert found.steps_executed - found.steps_repeated == UNIQUE


def test_one_class_of_any_name_decides_as_a_number() -> None:
    number = dt.simulate(grid(), wavy, workers=3, straggling=0.5)
    named = dt.simulate(grid(), wavy, workers={"EPYC 7763, 8 cores": 3}, straggling=0.5)
    assert named.events == number.events
    assert list(named.busy_seconds) == ["EPYC 7763, 8 cores"]
    assert list(named.busy_seconds.values()) == list(number.busy_seconds.values())


def with_default(values: Mapping[str, object], scale: float = 3.0) -> float:
    return scale


def keyword(values: Mapping[str, object], *, kind: str) -> float:
    return FACTORS[kind]


class Called:
    def __call__(self, values: Mapping[str, object], place: str) -> float:
        return FACTORS[place]


@pytest.mark.parametrize(
    ("given", "slow"),
    [
        (lambda values: 2.0, 2.0),
        (with_default, 3.0),
        (lambda *values: float(len(values)), 1.0),
        (seconds, 4.0),
        (keyword, 4.0),
        (partial(seconds, kind="fast"), 4.0),
        (lambda values, kind="fast": FACTORS[kind], 4.0),
        (Called(), 4.0),
        (len, 0.0),
    ],
)
def test_step_seconds_pass_the_class_by_signature(given: object, slow: float) -> None:
    assert step_seconds(given)({}, "slow", 1) == slow  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": {}}, "workers must have at least one class, got none"),
        ({"workers": {"fast": 0}}, "workers of class 'fast' must be an int >= 1, got 0"),
        ({"workers": {"fast": True}}, "workers of class 'fast' must be an int >= 1, got True"),
        ({"workers": {"": 1}}, "a class of workers must be a name"),
        ({"workers": {" H100": 1}}, "a class of workers must be a name"),
        ({"workers": {"two\nlines": 1}}, "a class of workers must be a name"),
        ({"workers": {3: 1}}, "a class of workers must be a name"),
        (
            {"seconds_per_step": lambda: 1.0},
            r"seconds_per_step must be a function of \(values\) or \(values, kind\)",
        ),
    ],
)
def test_pool_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dt.simulate(two(), wavy, **options)  # type: ignore[arg-type]


def test_compare_takes_classes() -> None:
    pool = {"fast": 1, "slow": 1}
    tuners = {"grid": lambda seed: two()}
    (compared,) = compare(tuners, wavy, workers=pool, repeats=1, seconds_per_step=seconds)
    alone = dt.simulate(two(), wavy, workers=pool, seconds_per_step=seconds)
    assert (compared.workers, compared.repeats[0].seconds) == (2, alone.seconds)
