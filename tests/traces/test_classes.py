"""Traces of several compute classes: seconds by class, files, and a run on unlike workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dasktune as dt
from dasktune._worker.hardware import hardware_of
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.simulate import Trace
from tests.toy_trainers import Adding
from tests.unlike_workers import unlike_workers

FAST, SLOW, UNKNOWN = 0, 1, -1
NAN = float("nan")


def trace(
    seconds: list[list[float]],
    kinds: list[list[int]],
    configurations: list[Mapping[str, object]] | None = None,
    **more: Any,
) -> Trace:
    """Return a trace of two classes, whose metric falls."""
    times = np.array(seconds)
    made = Trace.from_arrays(
        {"loss": 1.0 / (1.0 + np.cumsum(np.ones(times.shape), axis=1))},
        seconds=times,
        configurations=configurations,
    )
    return replace(made, classes=("fast", "slow"), kinds=np.array(kinds), **more)


def total(recorded: Trace, number: int, kind: str) -> float:
    """Return the seconds of all steps of a configuration on a class."""
    sequences = {"configuration": Constant(number)}
    return recorded.pace(sequences, recorded.steps, kind).between(0, recorded.steps)


def test_pace_on_class_has_the_ratio_of_the_configuration() -> None:
    recorded = trace([[1.0, 1.0, 6.0, 2.0]], [[FAST, FAST, SLOW, SLOW]])
    assert total(recorded, 0, "fast") == pytest.approx(1 + 1 + 6 / 4 + 2 / 4)
    assert total(recorded, 0, "slow") == pytest.approx(4 + 4 + 6 + 2)
    assert total(recorded, 0, "") == total(recorded, 0, "other") == 10.0, "as it was measured"


def test_pace_unmeasured_has_the_ratio_of_its_model() -> None:
    models = [{"width": 8, "lr": 0.1}, {"width": 8, "lr": 0.2}, {"width": 64, "lr": 0.2}]
    recorded = trace(
        [[1.0, 1.0], [3.0, 3.0], [5.0, 10.0]],
        [[FAST, FAST], [SLOW, SLOW], [FAST, SLOW]],
        [*models],
    )
    assert total(recorded, 0, "slow") == pytest.approx(6.0)
    assert total(recorded, 1, "fast") == pytest.approx(2.0)
    assert total(recorded, 2, "fast") == pytest.approx(10.0)


def test_pace_unmeasured_model_has_the_factor_of_its_class() -> None:
    recorded = trace(
        [[1.0, 4.0], [10.0, 10.0]], [[FAST, SLOW], [FAST, FAST]], [{"width": 8}, {"width": 64}]
    )
    assert total(recorded, 1, "slow") == pytest.approx(80.0)


def test_pace_of_classes_without_common_model_is_equal() -> None:
    recorded = trace([[1.0], [3.0]], [[FAST], [SLOW]], [{"width": 8}, {"width": 64}])
    assert total(recorded, 0, "slow") == 1.0
    assert total(recorded, 1, "fast") == 3.0


def test_pace_fills_gaps_and_keeps_steps_of_unknown_class() -> None:
    recorded = trace(
        [[1.0, 3.0, NAN], [2.0, NAN, NAN]], [[FAST, SLOW, UNKNOWN], [UNKNOWN, UNKNOWN, UNKNOWN]]
    )
    assert total(recorded, 0, "slow") == pytest.approx(9.0)
    assert total(recorded, 1, "slow") == pytest.approx(6.0)


def test_pace_with_steps_of_0_seconds_is_finite() -> None:
    recorded = trace([[0.0, 3.0]], [[FAST, SLOW]])
    assert total(recorded, 0, "fast") == 3.0
    assert total(recorded, 0, "slow") == 3.0


def test_simulate_classes_take_their_measured_seconds() -> None:
    recorded = trace([[1.0, 4.0], [1.0, 4.0]], [[FAST, SLOW], [FAST, SLOW]])
    tuner = dt.algos.Grid(recorded.space(), max_steps=2)
    found = dt.simulate(tuner, recorded, workers={"fast": 1, "slow": 1})
    assert found.busy_seconds == {"fast": 2.0, "slow": 8.0}


def test_simulate_unknown_class_is_refused_with_the_known() -> None:
    recorded = trace([[1.0, 4.0]], [[FAST, SLOW]])
    tuner = dt.algos.Grid(recorded.space(), max_steps=2)
    with pytest.raises(ConfigurationError, match=r"unknown class 'fats'.*fast.*slow"):
        dt.simulate(tuner, recorded, workers={"fats": 2, "slow": 1})
    given = dt.simulate(
        dt.algos.Grid(recorded.space(), max_steps=2),
        recorded,
        workers={"new": 1},
        seconds_per_step=lambda values, kind: 3.0,
    )
    assert given.seconds == 6.0, "seconds that are given need no recorded class"


def test_file_with_classes_has_version_2(tmp_path: Path) -> None:
    recorded = trace([[1.0, 4.0]], [[FAST, UNKNOWN]])
    path = recorded.save(tmp_path / "trace.zarr")
    again = Trace.load(path)
    assert again.classes == recorded.classes
    assert again.kinds is not None
    assert again.kinds.tolist() == [[FAST, UNKNOWN]]
    assert zarr.open_group(path, mode="r").attrs["dasktune_trace"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("fast",)}, "classes must be none, or 2 or more different names, got fast"),
        ({"classes": ("fast", "fast")}, "different names, got fast, fast"),
        ({"classes": (), "kinds": np.array([[0, 0]])}, "different names, got -"),
        ({"kinds": None}, "kinds must be there"),
        ({"kinds": np.array([[0]])}, r"kinds must be an int for each of \(1, 2\), got \(1, 1\)"),
        ({"kinds": np.array([[0.0, 1.0]])}, "kinds must be an int"),
        ({"kinds": np.array([[0, 2]])}, "kinds must be -1 to 1, the numbers of classes"),
    ],
)
def test_invalid_classes_are_refused(change: dict[str, Any], message: str) -> None:
    recorded = trace([[1.0, 4.0]], [[FAST, SLOW]])
    with pytest.raises(ConfigurationError, match=message):
        replace(recorded, **change)


@pytest.mark.cluster
def test_trace_of_unlike_workers_has_their_classes(tmp_path: Path) -> None:
    study = dt.create_study(Adding, name="adding", metric="loss", storage=tmp_path / "s")
    tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2, 0.3, 0.4]), max_steps=4)
    with unlike_workers({}, {"GPU": 1}) as client:
        study.optimize(tuner, client=client, progress=False, last_line=False)
    recorded = study.trace()
    names = {hardware_of({}).name, hardware_of({"GPU": 1}).name}
    assert recorded.classes == tuple(sorted(names))
    assert recorded.kinds is not None
    by_row = [{recorded.classes[kind] for kind in row} for row in recorded.kinds.tolist()]
    by_trial = [
        {stage.kind for stage in study.stages() if stage.trials == [number]} for number in range(4)
    ]
    assert by_row == by_trial
    found = dt.simulate(
        dt.algos.Grid(recorded.space(), max_steps=4),
        recorded,
        workers=dict.fromkeys(recorded.classes, 1),
    )
    assert found.steps_executed == 16
    study.close()
