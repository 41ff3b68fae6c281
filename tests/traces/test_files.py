"""Traces as files and zarr stores: what is written is read again, or refused in words."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import ConfigurationError, StorageError
from dasktune.sequences import MultiStep, sequence_from_json
from dasktune.simulate import Trace
from dasktune.traces.files import MOST_NBYTES
from dasktune.traces.timing import Overheads
from dasktune.types import Direction
from tests.effort import examples

RATE = MultiStep(0.1, milestones=[2], gamma=0.5)
NAN = float("nan")

WHOLE = Trace(
    metrics=("accuracy", "val/loss"),
    values=np.array([[[0.1, 3.0], [NAN, NAN], [0.3, 1.0]], [[0.1, 3.0], [0.4, NAN], [NAN, NAN]]]),
    seconds=np.array([[1.0, 2.0, 2.0], [1.0, 4.0, NAN]]),
    measured=np.array([[True, False, True], [True, True, False]]),
    configurations=({"lr": 0.1, "batch_size": 64}, {"lr": RATE.to_json(), "batch_size": None}),
    directions={"accuracy": Direction.MAXIMIZE},
    shared=((0, 0), (0, 1)),
    overheads=Overheads(build=0.25, load=0.5, save=0.01, report=0.02, handover=0.001),
)


def same(one: Trace, other: Trace) -> None:
    """Compare all of two traces."""
    for name in ("metrics", "configurations", "directions", "shared", "overheads"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("values", "seconds", "measured"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("name", ["trace.zarr", "trace.zarr.zip"])
def test_zarr_file_holds_a_whole_trace(tmp_path: Path, name: str) -> None:
    path = WHOLE.save(tmp_path / name)
    assert path == tmp_path / name
    again = Trace.load(path)
    same(again, WHOLE)
    assert sequence_from_json(again.configurations[1]["lr"]) == RATE
    alone = Trace.from_arrays({"loss": [[1.0]]})
    same(Trace.load(alone.save(tmp_path / f"alone-{name}")), alone)


def test_zarr_file_is_readable_by_zarr(tmp_path: Path) -> None:
    group = zarr.open_group(WHOLE.save(tmp_path / "trace.zarr"), mode="r")
    assert group.attrs["dasktune_trace"] == 1
    assert group.attrs["metrics"] == ["accuracy", "val/loss"]
    assert group.attrs["directions"] == {"accuracy": "maximize"}
    assert group["values"].metadata.dimension_names == ("configuration", "step", "metric")
    np.testing.assert_array_equal(group["seconds"][:], WHOLE.seconds)


def test_npz_file_holds_curves_and_times(tmp_path: Path) -> None:
    again = Trace.load(WHOLE.save(tmp_path / "trace.npz"))
    np.testing.assert_array_equal(again.values, WHOLE.values)
    np.testing.assert_array_equal(again.seconds, WHOLE.seconds)
    assert (again.metrics, again.configurations) == (WHOLE.metrics, WHOLE.configurations)
    assert (again.measured, again.shared, again.directions) == (None, (), {})


@given(data=st.data(), name=st.sampled_from(["t.zarr", "t.zarr.zip", "t.npz"]))
@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_saved_floats_are_loaded_exactly(tmp_path: Path, data: st.DataObject, name: str) -> None:
    rows, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    numbers = st.lists(st.floats(), min_size=rows * steps, max_size=rows * steps)
    loss = np.array(data.draw(numbers)).reshape(rows, steps)
    path = tmp_path / name
    again = Trace.load(Trace.from_arrays({"loss": loss}).save(path))
    assert again.values.tobytes() == loss.tobytes()
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", ["trace.zarr", "trace.zarr.zip", "trace.npz"])
def test_save_existing_path_is_refused(tmp_path: Path, name: str) -> None:
    path = WHOLE.save(tmp_path / name)
    with pytest.raises(ConfigurationError, match="exists already"):
        WHOLE.save(path)
    same(Trace.load(WHOLE.save(tmp_path / "other.zarr")), WHOLE)


@pytest.mark.parametrize("name", ["trace.zarr", "trace.zarr.zip", "trace.npz"])
@pytest.mark.parametrize("value", [np.float32(1), NAN, float("inf"), [object()]])
def test_save_configuration_not_json_is_refused_without_a_trace(
    tmp_path: Path, name: str, value: object
) -> None:
    trace = Trace.from_arrays({"loss": [[1.0]] * 2}, configurations=[{"lr": 0.1}, {"lr": value}])
    with pytest.raises(ConfigurationError, match="configurations must be JSON, got"):
        trace.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(np.dtype(np.longdouble) == float, reason="zarr can write all floats here")
@pytest.mark.parametrize("name", ["trace.zarr", "trace.zarr.zip"])
def test_save_failure_leaves_no_file(tmp_path: Path, name: str) -> None:
    long = Trace.from_arrays({"loss": np.ones((1, 2), np.longdouble)})
    with pytest.raises(StorageError, match="cannot be written"):
        long.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_save_invalid_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as error:
        WHOLE.save(tmp_path / "missing" / "trace.parquet")
    unknown, folder = error.value.problems
    assert "must end in .zarr, .zarr.zip, .npz, got" in unknown
    assert "missing must be a folder that exists" in folder
    for name in ("trace.parquet", "none.zarr"):
        with pytest.raises(ConfigurationError, match=r"no such file: .*; it must be a trace"):
            Trace.load(tmp_path / name)


def test_load_damaged_chunk_is_refused(tmp_path: Path) -> None:
    path = WHOLE.save(tmp_path / "trace.zarr")
    (chunk,) = (one for one in (path / "values" / "c").rglob("*") if one.is_file())
    kept = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(StorageError, match="is damaged: its arrays are not those"):
        Trace.load(path)
    chunk.write_bytes(kept[:-3] + b"abc")
    with pytest.raises(StorageError, match=r"trace\.zarr"):
        Trace.load(path)
    shutil.rmtree(path / "values")
    with pytest.raises(StorageError, match="is damaged"):
        Trace.load(path)


def test_load_truncated_zip_is_refused(tmp_path: Path) -> None:
    path = WHOLE.save(tmp_path / "trace.zarr.zip")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(StorageError, match="cannot be read as a trace"):
        Trace.load(path)


@pytest.mark.parametrize("name", ["trace.zarr", "trace.zarr.zip", "trace.npz"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "large"])
def test_load_file_without_an_end_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    path = WHOLE.save(tmp_path / name)
    file = path / "zarr.json" if path.is_dir() else path
    if kind == "large":
        os.truncate(file, MOST_NBYTES + 1)  # takes no room on the disk
    else:
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    words = "must have at most" if kind == "large" else "is no regular file"
    with pytest.raises(StorageError, match=words):
        Trace.load(path)


def test_load_large_content_of_a_small_file_is_refused(tmp_path: Path) -> None:
    path = WHOLE.save(tmp_path / "trace.zarr")
    about = json.loads((path / "values" / "zarr.json").read_text())
    about["shape"] = [2, 3, 2**40]
    (path / "values" / "zarr.json").write_text(json.dumps(about))
    with pytest.raises(StorageError, match="must have at most"):
        Trace.load(path)
    packed = tmp_path / "trace.npz"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("curves.npy", b"")
        file.infolist()[0].file_size = MOST_NBYTES + 1  # as the file says
    with pytest.raises(StorageError, match="must have at most"):
        Trace.load(packed)


def test_load_other_folder_or_group_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.zarr"
    empty.mkdir()
    with pytest.raises(ConfigurationError, match=r"empty\.zarr: holds no zarr group"):
        Trace.load(empty)
    zarr.create_group(tmp_path / "other.zarr")
    with pytest.raises(ConfigurationError, match="must hold a trace of version 1 or 2, got none"):
        Trace.load(tmp_path / "other.zarr")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dasktune_trace": 3}, "must hold a trace of version 1 or 2, got 3"),
        ({"classes": "fast"}, "classes must be a list of names, got 'fast'"),
        ({"classes": ["fast", "slow"]}, "kinds must be there for a trace with classes"),
        ({"metrics": ["accuracy"]}, r"with 2 configurations and 1 metrics, got \(2, 3, 2\)"),
        ({"configurations": [1, 2]}, "configurations must be JSON objects, one for each"),
        ({"configurations": None}, "attributes must be those of a trace"),
        ({"directions": {"accuracy": "up"}}, "direction must be 'maximize' or 'minimize'"),
        ({"directions": {"other": "maximize"}}, "unknown metric with a direction 'other'"),
        ({"overheads": {"build": -1}}, "build must be a number >= 0, got -1"),
        ({"overheads": {"fun": 1}}, "attributes must be those of a trace"),
    ],
)
def test_load_invalid_attributes_are_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = WHOLE.save(tmp_path / "trace.zarr")
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"] |= change
    (path / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match=message) as error:
        Trace.load(path)
    assert all(problem.startswith(str(path)) for problem in error.value.problems)


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (((0, 0),), "shared must be one for each of 2, got 1"),
        (((0, 0), (1, 1)), "configuration 1 must share 0 to 3 steps with an earlier one, got 1"),
        (((0, 0), (0, 4)), "configuration 1 must share 0 to 3 steps with an earlier one, got 4"),
    ],
)
def test_invalid_shared_steps_are_refused(
    shared: tuple[tuple[int, int], ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trace(
            metrics=WHOLE.metrics,
            values=WHOLE.values,
            configurations=WHOLE.configurations,
            shared=shared,
        )


def test_simulate_accepts_the_path_of_a_trace(tmp_path: Path) -> None:
    path = WHOLE.save(tmp_path / "trace.zarr")
    tuner = dt.algos.Grid(WHOLE.space(), max_steps=3)
    found = dt.simulate(tuner, path)
    assert (found.direction, found.best_trial.value) == (Direction.MAXIMIZE, 0.3)
