"""Recorded curves: what is in a trace's file, and tuners on it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, StorageError
from dasktune.sequences import Constant, Piecewise
from dasktune.simulate import Trace
from dasktune.simulate.comparison import compare
from dasktune.types import Direction

CURVES = np.array(
    [
        [[0.9, 0.1, 2.0], [0.5, 0.4, 4.0]],
        [[0.8, 0.2, 1.0], [np.nan, np.nan, np.nan]],
        [[0.7, 0.3, 0.5], [0.6, 0.2, 0.5]],
    ],
    dtype=np.float32,
)
COLUMNS = np.array(["loss", "accuracy", "epoch_s"])
CONFIGURATIONS = [{"lr": 0.1}, {"lr": 0.2}, {"lr": [0.3, 0.4]}]


def packed(documents: list[object]) -> np.ndarray:
    return np.frombuffer("\n".join(map(json.dumps, documents)).encode(), np.uint8)


def write(folder: Path, **arrays: np.ndarray) -> Path:
    held = {"curves": CURVES, "columns": COLUMNS, "configs_jsonl": packed(CONFIGURATIONS)}
    path = folder / "trace.npz"
    np.savez(path, **{name: array for name, array in (held | arrays).items() if array.size})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path)


def test_npz_is_loaded_as_metrics_seconds_configurations(path: Path) -> None:
    trace = Trace.load(path)
    assert trace.metrics == ("loss", "accuracy")
    assert trace.steps == 2
    np.testing.assert_array_equal(trace.values, CURVES[:, :, :2])
    np.testing.assert_array_equal(trace.seconds, CURVES[:, :, 2])
    assert list(trace.configurations) == CONFIGURATIONS


def test_saved_trace_is_loaded_equal(tmp_path: Path, path: Path) -> None:
    trace = Trace.load(path)
    again = Trace.load(trace.save(tmp_path / "again.npz"))
    np.testing.assert_array_equal(again.values, trace.values)
    np.testing.assert_array_equal(again.seconds, trace.seconds)
    assert (again.metrics, again.configurations) == (trace.metrics, trace.configurations)


def test_simulate_trace_has_the_recorded_speed(path: Path) -> None:
    trace = Trace.load(path)
    tuner = dt.algos.Grid(trace.space(), max_steps=2)
    for curves in (trace, path, str(path)):
        found = dt.simulate(tuner, curves, metric="loss", workers=3)
        assert [trial.params for trial in found.trials] == [
            {"configuration": 0, "lr": 0.1},
            {"configuration": 1, "lr": 0.2},
            {"configuration": 2, "lr": "Piecewise([0.3, 0.4], boundaries=[1])"},
        ]
        assert found.seconds == 6.0
        assert found.worker_seconds == 6.0 + 2.0 + 1.0
        tuner = dt.algos.Grid(trace.space(), max_steps=2)
    first, diverged, _ = found.trials
    assert first.metrics == {1: {"loss": pytest.approx(0.9)}, 2: {"loss": 0.5}}
    assert math.isnan(diverged.value)
    assert found.best_trial.number == 0
    assert [one.value for one in found.incumbents] == pytest.approx([0.7, 0.6, 0.5])


def test_space_has_the_recorded_hyper_parameters() -> None:
    drop = Piecewise([0.3, 0.03], boundaries=[2])
    configurations = [
        {"lr": drop.to_json(), "batch": [64, 64, 128], "act": "relu", "layers": [8, 8]},
        {"lr": 0.1, "configuration": "mine", "data": {"not": "a sequence"}},
        {},
    ]
    trace = Trace.from_arrays({"loss": np.ones((3, 3))}, configurations=configurations)
    first, second, third = trace.space().configurations()
    assert first.sequences == {
        "configuration": Constant(0),
        "lr": drop,
        "batch": Piecewise([64, 128], boundaries=[2]),
        "act": Constant("relu"),
    }
    assert second.params == {"configuration": 1, "lr": 0.1}
    assert third.params == {"configuration": 2}
    assert trace.hyper_parameters(first.sequences, 2) == {"lr": 0.03, "batch": 128, "act": "relu"}
    tuner = dt.algos.Grid(trace.space(order=1), max_steps=3)
    found = dt.simulate(tuner, trace, metric="loss")
    assert sorted(trial.params["configuration"] for trial in found.trials) == [0, 1, 2]
    other = dt.Space(configuration=0, lr=Piecewise([0.3, 0.02], boundaries=[2]))
    with pytest.raises(ConfigurationError, match=r"lr must not change .* but as it was recorded"):
        dt.simulate(dt.algos.Grid(other, max_steps=3), trace, metric="loss")


def test_simulate_given_speed_overrules_the_trace(path: Path) -> None:
    tuner = dt.algos.Grid(Trace.load(path).space(), max_steps=2)
    found = dt.simulate(tuner, path, metric="loss", workers=3, seconds_per_step=5.0)
    assert found.seconds == 10.0


def test_trace_without_times_takes_1_second_a_step() -> None:
    trace = Trace.from_arrays({"loss": [[3, 2, 1]]})
    assert (trace.seconds, trace.configurations) == (None, ({},))
    tuner = dt.algos.Grid(trace.space(), max_steps=3)
    assert dt.simulate(tuner, trace, metric="loss").seconds == 3.0


def elapsed(trace: Trace, number: int) -> tuple[float, ...]:
    """Return when each step of a configuration has been trained."""
    sequences = {"configuration": dt.sequences.Constant(number)}
    return tuple(trace.pace(sequences, trace.steps).elapsed)


def test_simulated_step_takes_its_measured_time() -> None:
    seconds = [[1.0, 3.0, np.nan], [np.nan, np.nan, np.nan], [4.0, 4.0, 4.0]]
    trace = Trace.from_arrays({"loss": np.ones((3, 3))}, seconds=seconds)
    assert elapsed(trace, 0) == (0.0, 1.0, 4.0, 6.0), "the last as the first two on average"
    assert elapsed(trace, 1) == pytest.approx((0.0, 3.2, 6.4, 9.6)), "as all on average"
    assert elapsed(trace, 2) == (0.0, 4.0, 8.0, 12.0)
    found = dt.simulate(dt.algos.Grid(trace.space(), max_steps=2), trace, metric="loss", workers=3)
    assert [one.at for one in found.events if one.kind == "ended"] == [4.0, 6.4, 8.0]


def test_from_arrays_one_time_counts_for_all_steps() -> None:
    trace = Trace.from_arrays({"loss": np.ones((2, 2))}, seconds=[2.0, 5.0])
    assert [elapsed(trace, number) for number in (0, 1)] == [(0.0, 2.0, 4.0), (0.0, 5.0, 10.0)]


def test_simulate_tuner_beyond_the_trace_is_refused(path: Path) -> None:
    tuner = dt.algos.Grid(Trace.load(path).space(), max_steps=3)
    with pytest.raises(
        ConfigurationError, match="max_steps must be <= 2, the trace's steps, got 3"
    ):
        dt.simulate(tuner, path, metric="loss")


def test_trace_unknown_metric_lists_the_known(path: Path) -> None:
    tuner = dt.algos.Grid(Trace.load(path).space(), max_steps=2)
    with pytest.raises(ConfigurationError, match="unknown metric 'value'; known: accuracy, loss"):
        dt.simulate(tuner, path, metric="value")


def test_objective_default_is_recorded_or_only_metric() -> None:
    curves = {"loss": [[3.0, 1.0]], "accuracy": [[0.5, 0.4]]}
    several = Trace.from_arrays(curves)
    alone = Trace.from_arrays({"loss": curves["loss"]})
    one = replace(several, directions={"accuracy": Direction.MAXIMIZE})
    both = replace(one, directions={"accuracy": Direction.MAXIMIZE, "loss": Direction.MINIMIZE})

    def best(trace: Trace, **given: str) -> list[float]:
        tuner = dt.algos.Grid(trace.space(), max_steps=2)
        return [one.value for one in dt.simulate(tuner, trace, **given).incumbents]

    assert best(alone) == [3.0, 1.0]
    assert best(one) == [0.5]
    assert best(one, direction="minimize") == [0.5, 0.4]
    assert best(both, metric="loss") == [3.0, 1.0]
    for trace in (several, both):
        with pytest.raises(ConfigurationError, match="metric must be one of accuracy, loss"):
            best(trace)


def test_compare_uses_the_recorded_objective() -> None:
    trace = Trace.from_arrays({"accuracy": [[0.5, 0.4]]})
    trace = replace(trace, directions={"accuracy": Direction.MAXIMIZE})
    makes = {"grid": lambda seed: dt.algos.Grid(trace.space(), max_steps=2)}
    (found,) = compare(makes, trace, repeats=1)
    assert (found.direction, found.spread("best").median) == (Direction.MAXIMIZE, 0.5)


@pytest.mark.parametrize("space", [{"lr": [0.1]}, {"configuration": [3]}, {"configuration": [-1]}])
def test_simulate_other_space_is_refused(path: Path, space: dict[str, object]) -> None:
    tuner = dt.algos.Grid(dt.Space(space), max_steps=2)
    with pytest.raises(ConfigurationError, match="'configuration', an int from 0 to 2"):
        dt.simulate(tuner, path, metric="loss")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"columns": np.array([])}, "must hold curves, columns, configs_jsonl, got curves, conf"),
        ({"columns": COLUMNS[:2]}, r"curves must be .* 2 columns\), got \(3, 2, 3\)"),
        ({"curves": CURVES[0]}, r"curves must be .* 3 columns\), got \(2, 3\)"),
        ({"curves": CURVES[:2]}, "with 3 configurations and 2 metrics, got \\(2, 2, 2\\)"),
        ({"curves": np.full((3, 2, 3), "x")}, "must be an array of numbers"),
        ({"columns": np.array(["a", "a", "b"])}, "a metric may come only once, got a, a, b"),
        ({"columns": np.array(["a_s", "b_s", "c"])}, "one column may end in '_s', got a_s, b_s"),
        ({"configs_jsonl": packed([3, 4, 5])}, "must be JSON objects, one for each"),
        ({"configs_jsonl": np.frombuffer(b"{", np.uint8)}, "must be lines of JSON"),
        ({"curves": CURVES * [1, 1, -1]}, "seconds must be finite and >= 0"),
    ],
)
def test_load_invalid_file_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = write(tmp_path, **arrays)
    with pytest.raises(ConfigurationError, match=message) as error:
        Trace.load(path)
    assert all(problem.startswith(str(path)) for problem in error.value.problems)


def test_load_missing_and_unreadable_files_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no such file: .*none\.npz'; it must be a trace"):
        Trace.load(tmp_path / "none.npz")
    broken = tmp_path / "broken.npz"
    whole = write(tmp_path).read_bytes()
    array = BytesIO()
    np.save(array, CURVES)
    damaged = [whole[: len(whole) // 2], whole[:200] + b"\0" * 400]
    for text in (b"", b"no zip at all", array.getvalue(), *damaged):
        broken.write_bytes(text)
        with pytest.raises(StorageError, match=r"broken\.npz cannot be read as a trace") as error:
            Trace.load(broken)
        assert "pickle" not in str(error.value), "nobody is told how to run what is in it"


def test_load_pickle_runs_no_code(tmp_path: Path) -> None:
    path = write(tmp_path, columns=np.array([{"lr": 1}, None, None], dtype=object))
    with pytest.raises(StorageError, match="Object arrays cannot be loaded"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": {}}, "of one shape, got none"),
        ({"metrics": {"a": [[1]], "b": [[1, 2]]}}, r"one shape, got a \(1, 1\), b \(1, 2\)"),
        ({"metrics": {"a": [1, 2]}}, r"one shape, got a \(2,\)"),
        ({"metrics": {"a": [["x"]]}}, "a must be an array of numbers"),
        ({"metrics": {"a": [[1]]}, "seconds": [1, 2]}, r"one for each of \(1, 1\), got \(2,\)"),
        ({"metrics": {"a": [[1]]}, "configurations": [{}, {}]}, "with 2 configurations"),
        ({"metrics": {"a": np.ones((0, 3))}}, "none of them 0"),
    ],
)
def test_from_arrays_unequal_shapes_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trace.from_arrays(**arguments)


def test_simulate_changing_configuration_is_refused(path: Path) -> None:
    trace = Trace.load(path)
    space = dt.Space(configuration=[dt.sequences.Piecewise([0, 2], boundaries=[1])])
    with pytest.raises(ConfigurationError, match="configuration must not change on recorded curv"):
        dt.simulate(dt.algos.Grid(space, max_steps=2), trace, metric="loss")


def test_save_npz_metric_named_like_a_time_is_refused(
    tmp_path: Path,
) -> None:
    trace = Trace.from_arrays({"loss": [[1.0]], "time_s": [[2.0]]})
    with pytest.raises(ConfigurationError, match=r"must not end in _s in an \.npz, got .time_s"):
        trace.save(tmp_path / "trace.npz")
    assert Trace.load(trace.save(tmp_path / "trace.zarr")).metrics == ("loss", "time_s")
