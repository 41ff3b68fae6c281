"""Numbers: each place that takes one takes the same kinds, and refuses the same."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dasktune as dt
from dasktune._numbers import measured, number_of, whole_of
from dasktune.errors import ConfigurationError, TrainerError
from dasktune.traces.timing import Overheads
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import run_alone
from tests.toy_trainers import Adding


class Level(IntEnum):
    LOW = 1


HALVES: list[Any] = [
    0.5,
    np.float32(0.5),
    np.float64(0.5),
    np.longdouble(0.5),
    np.array(0.5),
    torch.tensor(0.5),
    torch.tensor(0.5, dtype=torch.bfloat16),
    Fraction(1, 2),
    Decimal("0.5"),
]
THREES: list[Any] = [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)]
NO_NUMBERS: list[Any] = [
    None,
    "0.5",
    b"3",
    1j,
    (3,),
    {"a": 3},
    [3],
    np.array([0.5]),
    torch.tensor([3]),
    np.array("3"),
    np.timedelta64(3, "ns"),
    np.datetime64(3, "ns"),
    np.ma.masked,
    Level.LOW,
    Decimal("sNaN"),
    Decimal("1e400"),
    object(),
]


def grid(**options: Any) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), **{"max_steps": 2, **options})


def simulated(**options: Any) -> Any:
    return dt.simulate(grid(), lambda values, step: 1.0, **options)


def created(trainer: Any, folder: Path, **options: Any) -> Any:
    return dt.create_study(trainer, name="numbers", metric="loss", storage=folder, **options)


# Each takes one number from 0 to 1.
PLACES: dict[str, Callable[[Any], Any]] = {
    "Float.low": lambda given: dt.Float(given, 5.0).low,
    "Float.contains": lambda given: given in dt.Float(0.0, 5.0) and 0.5,
    "Choice": lambda given: dt.Choice([given]).options[0],
    "Space": lambda given: dt.Space(lr=[given]).sample(np.random.default_rng(0)).params["lr"],
    "Limits.target": lambda given: dt.Limits(target=given).target,
    "Limits.seconds": lambda given: dt.Limits(seconds=given).seconds,
    "Timeouts": lambda given: dt.Timeouts(step_seconds=given).step_seconds,
    "Scale": lambda given: dt.Scale(max=2, efficiency=given).efficiency,
    "Overheads": lambda given: Overheads(begin=given).begin,
    "Exponential": lambda given: dt.sequences.Exponential(given, gamma=0.9).init,
    "PBT.truncation": lambda given: (
        dt.algos.PBT(
            dt.Space(lr=dt.Float(0.0, 1.0)), population=4, max_steps=4, every=2, truncation=given
        ).options.truncation
    ),
    "simulate.seconds": lambda given: simulated(seconds_per_step=given).seconds / 4,
    "simulate.drop": lambda given: simulated(drop=given, seconds_per_step=0.0) and 0.5,
    "curves": lambda given: dt.simulate(grid(), lambda values, step: given).best_trial.value,
    "needs": lambda given: dict(dt.Needs.of({"GPU": given}).alternatives[0].amounts)["GPU"],
}


NONE_MEANS_NO_LIMIT = ("Limits.target", "Limits.seconds", "Timeouts", "simulate.seconds")


@pytest.mark.parametrize("place", PLACES)
def test_place_of_a_number_takes_each_kind(place: str) -> None:
    results = [PLACES[place](given) for given in HALVES]
    assert results == [0.5] * len(HALVES)
    assert {type(result) for result in results} == {float}


def refused(place: str) -> list[Any]:
    if place in ("Choice", "Space"):  # whose values may also be no numbers
        others = (type(None), str, tuple, list)
        return [
            each
            for each in NO_NUMBERS
            if type(each) not in others and getattr(each, "dtype", None) != "<U1"
        ]
    most = [] if place == "curves" else [True, math.nan]
    return [*NO_NUMBERS, *most, 10**400]


@pytest.mark.parametrize(
    ("place", "given"),
    [
        pytest.param(place, given, id=place)
        for place in PLACES
        for given in refused(place)
        if place != "Float.contains" and not (given is None and place in NONE_MEANS_NO_LIMIT)
    ],
)
def test_place_of_a_number_refuses_anything_else(place: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="got "):
        PLACES[place](given)


@pytest.mark.parametrize("given", THREES, ids=repr)
def test_place_of_an_int_takes_each_kind(given: Any, tmp_path: Path) -> None:
    results = [
        dt.Int(0, given).high,
        3 if given in dt.Int(0, 5) else None,
        dt.Limits(steps=given).steps,
        dt.Scale(max=given).max,
        grid(max_steps=given).max_steps,
        simulated(workers=given, report_every=given, seed=given) and 3,
        dt.Timeouts(step_seconds=given).step_seconds,
    ]
    assert [type(result) for result in results] == [int] * len(results)
    assert results == [3] * len(results)
    study = created(Adding, tmp_path, seed=given, report_every=given, checkpoint_every=given)
    study.close()
    assert (study.seed, study.report_every) == (3, 3)


@pytest.mark.parametrize("given", [*NO_NUMBERS, True, 3.5, 0, 2**63, 10**400], ids=lambda each: "")
def test_max_steps_refuses_anything_but_a_count(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_steps must be"):
        grid(max_steps=given)


@pytest.mark.parametrize("steps", [2**62 + 1, sys.maxsize, 2**63])
def test_count_beyond_the_database_names_the_most(steps: int) -> None:
    with pytest.raises(ConfigurationError, match=r"max_steps must be <= 4,611,686,018,427,387,904"):
        dt.algos.Random(dt.Space(lr=[0.1]), trials=2, max_steps=steps)


def test_study_with_the_most_steps_hands_out_trials(tmp_path: Path) -> None:
    with closing(created(None, tmp_path)) as study:
        tuner = dt.algos.Random(dt.Space(lr=dt.Float(0.0, 1.0)), trials=2, max_steps=2**62)
        trials = [study.ask(tuner), study.ask(tuner)]
        study.tell(trials[0], 0.5)
    assert [trial.until for trial in trials] == [2**62, 2**62]


@pytest.mark.parametrize("given", [*HALVES, True, np.True_, torch.tensor(True)], ids=repr)
def test_metric_takes_each_kind(given: Any, tmp_path: Path) -> None:
    wanted = float(given)

    def function(run: Any) -> None:
        for _ in run.steps():
            run.report(loss=given)

    class Evaluates(Adding):
        def evaluate(self) -> dict[str, float]:
            return {"loss": given}

    assert run_alone(trainer_of(function), {}, 1).metrics == {1: {"loss": wanted}}
    assert run_alone(Evaluates, {"lr": 0.1}, 1).metrics == {1: {"loss": wanted}}
    assert run_alone(dt.from_optuna(returning(given)), {}, 1).metrics[1]["value"] == wanted
    with closing(created(None, tmp_path)) as study:
        trial = study.ask(grid(max_steps=1))
        study.tell(trial, given)
        assert study.trials[0].value == wanted
        study.add_trial({"lr": 0.3}, given)
        assert study.trials[-1].value == wanted


def returning(given: Any) -> Any:
    def objective(trial: Any) -> Any:
        return given

    return objective


@pytest.mark.parametrize("given", [*NO_NUMBERS, 10**400], ids=lambda each: "")
def test_metric_refuses_anything_else(given: Any, tmp_path: Path) -> None:
    def function(run: Any) -> None:
        for _ in run.steps():
            run.report(loss=given)
            raise AssertionError("the report was taken")

    with pytest.raises(TrainerError, match="metric 'loss' must be a number"):
        run_alone(trainer_of(function), {}, 1)
    if isinstance(given, list | tuple):  # of values
        return
    with closing(created(None, tmp_path)) as study:
        trial = study.ask(grid(max_steps=1))
        with pytest.raises(ConfigurationError, match="values must be"):
            study.tell(trial, given)
        with pytest.raises(ConfigurationError, match=r"values must be|values and value"):
            study.add_trial({"lr": 0.3}, ["3"] if len(getattr(given, "shape", ())) else given)


def test_numbers_of_unusual_kinds() -> None:
    assert number_of(np.uint64(2**64 - 1)) == 2**64 - 1
    assert number_of(10**400) == 10**400
    assert number_of(Decimal("Infinity")) == math.inf
    assert measured(Decimal("1e400")) is measured(np.longdouble("1e400")) is None
    assert (whole_of(-3, least=None), whole_of(2**63, most=None)) == (-3, 2**63)
    assert not any(given in dt.Float(0.0, 5.0) for given in [*NO_NUMBERS, True, math.nan])


class OnSpoiledGPU:
    """Stands for a tensor whose GPU has failed: the error comes where the value is read."""

    shape = ()

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")

    item = __float__


def test_error_of_a_gpu_is_not_hidden_by_its_metric() -> None:
    with pytest.raises(RuntimeError, match="CUDA error"):
        measured(OnSpoiledGPU())


class Odd:
    """An object with attributes that are not what their names say."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __float__(self) -> float:
        raise KeyError("no number")


@pytest.mark.parametrize(
    "value",
    [
        *(np.bytes_(b"12"), np.array(b"3"), np.void(b"12"), b"12"),
        *(Odd(), Odd(shape=None), Odd(shape=3), Odd(mask=np.array([True, False]))),
    ],
    ids=range(8),
)
def test_bytes_and_odd_objects_are_no_numbers(value: object) -> None:
    assert number_of(value) is None
    assert measured(value) is None
