"""The policy gradient on CartPole learns, unlearns, and resumes exactly, also on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune.cli import app
from dasktune.cli.study_file import load
from dasktune.sequences import Piecewise
from dasktune.trainer import run_alone
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.differences import state_differences
from tests.effort import examples
from tests.study_folder import working_in

FILE = Path(__file__).parents[2] / "examples" / "cartpole.py"
GOOD = {"lr": 0.1, "discount": 0.98, "entropy": 0.01, "hidden": 16}


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """Load the example as the commands do."""
    found, path = load(FILE), [*sys.path]
    yield found.module
    sys.path[:] = path
    sys.modules.pop(found.module.__name__, None)


@pytest.fixture(scope="module")
def begun(example: Any) -> Any:
    """Return a trainer as it begins."""
    return TrainerRun.start(example.CartPoleTrainer, GOOD, config={}, seed=3).trainer


@pytest.mark.slow
def test_a_good_configuration_balances_the_pole_for_100_episodes(example: Any) -> None:
    metrics = run_alone(example.CartPoleTrainer, GOOD, 60).metrics
    assert metrics[1]["reward"] < 50
    best = max(found["reward_100"] for step, found in metrics.items() if step >= 10)
    assert best >= example.SOLVED


def test_reward_100_is_the_mean_of_the_last_ten_steps(example: Any) -> None:
    metrics = run_alone(example.CartPoleTrainer, GOOD, 13).metrics
    last = [metrics[step]["reward"] for step in range(4, 14)]
    assert metrics[13]["reward_100"] == pytest.approx(np.mean(last))
    assert metrics[2]["reward_100"] == pytest.approx(
        (metrics[1]["reward"] + metrics[2]["reward"]) / 2
    )


def test_a_rate_that_is_too_high_unlearns_within_steps(example: Any) -> None:
    crash = {**GOOD, "lr": Piecewise([0.1, 30.0], boundaries=[25])}
    metrics = run_alone(example.CartPoleTrainer, crash, 35).metrics
    assert max(metrics[step]["reward"] for step in range(15, 26)) > 300
    assert min(metrics[step]["reward"] for step in range(26, 36)) < 100


def test_each_step_plays_episodes_of_its_own_and_each_seed_too(example: Any) -> None:
    # Without learning only the episodes tell the steps apart.
    still = {**GOOD, "lr": 0.0}
    seeds = [run_alone(example.CartPoleTrainer, still, 4, seed=seed).metrics for seed in (0, 1)]
    rewards = [metrics[step]["reward"] for metrics in seeds for step in metrics]
    assert len(set(rewards)) > 5


def test_gradients_are_the_slopes_of_what_is_to_grow(begun: Any) -> None:
    rng = np.random.default_rng(0)
    inputs, advantages = rng.normal(size=(20, 5)), rng.normal(size=20)
    actions = rng.random(20) < 0.5
    begun.optimizer.weights = [rng.normal(size=(5, 16)), rng.normal(size=16)]
    begun.entropy = 0.3

    def objective() -> float:
        right = 1 / (1 + np.exp(-begun.scores(inputs)[0]))
        taken = np.where(actions, right, 1 - right)
        entropy = -right * np.log(right) - (1 - right) * np.log(1 - right)
        return float(np.mean(advantages * np.log(taken) + begun.entropy * entropy))

    gradients = begun.gradients(inputs, actions, advantages)
    for weight, gradient in zip(begun.optimizer.weights, gradients, strict=True):
        for index in [tuple(rng.integers(weight.shape)) for _ in range(5)]:
            before = weight[index]
            ends = []
            for weight[index] in (before - 1e-6, before + 1e-6):
                ends.append(objective())
            weight[index] = before
            assert gradient[index] == pytest.approx((ends[1] - ends[0]) / 2e-6, abs=1e-7)


def test_advantage_is_the_return_above_that_of_running_others(example: Any) -> None:
    running = np.zeros((3, example.EPISODES), bool)
    running[0] = running[1, :2] = running[2, 0] = True
    played = example.Episodes(inputs=np.zeros(0), actions=np.zeros(0), running=running)
    # Returns at a discount of 1/2: at first 1.75, 1.5 and eight times 1, then 1.5 and 1, then 1.
    raw = np.zeros(running.shape)
    raw[0] = np.array([1.75, 1.5, *[1.0] * 8]) - 1.125
    raw[1, :2] = 0.25, -0.25
    expected = raw / raw[running].std()
    assert played.advantages(0.5) == pytest.approx(expected)


def test_episodes_of_one_length_say_nothing(example: Any) -> None:
    running = np.ones((4, example.EPISODES), bool)
    played = example.Episodes(inputs=np.zeros(0), actions=np.zeros(0), running=running)
    assert played.advantages(0.9) == pytest.approx(0, abs=1e-6)


@settings(max_examples=examples(15), deadline=None)
@given(
    split=st.integers(1, 5),
    drop=st.integers(1, 5),
    lr=st.sampled_from([0.01, 0.3, 30.0]),
    hidden=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**40),
)
def test_a_resume_at_any_step_changes_no_bit(
    example: Any, split: int, drop: int, lr: float, hidden: int, seed: int
) -> None:
    def at(step: int) -> dict[str, Any]:
        return {**GOOD, "lr": lr if step < drop else lr / 10, "hidden": hidden}

    trainer = example.CartPoleTrainer
    sequences = {**at(0), "lr": Piecewise([lr, lr / 10], boundaries=[drop])}
    whole = run_alone(trainer, sequences, 6, seed=seed, states_at=[split, 6])
    resumed = TrainerRun.resume(
        trainer,
        step=split,
        first_values=at(0),
        last_values=at(split - 1),
        state=whole.states[split],
        config={},
        seed=seed,
    )
    assert resumed.evaluate() == whole.metrics[split]
    for step in range(split, 6):
        resumed.advance(at(step))
        assert resumed.evaluate() == whole.metrics[step + 1]
    assert [*state_differences(whole.states[6], resumed.state())] == []


@pytest.mark.process
def test_it_resumes_exactly_in_a_new_process(example: Any) -> None:
    hp = {
        "lr": Piecewise([0.1, 0.01], boundaries=[14]),
        "discount": 0.95,
        "entropy": Piecewise([0.05, 0.0], boundaries=[13]),
        "hidden": 32,
    }
    report = dt.check_resume(example.CartPoleTrainer, hp, split=12, total=16)
    assert report.ok, str(report)


def test_what_is_missing_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "cartpole", raising=False)
    with working_in(tmp_path):
        done = CliRunner().invoke(app, ["preview", str(FILE)])
    assert done.exit_code == 2
    assert "Gymnasium must be installed: pip install 'dasktune[rl]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_pop_solves_cartpole_and_equals_lone_runs(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with local_client(2) as client:
        study = example.study()
        study.optimize(example.tuner(trials=4, max_steps=80), client=client)
    study.close()
    assert study.summary()["steps_executed"] < study.summary()["trials"] * 80
    means = []
    for trial in study.trials:
        alone = run_alone(example.CartPoleTrainer, trial.sequences, max(trial.metrics)).metrics
        assert trial.metrics == alone
        means += [metrics["reward_100"] for step, metrics in alone.items() if step >= 10]
    assert max(means) >= example.SOLVED
