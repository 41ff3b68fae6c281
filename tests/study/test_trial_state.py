"""The state of any trial at any step can be had: from the store, or trained again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client
from distributed.comm import core

import dasktune as dt
from dasktune._study.study import Study
from dasktune._study.trial_state import Training, TrialStates
from dasktune.errors import ConfigurationError, TrainerError
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.trainer.generators import global_states
from dasktune.trainer.lifecycle import run_alone
from tests.forgetful import Tally

STEPS = 8
RATES: tuple[Sequence, ...] = (Constant(0.1), Piecewise([0.1, 0.3], [6]))
"""They part at step 6, where a state is saved."""


class Walk(dt.Trainer):
    """Random steps by lr from a generator of its own; fails while a file says so."""

    ignored_config = ("log", "fail")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.random = np.random.default_rng(self.seed)
        self.at = np.zeros(3)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        if Path(self.config["fail"]).exists():
            raise ValueError("the data have gone")
        self.at = self.at + self.lr * self.random.normal(size=3)
        with open(self.config["log"], "a") as file:
            file.write(".")

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.square(self.at).sum())}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": self.random.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at, self.random.bit_generator.state = state["at"], state["random"]


def opened(folder: Path, trainer: type = Walk, **options: Any) -> Study:
    config = {"log": str(folder / "steps"), "fail": str(folder / "fail")}
    options = {"metric": "loss", "load_if_exists": True, "checkpoint_every": 1000, **options}
    return dt.create_study(trainer, name="walk", storage=folder / "store", config=config, **options)


@pytest.fixture
def study(tmp_path: Path, two_threads: Client) -> Study:
    made = opened(tmp_path)
    made.optimize(dt.algos.Grid(dt.Space(lr=list(RATES)), max_steps=STEPS), client=two_threads)
    (tmp_path / "steps").unlink()
    return made


def trained(folder: Path) -> int:
    log = folder / "steps"
    return len(log.read_text()) if log.exists() else 0


def alone(trial: int, step: int, folder: Path, seed: int = 0) -> str:
    """Return the digest of the state that training one trial by itself gives."""
    config = {"log": str(folder / "lone"), "fail": str(folder / "fail")}
    run = run_alone(Walk, {"lr": RATES[trial]}, step, config=config, seed=seed, states_at=[step])
    return encode(run.states[step]).digest


def stored_steps(study: Study) -> set[int]:
    return {one.step for one in study.store.inventory() if one.is_committed}


def test_trial_state_stored_is_read(study: Study, tmp_path: Path) -> None:
    for trial in range(2):
        assert encode(study.trial_state(trial)).digest == alone(trial, STEPS, tmp_path)
    assert encode(study.trial_state(0, 6)).digest == alone(0, 6, tmp_path)
    assert trained(tmp_path) == 0


def test_trial_state_missing_is_trained_from_nearest_and_stored(
    study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert stored_steps(study) == {6, 8}
    assert encode(study.trial_state(1, 7)).digest == alone(1, 7, tmp_path)
    assert trained(tmp_path) == 1
    assert "trial 1: the state at step 7 is not stored; training 1 step again, from step 6" in (
        caplog.text
    )
    assert stored_steps(study) == {6, 7, 8}
    study.trial_state(1, 7)
    assert trained(tmp_path) == 1, "it is not needed twice"


def test_trial_state_of_another_numeric_class_is_not_stored(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASKTUNE_NUMERICS", "rounds otherwise")
    study.trial_state(1, 7)
    assert trained(tmp_path) == 1
    assert stored_steps(study) == {6, 8}, "it would serve those that were trained elsewhere"


def test_trial_state_trained_again_is_recorded_with_metrics(study: Study, tmp_path: Path) -> None:
    study.trial_state(1, 7)
    key = study.plan.node_at(1, 7).key_at(7)
    assert key in study.database.checkpoint_keys()
    commit = study.store.commit_of(key)
    assert commit is not None
    assert dict(commit.reports)[7] == study.trials[1].metrics[7]
    study.close()
    assert 7 in {step for node in opened(tmp_path).plan.nodes_of(1) for step in node.checkpoints}


def test_trial_state_without_checkpoints_is_trained_from_step_0(
    study: Study, tmp_path: Path
) -> None:
    for key in list(study.store.keys()):
        study.store.discard(key)
    assert encode(study.trial_state(1, 8)).digest == alone(1, 8, tmp_path)
    assert trained(tmp_path) == 8
    assert stored_steps(study) == {8}


def test_trial_state_corrupt_is_trained_again_and_replaced(study: Study, tmp_path: Path) -> None:
    key = study.plan.node_at(0, 8).key_at(8)
    (commit,) = [path for path in (tmp_path / "store").rglob("commit") if key in str(path)]
    commit.write_bytes(commit.read_bytes()[:-1])
    assert encode(study.trial_state(0, 8)).digest == alone(0, 8, tmp_path)
    assert trained(tmp_path) == 2
    assert encode(study.store.load(key)[0]).digest == alone(0, 8, tmp_path)


def test_trial_state_without_merging_leaves_store_unchanged(
    tmp_path: Path, two_threads: Client
) -> None:
    study = opened(tmp_path, merge=False)
    study.optimize(dt.algos.Grid(dt.Space(lr=list(RATES)), max_steps=STEPS), client=two_threads)
    before = set(study.store.keys())
    assert encode(study.trial_state(1, 5)).digest == alone(1, 5, tmp_path)
    assert set(study.store.keys()) == before


def test_trial_state_of_repeats_uses_their_own_seeds(tmp_path: Path, two_threads: Client) -> None:
    study = opened(tmp_path, seed=3)
    tuner = dt.algos.Repeats(dt.algos.Grid(dt.Space(lr=[RATES[0]]), max_steps=STEPS), seeds=2)
    study.optimize(tuner, client=two_threads)
    assert [one.seed for one in study.trials] == [0, 1]
    for trial in study.trials:
        digest = encode(study.trial_state(trial.number, 5)).digest
        assert digest == alone(0, 5, tmp_path, seed=3 + trial.seed)


def test_trial_state_of_later_version_stays_and_is_trained_again(
    study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study.trial_state(0, 7)
    key = study.plan.node_at(0, 7).key_at(7)
    (commit,) = [path for path in (tmp_path / "store").rglob("commit") if key in str(path)]
    commit.write_bytes(commit.read_bytes().replace(b'"version": ', b'"version": 9', 1))
    later = commit.read_bytes()
    assert encode(study.trial_state(0, 7)).digest == alone(0, 7, tmp_path)
    assert trained(tmp_path) == 2
    assert commit.read_bytes() == later
    assert "the state that was trained again is not saved: " in caplog.text


class Forgetful(Walk):
    """Has in its state neither the generator nor what it counts, and adds in each step."""

    counts: type = int

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.count = type(self).counts(0)

    def train(self) -> None:
        self.count += 1
        super().train()
        self.at = self.at + int(self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at = state["at"]


class Refused(Forgetful):
    """Counts by numbers that cannot be kept beside a state."""

    counts = Tally


@pytest.mark.parametrize("trainer", [Forgetful, Refused])
def test_trial_state_trained_again_is_exact(
    trainer: type, tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    study = opened(tmp_path, trainer)
    tuner = dt.algos.Grid(dt.Space(lr=[RATES[1]]), max_steps=STEPS)
    study.optimize(tuner, client=two_threads, check=False, audit=0)
    config = {"log": str(tmp_path / "steps"), "fail": str(tmp_path / "fail")}
    whole = run_alone(trainer, {"lr": RATES[1]}, STEPS, config=config, states_at=[7]).states[7]
    caplog.clear()
    assert study.trial_state(0, 7)["at"].tobytes() == whole["at"].tobytes()
    named = "- trainer.count: is Tally 0 after loading, and was Tally 6 when the state was saved"
    assert (named in caplog.text) is (trainer is Refused)
    study.close()


def test_trial_state_failing_trainer_raises_with_traceback(study: Study, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    with pytest.raises(TrainerError, match="ValueError: the data have gone") as caught:
        study.trial_state(0, 7)
    assert "in train" in caught.value.traceback


def test_best_step_is_that_of_the_least_loss(study: Study, tmp_path: Path) -> None:
    losses = {
        (metrics["loss"], step, trial.number)
        for trial in study.trials
        for step, metrics in trial.metrics.items()
    }
    _, step, number = min(losses)
    assert study.chosen_state(None, "best") == (number, step)
    _, of_first, _ = min(place for place in losses if place[2] == 0)
    assert study.chosen_state(0, "best") == (0, of_first)
    assert step < STEPS
    model = study.best_model(step="best")
    expected = alone(number, step, tmp_path)
    assert encode(model.state_dict()).digest == expected
    assert encode(study.trial_state(number, "best")).digest == expected


@pytest.mark.parametrize(
    ("trial", "step", "message"),
    [
        (2, None, "trial must be one of 0 to 1, got 2"),
        (0, 9, "step of trial 0 must be 1 to 8, or 'best', got 9"),
        (0, 0, "step of trial 0 must be 1 to 8, or 'best', got 0"),
        (0, 2.5, "step of trial 0 must be 1 to 8, or 'best', got 2.5"),
    ],
)
def test_trial_state_unknown_trial_or_step_is_refused(
    study: Study, trial: int, step: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        study.trial_state(trial, step)


def test_trial_state_of_added_trial_is_refused(tmp_path: Path) -> None:
    study = opened(tmp_path)
    with pytest.raises(ConfigurationError, match="those of the study, which has none yet, got 0"):
        study.trial_state(0)
    study.add_trial({"lr": 0.1}, 0.5)
    with pytest.raises(ConfigurationError, match="trial 0 was added with its result"):
        study.trial_state(0)


class Net(dt.TorchTrainer):
    """Draws from every global generator; between its steps Dask does, too, if config says so."""

    ignored_config = ("log", "fail", "with_dask")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.model = torch.nn.Linear(3, 2)

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        with torch.no_grad():
            self.model.weight += torch.rand(2, 3) + random.random() + np.random.random()
        if "with_dask" in self.config:
            core.random.uniform(0, 1)  # as a thread of the client's would

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.model.weight.sum())}


def looks() -> tuple[object, ...]:
    """Return the global state that a trainer may change."""
    exact = torch.are_deterministic_algorithms_enabled()
    kept = torch.get_num_threads(), exact, torch.backends.cudnn.benchmark
    return *kept, encode(global_states()).digest


def net_states(**config: Any) -> TrialStates:
    """Return the states of a trial of `Net`, none of which is stored."""
    plan = SearchPlan("aa" * 16)
    plan.register(0, {"lr": Constant(0.1)}, 4)
    training = Training(trainer=Net, config=config, seed=5)
    return TrialStates(CheckpointStore("memory://states"), plan, training, None)


def test_trial_state_training_restores_process_state() -> None:
    states = net_states()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = looks()
        state = states.at(0, 3)
        assert looks() == before
        lone = run_alone(Net, {"lr": 0.1}, 3, seed=5, states_at=[3]).states[3]
        assert looks() != before, "or nothing was shown"
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert encode(state).digest == encode(lone).digest
    assert list(CheckpointStore("memory://states").keys()) == []


@pytest.mark.usefixtures("dask_draws_globally")
def test_trial_state_trainer_has_its_own_generator() -> None:
    undisturbed = encode(net_states().at(0, 3)).digest
    assert encode(net_states(with_dask=True).at(0, 3)).digest == undisturbed
