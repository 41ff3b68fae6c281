"""Other people's records become traces: what is kept, left out and filled in."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    import traces

    return traces


def packed(documents: list[dict[str, Any]]) -> np.ndarray:
    return np.frombuffer("\n".join(map(json.dumps, documents)).encode(), np.uint8)


def test_taskset_leaves_out_what_was_measured_before_training(
    traces: ModuleType, tmp_path: Path
) -> None:
    loss = np.arange(2 * 2 * 3 * 4, dtype=np.float32).reshape(2, 2, 3, 4)
    np.savez(
        tmp_path / "taskset_imdb_dev.npz",
        loss=loss,
        splits=np.array(["train", "valid", "test"]),
        hparams=np.array([[0.1, 0.9], [0.2, 0.8]]),
        hparam_names=np.array(["lr", "beta1"]),
    )
    found = traces.taskset(tmp_path, 1)
    assert found.metrics == ("train_loss", "valid_loss", "test_loss")
    assert found.values[1, :, 1].tolist() == loss[1, 1, 1, 1:].tolist()
    assert found.configurations == ({"lr": 0.1, "beta1": 0.9}, {"lr": 0.2, "beta1": 0.8})
    assert found.seconds is None


def test_lcbench_has_its_times(traces: ModuleType, tmp_path: Path) -> None:
    curves = np.ones((1, 2, 3), np.float32)
    np.savez(
        tmp_path / "lcbench_surrogate_dev.npz",
        val_accuracy=curves,
        val_cross_entropy=2 * curves,
        test_balanced_accuracy=3 * curves,
        cum_time_s=np.array([[[1, 2, 6], [3, 6, 9]]], np.float32),
        hparams=np.array([[64.0], [32.0]]),
        hparam_names=np.array(["batch_size"]),
    )
    found = traces.lcbench(tmp_path, 0)
    assert found.seconds.tolist() == [[1.0, 1.0, 4.0], [3.0, 3.0, 3.0]]
    assert found.values[0, 0].tolist() == [1, 2, 3]
    tuner = dt.algos.Grid(found.space(), max_steps=3)
    ran = dt.simulate(tuner, found, metric="val_accuracy", workers=2)
    assert ran.seconds == 9.0


def test_trace_run_at_target_stays_and_others_are_cut_off(
    traces: ModuleType, tmp_path: Path
) -> None:
    about = [
        {"workload": "wmt", "variant": "", "hit_target": True, "target": 3},
        {"workload": "wmt", "variant": "", "hit_target": False, "target": 3},
        {"workload": "wmt", "variant": "glu", "hit_target": False, "target": 3},
        {"workload": "wmt", "variant": "", "hit_target": False, "target": 3},
    ]
    values = np.array([1, 3, 1, 9, 1, 2, 2], np.float32)
    np.savez(
        tmp_path / "algoperf_dev.npz",
        offsets=np.array([0, 2, 3, 4, 7]),
        meta_jsonl=packed(about),
        sub_time=np.array([4, 8, 5, 9, 1, 2, 3], np.float32),
        **dict.fromkeys(("val", "val_loss", "test", "train"), values),
    )
    found = traces.algoperf(tmp_path, "wmt")
    np.testing.assert_array_equal(
        found.values[:, :, 0], [[1, 3, 3], [1, np.nan, np.nan], [1, 2, 2]]
    )
    assert found.seconds.tolist() == [[4.0] * 3, [5.0] * 3, [1.0] * 3]
    assert [one["target"] for one in found.configurations] == [3, 3, 3]


def test_returns_of_one_game(traces: ModuleType, tmp_path: Path) -> None:
    about = [{"game": game, "agent": "DQN"} for game in ("pong", "qbert", "pong")]
    np.savez(
        tmp_path / "rl_dopamine_dev.npz",
        ret=np.array([1, 2, 5, 3], np.float32),
        offsets=np.array([0, 2, 3, 4]),
        meta_jsonl=packed(about),
    )
    found = traces.rl(tmp_path, "pong")
    np.testing.assert_array_equal(found.values[:, :, 0], [[1, 2], [3, np.nan]])
    assert len(found.configurations) == 2
    with pytest.raises(ConfigurationError, match="unknown record 'breakout'; known: pong, qbert"):
        traces.rl(tmp_path, "breakout")
