"""Recorded curves are read as scores, whatever file of a kind they are in; targets fit them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.types import Direction


@pytest.fixture
def recorded(load: Any) -> ModuleType:
    module: ModuleType = load("recorded")
    return module


@pytest.fixture
def targets(load: Any) -> ModuleType:
    module: ModuleType = load("targets")
    return module


def packed(documents: list[dict[str, Any]]) -> np.ndarray:
    return np.frombuffer("\n".join(map(json.dumps, documents)).encode(), np.uint8)


def write_algoperf(path: Path, runs: list[list[float]], **about: Any) -> None:
    """Write runs that were measured every 100 s, which are 10 steps."""
    one = {
        "workload": "wmt",
        "variant": "",
        "metric": "bleu",
        "maximize": True,
        "target": 30.0,
        "step_hint": 60,
        "max_runtime_s": 1000,
        **about,
    }
    counts = np.array([len(run) for run in runs])
    order = np.concatenate([np.arange(1, count + 1) for count in counts])
    np.savez(
        path,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        meta_jsonl=packed([one] * len(runs)),
        step=10 * order,
        sub_time=100.0 * order,
        val=np.concatenate(runs),
    )


def write_taskset(path: Path, losses: np.ndarray) -> None:
    """Write validation losses ``(tasks, configurations, steps)``; all others are zeros."""
    splits = np.zeros((*losses.shape[:2], 3, losses.shape[2]))
    splits[:, :, 1] = losses
    np.savez(
        path,
        loss=splits,
        splits=np.array(["train", "valid", "test"]),
        tasks=np.array([f"task{number}" for number in range(len(losses))]),
    )


def write_trace(path: Path, curves: np.ndarray, configurations: list[dict[str, Any]]) -> None:
    np.savez(
        path,
        curves=curves[:, :, None],
        columns=np.array(["val_accuracy"]),
        configs_jsonl=packed(configurations),
    )


def write_rl(path: Path, runs: dict[str, list[list[float]]]) -> None:
    every = [(game, run) for game, of_game in runs.items() for run in of_game]
    np.savez(
        path,
        ret=np.concatenate([run for _, run in every]),
        offsets=np.concatenate([[0], np.cumsum([len(run) for _, run in every])]),
        meta_jsonl=packed([{"game": game} for game, _ in every]),
    )


def test_runs_end_at_their_target_and_crashed_ones_are_left_out(
    recorded: ModuleType, tmp_path: Path
) -> None:
    reached = [1.0, 5.0, 9.0, 20.0, 25.0, 31.0, 32.0]
    write_algoperf(tmp_path / "algoperf_test.npz", [reached, [0.0, 0.1], [1.0] * 5])
    (found,) = recorded.load(tmp_path)
    assert (found.name, found.source, found.task) == ("algoperf wmt", "algoperf", "wmt")
    assert (found.low, found.high, found.target, found.scale) == (0.0, 100.0, 30.0, 100.0)
    first, second = found.curves
    assert first.steps == (10, 20, 30, 40, 50, 60, 70)
    assert first.seconds[-1] == 700
    assert (first.max_steps, second.max_steps) == (70, 60)


def test_variants_of_a_workload_are_sets_of_one_task(recorded: ModuleType, tmp_path: Path) -> None:
    write_algoperf(tmp_path / "algoperf_a.npz", [[1.0] * 5])
    write_algoperf(tmp_path / "algoperf_b.npz", [[1.0] * 5], variant="glu")
    found = recorded.load(tmp_path)
    assert [one.name for one in found] == ["algoperf wmt", "algoperf wmt glu"]
    assert {one.task for one in found} == {"wmt"}


def test_what_gets_better_downwards_is_negated_and_bounded(
    recorded: ModuleType, tmp_path: Path
) -> None:
    about = {"metric": "wer", "maximize": False, "target": 0.1}
    write_algoperf(tmp_path / "algoperf_x.npz", [[0.8, 0.5, 9.0, 0.4, 0.2]], **about)
    (found,) = recorded.load(tmp_path)
    assert found.curves[0].scores == (-0.8, -0.5, -1.6, -0.4, -0.2)
    assert (found.low, found.high, found.target) == (-1.6, 0.0, -0.1)


def test_losses_begin_before_training_and_may_diverge(recorded: ModuleType, tmp_path: Path) -> None:
    nan = math.nan
    losses = [[[0.7, 0.6, 0.5, 0.4, 0.3, 0.2], [0.7, 0.6, 1e9, nan, nan, nan]]]
    write_taskset(tmp_path / "taskset_other.npz", np.array(losses))
    (found,) = recorded.load(tmp_path)
    good, diverged = found.curves
    assert good.steps == (0, 1, 2, 3, 4, 5)
    assert good.scores == (-0.7, -0.6, -0.5, -0.4, -0.3, -0.2)
    assert diverged.scores[:3] == (-0.7, -0.6, -1.4)
    assert math.isnan(diverged.scores[3])


def test_returns_are_normalised_for_each_game(recorded: ModuleType, tmp_path: Path) -> None:
    runs = {"pong": [[-20.0, 0, 0, 0, 0], [0.0, 0, 0, 0, 20]], "qbert": [[5.0] * 5]}
    write_rl(tmp_path / "rl_other.npz", runs)
    pong, qbert = recorded.load(tmp_path)
    assert [one.scores for one in pong.curves] == [(0, 0.5, 0.5, 0.5, 0.5), (0.5, 0.5, 0.5, 0.5, 1)]
    assert set(qbert.curves[0].scores) == {0.0}
    assert pong.curves[0].steps == (1, 2, 3, 4, 5)


def test_a_trials_siblings_branch_off_where_their_sequences_part(
    recorded: ModuleType, tmp_path: Path
) -> None:
    rates = [[0.3] * 6, [0.3] * 3 + [0.1] * 3, [0.1] * 6]
    configurations = [{"lr": rate, "wd": 0.1} for rate in rates]
    curves = np.linspace(0.1, 0.9, 18).reshape(3, 6)
    write_trace(tmp_path / "own_stage_other.npz", curves, configurations)
    (found,) = recorded.load(tmp_path, ["own_stage"])
    first, second, third = found.curves
    assert second.rates == ((0, 0.3), (3, 0.1))
    assert [(one.at, one.scores) for one in first.siblings] == [(3, second.scores)]
    assert third.siblings == ()
    assert [one.rates for one in first.siblings] == [second.rates]
    assert first.rates == ((0, 0.3),)


def test_a_folder_without_curves_is_refused(recorded: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"begin with algoperf or taskset or .*got '/"):
        recorded.load(tmp_path)


# ------------------------------------------------------------------------------ targets


def test_a_target_is_what_few_configurations_reach(targets: ModuleType, tmp_path: Path) -> None:
    best = np.random.default_rng(0).permutation(100) / 100
    curves = np.stack([0.1 * best, 0.5 * best, best, 0.9 * best, 0.8 * best], axis=1)
    np.savez(
        tmp_path / "lcbench_x.npz",
        tasks=np.array(["a"]),
        val_accuracy=curves[None],
        cum_time_s=np.broadcast_to(np.array([1.0, 3, 6, 9, 10]), (1, 100, 5)),
    )
    (found,) = targets.load(tmp_path)
    assert (found.name, found.kind, found.direction) == (
        "lcbench a",
        "accuracy",
        Direction.MAXIMIZE,
    )
    assert found.target == pytest.approx(0.96)
    assert found.share == pytest.approx(0.04)
    assert set(found.durations) == {10.0}
    tuner = dt.algos.Random(found.trace.space(), trials=100, max_steps=5)
    ran = dt.simulate(
        tuner,
        found.trace,
        metric=targets.METRIC,
        direction=found.direction,
        limits=dt.Limits(target=found.target),
    )
    assert ran.time_to(found.target) == ran.seconds < 1000


def test_the_target_of_a_loss_is_a_low_one(targets: ModuleType, tmp_path: Path) -> None:
    losses = np.full((1, 50, 6), 0.7)
    losses[0, 3, 4], losses[0, 8, 5], losses[0, 9, 2] = 0.2, 0.3, math.nan
    write_taskset(tmp_path / "taskset_x.npz", losses)
    (found,) = targets.load(tmp_path)
    assert (found.kind, found.direction) == ("loss", Direction.MINIMIZE)
    assert found.target == pytest.approx(0.3)
    assert (found.low, found.high) == (0.0, 1.4)
    assert found.trace.values.shape == (50, 5, 1)
    assert found.trace.values[3, 3, 0] == 0.2


def test_runs_at_uneven_times_are_read_at_even_ones(targets: ModuleType, tmp_path: Path) -> None:
    poor = [[1.0, 2.0, 3.0, 4.0, 5.0]] * 9
    write_algoperf(tmp_path / "algoperf_x.npz", [*poor, [1.0, 2.0, 3.0, 4.0, 31.0]])
    (found,) = targets.load(tmp_path)
    assert (found.target, found.share) == (30.0, 0.1)
    values = found.trace.values[-1, :, 0]
    assert found.durations[0] == pytest.approx(1000)
    assert np.isnan(values[:9]).all()
    assert values[9] == values[18] == 1.0
    assert values[19] == 2.0
    assert values[48] == 4.0
    assert set(values[49:]) == {31.0}


def test_a_target_that_many_reach_is_none(targets: ModuleType, tmp_path: Path) -> None:
    write_algoperf(tmp_path / "algoperf_x.npz", [[1.0, 2.0, 3.0, 4.0, 31.0]] * 3)
    write_rl(tmp_path / "rl_x.npz", {"pitfall": [[0.0, 1, 1, 1, 1]] * 5})
    assert targets.load(tmp_path) == []


def test_runs_that_were_cut_off_are_left_out(targets: ModuleType, tmp_path: Path) -> None:
    runs = [[0.0, 0.1, 0.2, 0.3, 0.4, 0.5 + number / 100] for number in range(20)]
    write_rl(tmp_path / "rl_x.npz", {"pong": [*runs, [9.0] * 5]})
    (found,) = targets.load(tmp_path)
    assert found.kind == "rl"
    assert found.trace.values.shape == (20, 6, 1)
    assert found.share == 0.05
