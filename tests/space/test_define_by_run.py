"""Define-by-run spaces: what functions may ask, what they must return, who is told of errors."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos import Random
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Exponential, MultiStep, Sequence, Warmup
from dasktune.space import DefinedByRun, Float
from dasktune.space.define_by_run import Suggesting, space_of
from dasktune.types import Register

HERE = r"test_define_by_run\.py:\d+: "


def schedule(trial: Suggesting) -> Mapping[str, object]:
    lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    layers = trial.suggest_int("layers", 1, 3)
    widths = [trial.suggest_int(f"width{at}", 8, 64, step=8) for at in range(layers)]
    found = {"lr": Constant(lr), "width": max(widths), "layers": layers, "momentum": 0.9}
    if trial.suggest_categorical("kind", ["steps", "warm"]) == "warm":
        found["lr"] = Warmup(trial.suggest_int("warmup", 1, 9), lr) >> Exponential(lr, gamma=0.9)
    return found


SPACE = DefinedByRun(schedule)


@given(st.integers(0, 10**6))
def test_a_point_gives_the_configuration_that_it_came_from(seed: int) -> None:
    found = SPACE.sample(np.random.default_rng(seed))
    assert SPACE.at(json.loads(json.dumps(found.point))) == found
    assert found.point.keys() == found.domains.keys()


def test_what_is_asked_for_may_depend_on_what_was_answered() -> None:
    point = {"lr": 0.01, "layers": 2, "width0": 8, "width1": 64, "kind": "warm", "warmup": 5}
    found = SPACE.at(point)
    assert dict(found.params) == point
    assert found.sequences == {
        "lr": Warmup(5, 0.01) >> Exponential(0.01, gamma=0.9),
        "width": Constant(64),
        "layers": Constant(2),
        "momentum": Constant(0.9),
    }
    assert found.domains["width1"] == {
        "domain": "Int",
        "low": 8,
        "high": 64,
        "log": False,
        "step": 8,
    }
    with pytest.raises(ConfigurationError, match=HERE + "a point must have coordinate 'width1'"):
        SPACE.at({"lr": 0.01, "layers": 2, "width0": 8})
    with pytest.raises(ConfigurationError, match="unknown coordinate 'warmup'"):
        SPACE.at({**point, "kind": "steps"})
    with pytest.raises(ConfigurationError, match=r"'lr' must be in Float.*got 5"):
        SPACE.at({**point, "lr": 5})


def test_a_name_that_was_asked_for_gives_the_same_value_again() -> None:
    def twice(trial: Suggesting) -> Mapping[str, object]:
        first = trial.suggest_float("x", 0, 1)
        again = trial.suggest_float("x", 0.0, 1.0)
        kinds = [trial.suggest_categorical("kind", [True, 1.5, "a", None]) for _ in range(3)]
        return {"equal": first == again and kinds[0] == kinds[1] == kinds[2], "x": first}

    found = [DefinedByRun(twice).sample(np.random.default_rng(seed)) for seed in range(20)]
    assert all(one.sequences["equal"] == Constant(True) for one in found)
    assert {one.params["kind"] for one in found} == {True, 1.5, "a", None}


def test_a_choice_may_be_between_sequences_and_lists() -> None:
    def chosen(trial: Suggesting) -> Mapping[str, object]:
        milestones = trial.suggest_categorical("milestones", [[30], [30, 45]])
        stepped = MultiStep(0.1, milestones, gamma=0.1)  # type: ignore[arg-type]
        return {"lr": trial.suggest_categorical("lr", [stepped, 0.1])}

    found = DefinedByRun(chosen).at({"milestones": "(30, 45)", "lr": 0.1})
    assert found.sequences == {"lr": Constant(0.1)}
    assert dict(found.params) == {"milestones": "(30, 45)", "lr": 0.1}


def test_a_single_value_is_no_coordinate_but_a_parameter() -> None:
    def single(trial: Suggesting) -> Mapping[str, object]:
        return {"x": trial.suggest_int("x", 3, 3), "y": trial.suggest_categorical("y", ["a"])}

    found = DefinedByRun(single).at({})
    assert (dict(found.point), dict(found.params)) == ({}, {"x": 3, "y": "a"})


def test_identities_tell_functions_apart_by_what_they_give() -> None:
    def make(high: float) -> Callable[[Suggesting], Mapping[str, object]]:
        return lambda trial: {"x": trial.suggest_float("x", 0, high)}

    texts = {json.dumps(DefinedByRun(make(high)).to_json()) for high in (1.0, 1.0, 2.0)}
    assert len(texts) == 2
    assert SPACE.to_json() == DefinedByRun(schedule).to_json()
    assert "test_define_by_run.schedule" in json.dumps(SPACE.to_json())


def fails(trial: Suggesting) -> Mapping[str, object]:
    return {"x": 1 / trial.suggest_int("x", 0, 0)}


def changes_its_mind(trial: Suggesting) -> Mapping[str, object]:
    trial.suggest_float("x", 0, 1)
    return {"x": trial.suggest_float("x", 0, 2)}


def returns_nothing(trial: Suggesting) -> None:
    trial.suggest_float("x", 0, 1)


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails, HERE + r"fails must .*for \{'x': 0\} it raised ZeroDivisionError"),
        (changes_its_mind, HERE + "'x' must be asked for with one domain"),
        (returns_nothing, HERE + "returns_nothing must return .* by name, got None"),
        (lambda trial: {}, HERE + ".* by name, got {}"),
        (lambda trial: 0.1, HERE + ".* by name, got 0.1"),
        (lambda trial: {"x": [1, 2], 3: 4}, HERE + r"x: a value must be an int.*\n.*string.*got 3"),
        (lambda trial: {"x": Float(0, 1)}, HERE + "x: a value must be"),
        (lambda trial: {"x": trial.suggest_float("x", 1, 0)}, HERE + "Float: low must be <= high"),
        (lambda trial: {"x": trial.suggest_float(3, 0, 1)}, HERE + "a name must be a string"),
        (lambda trial: {"x": trial.suggest_categorical("x", [])}, HERE + "Choice: .*got none"),
        (
            lambda trial: {"x": trial.suggest_categorical("x", [Float(0, 1), 2])},
            HERE + "x: choices must be values, got Float",
        ),
        (lambda: {"x": 1}, HERE + ".*raised TypeError"),
        (lambda trial: {"x": next(COUNT)}, HERE + ".*must give the same whenever"),
        (3, "space must be a Space or a function, got 3"),
        (dict, "space must be a Space or a function, got <class 'dict'>"),
    ],
)
def test_what_is_wrong_is_found_at_once_and_located(function: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s){message}"):
        space_of(function)  # type: ignore[arg-type]


def picky(trial: Suggesting) -> Mapping[str, object]:
    low, high = trial.suggest_int("low", 0, 9), trial.suggest_int("high", 0, 9)
    if low > high:
        raise optuna.TrialPruned(f"{low} > {high}")
    return {"low": low, "size": high - low + trial.suggest_int("more", 0, 2)}


def test_a_space_that_raises_at_some_points_has_a_problem_there() -> None:
    space = DefinedByRun(picky)
    drawn = [space.sample(np.random.default_rng(seed)) for seed in range(30)]
    odd = [each for each in drawn if each.problem]
    assert 0 < len(odd) < len(drawn)
    assert all(each.params["low"] > each.params["high"] for each in odd)
    text = rf"{HERE}picky must give a configuration; for .* it raised TrialPruned: \d > \d$"
    assert all(re.search(text, each.problem) for each in odd)
    assert [each for each in drawn if space.at(each.point) != each] == []
    assert space.at({"low": 5, "high": 3, "more": 1}).problem, "a point may have more coordinates"
    assert space.to_json() == DefinedByRun(picky).to_json()


def raising(error: BaseException) -> Callable[[Suggesting], Mapping[str, object]]:
    def space(trial: Suggesting) -> Mapping[str, object]:
        if trial.suggest_int("x", 0, 3) == 0:
            raise error
        return {"x": 1 + trial.suggest_int("y", 0, 3)}

    return space


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error", [SystemExit(2), ValueError("odd"), GeneratorExit(), WordlessError(), OSError(2, "x")]
)
def test_any_exception_between_suggestions_is_of_its_point(error: BaseException) -> None:
    space = DefinedByRun(raising(error))
    assert f"for {{'x': 0}} it raised {type(error).__name__}: " in space.at({"x": 0}).problem
    assert not space.at({"x": 1, "y": 0}).problem
    with pytest.raises(ConfigurationError, match="'x' must be in Int"):
        space.at({"x": 7})


def test_an_interrupt_between_suggestions_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        DefinedByRun(raising(KeyboardInterrupt())).at({"x": 0})


def test_the_users_exception_is_the_cause() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DefinedByRun(fails)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_tuner_takes_a_function_as_its_space() -> None:
    tuner = Random(schedule, trials=30, max_steps=20, seed=3)
    registered = [one for one in tuner.ask(1) if isinstance(one, Register)]
    assert len(registered) == 30
    assert {one.params["kind"] for one in registered} == {"steps", "warm"}
    for one in registered:
        assert SPACE.at(one.point).sequences == one.sequences
    assert Random(schedule, trials=30, max_steps=20, seed=3).ask(1)[:30] == registered
    assert tuner.identity()["space"] == SPACE.to_json()
    assert space_of(SPACE) is SPACE


def test_space_refuses_a_sequence_that_ends_too_early() -> None:
    def warm(trial: Suggesting) -> dict[str, Sequence]:
        return {"lr": Warmup(trial.suggest_int("warmup", 1, 9), 0.1)}

    with pytest.raises(ConfigurationError, match=r"lr: Warmup.* ends at step .*max_steps is 20"):
        Random(warm, trials=5, max_steps=20)


@given(st.floats(-1, 1), st.sampled_from([None, 0.1, 0.25]))
def test_nearest_returns_the_nearest_point_of_the_domain(value: float, step: float | None) -> None:
    domain = Float(-0.5, 0.55, step=step)
    near = domain.nearest(value)
    assert near in domain
    points = list(domain.points()) if step else [min(max(value, -0.5), 0.55)]
    assert abs(near - value) <= min(abs(point - value) for point in points) + 1e-12
