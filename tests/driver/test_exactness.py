"""The contract above all: whatever was merged, split or lost, every state is a lone run's."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.sequences import Constant, Cyclic, Exponential, MultiStep, Piecewise, Sequence, Warmup
from dasktune.storage.codec import encode
from dasktune.trainer import ResumableLoader
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import Decision, Extend, Finish, Register, Report
from tests.services import S3Server

pytestmark = pytest.mark.cluster

STEPS = 8


class SmallNet(dt.TorchTrainer):
    """Momentum, dropout, batch norm, a shuffled loader, and a count of the steps trained."""

    ignored_config = ("count", "kill_at", "killed")

    def build(self, hp: Mapping[str, Any]) -> None:
        numbers = np.random.default_rng(7)
        x = numbers.normal(size=(40, 6)).astype(np.float32)
        y = (x.sum(axis=1) > 0).astype(np.int64)
        self.held_out = torch.as_tensor(x[:10]), torch.as_tensor(y[:10])
        self.loader = ResumableLoader((x[10:], y[10:]), hp["batch_size"], seed=self.seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 2),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.done = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        if "batch_size" in hp:
            self.loader.batch_size = hp["batch_size"]
        for name in {"lr", "momentum"} & set(hp):
            self.optimizer.param_groups[0][name] = hp[name]

    def train(self) -> None:
        self._be_killed()
        if self.config.get("count"):
            with open(self.config["count"], "ab") as file:
                file.write(b".")
        x, y = self.loader.next_batch()
        self.optimizer.zero_grad()
        scores = self.model(torch.as_tensor(x))
        torch.nn.functional.cross_entropy(scores, torch.as_tensor(y)).backward()
        self.optimizer.step()
        self.done += 1

    def _be_killed(self) -> None:
        """Kill this process at one step, once for all processes."""
        if self.done == self.config.get("kill_at"):
            try:
                Path(self.config["killed"]).touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def evaluate(self) -> dict[str, float]:
        x, y = self.held_out
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        return {"loss": float(loss), "noise": float(torch.rand(()))}


LR: tuple[Sequence, ...] = (
    Constant(0.1),
    MultiStep(0.1, milestones=[3], gamma=0.1),
    MultiStep(0.1, milestones=[3, 6], gamma=0.1),
    Exponential(0.1, gamma=0.9),
    Warmup(2, 0.1) >> Constant(0.1),
    Warmup(2, 0.1) >> Exponential(0.1, gamma=0.5),
    Cyclic(0.01, 0.1, 3),
)
BATCH: tuple[Sequence, ...] = (
    Constant(5),
    Piecewise([5, 7], boundaries=[4]),
    Piecewise([5, 9, 5], boundaries=[2, 7]),
)
MOMENTUM: tuple[Sequence, ...] = (Constant(0.9), Piecewise([0.9, 0.5], boundaries=[5]))


@st.composite
def spaces(draw: st.DrawFn) -> dt.Space:
    """Small grids of sequences that share beginnings."""

    def some(options: tuple[Sequence, ...], most: int) -> list[Sequence]:
        return draw(st.lists(st.sampled_from(options), min_size=1, max_size=most, unique=True))

    return dt.Space(lr=some(LR, 3), batch_size=some(BATCH, 2), momentum=some(MOMENTUM, 2))


def open_study(folder: Path, **config: object) -> Study:
    return dt.create_study(
        SmallNet, name="exact", storage=folder, metric="loss", config=config, load_if_exists=True
    )


def assert_is_as_alone(study: Study) -> None:
    """Compare every metric and every stored state of every trial with a lone run's."""
    for trial in study.trials:
        nodes = study.plan.nodes_of(trial.number)
        stored = {
            step: node.key_at(step)
            for node in nodes
            for step in node.checkpoints
            if step <= trial.steps
        }
        assert trial.steps in stored
        alone = run_alone(
            SmallNet, trial.sequences, trial.steps, seed=study.seed, states_at=set(stored)
        )
        assert {step: trial.metrics[step] for step in alone.metrics} == alone.metrics
        for step, key in stored.items():
            state, commit = study.store.load(key)
            assert commit.step == step
            assert encode(state).digest == encode(alone.states[step]).digest


def steps_counted(path: Path) -> int:
    return path.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["one_worker", "four_workers"])
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(space=spaces(), report_every=st.sampled_from([1, 3]))
def test_merged_studies_are_lone_runs(
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    workers: str,
    space: dt.Space,
    report_every: int,
) -> None:
    folder = tmp_path_factory.mktemp("study")
    count = folder / "count"
    study = dt.create_study(
        SmallNet,
        name="exact",
        storage=folder,
        metric="loss",
        report_every=report_every,
        config={"count": str(count)},
    )
    client: Client = request.getfixturevalue(workers)
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=client, progress=False)
    cost = dt.preview(space, max_steps=STEPS)
    summary = study.summary()
    assert steps_counted(count) == summary["steps_executed"] == cost.steps_unique
    assert summary["steps_requested"] == cost.steps_requested
    if report_every == 1:
        assert_is_as_alone(study)
    study.close()


class Growing(Tuner):
    """Registers its later trials only after reports of the first: behind and ahead of it."""

    max_steps = STEPS

    def __init__(self) -> None:
        self._told = 0

    def identity(self) -> dict[str, object]:
        return {"tuner": "Growing"}

    def ask(self, capacity: int) -> list[Decision]:
        return [] if self._told or self._asked() else self._trial(0, LR[0], 4)

    def _asked(self) -> bool:
        asked, self._has_asked = getattr(self, "_has_asked", False), True
        return asked

    def _trial(self, number: int, lr: Sequence, until: int) -> list[Decision]:
        sequences = {"lr": lr, "batch_size": BATCH[0], "momentum": MOMENTUM[0]}
        return [
            Register(trial=number, sequences=sequences, max_steps=STEPS),
            Extend(trial=number, until=until),
        ]

    def tell(self, report: Report) -> list[Decision]:
        self._told += 1
        if self._told == 1:
            ahead = self._trial(1, MultiStep(0.1, milestones=[6], gamma=0.1), STEPS)
            behind = self._trial(2, MultiStep(0.1, milestones=[3], gamma=0.1), STEPS)
            return [Extend(trial=0, until=STEPS), *ahead, *behind]
        return [Finish()] if self._told == 4 else []

    def tell_failure(self, trial: int) -> list[Decision]:
        return [Finish()]

    def snapshot(self) -> dict[str, object]:
        return {"told": self._told}

    def restore(self, snapshot: Mapping[str, object]) -> None:
        self._told = int(str(snapshot["told"]))


def test_trials_that_come_while_others_run_split_their_stages(
    tmp_path: Path, four_workers: Client
) -> None:
    count = tmp_path / "count"
    study = open_study(tmp_path, count=str(count))
    study.optimize(Growing(), client=four_workers, progress=False)
    assert_is_as_alone(study)
    summary = study.summary()
    assert summary["steps_executed"] == steps_counted(count)
    # The branch at step 3 lies behind the state at 4: its beginning is trained again.
    assert summary["steps_executed"] - summary["steps_repeated"] == summary["steps_unique"]
    assert summary["steps_repeated"] == 3


@pytest.mark.parametrize("kill_at", [0, 5])
def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path: Path, kill_at: int) -> None:
    from dasktune._cluster.local import local_client

    space = dt.Space(lr=list(LR[:4]), batch_size=list(BATCH[:2]), momentum=0.9)
    study = open_study(tmp_path, kill_at=kill_at, killed=str(tmp_path / "killed"))
    with local_client(2) as client:
        study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=client, progress=False)
    assert (tmp_path / "killed").exists()
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
    assert_is_as_alone(study)
    assert any(stage.status == "lost" for stage in study.stages())


def test_a_second_study_trains_only_what_is_new(tmp_path: Path, one_worker: Client) -> None:
    count = tmp_path / "count"
    study = open_study(tmp_path, count=str(count))
    small = dt.Space(lr=list(LR[:2]), batch_size=5, momentum=0.9)
    large = dt.Space(lr=list(LR[:3]), batch_size=5, momentum=0.9)
    study.optimize(dt.algos.Grid(small, max_steps=STEPS), client=one_worker, progress=False)
    before = steps_counted(count)
    study.close()
    again = open_study(tmp_path, count=str(count))
    again.optimize(dt.algos.Grid(small, max_steps=STEPS), client=one_worker, progress=False)
    assert steps_counted(count) == before
    again.optimize(dt.algos.Grid(large, max_steps=STEPS), client=one_worker, progress=False)
    # The third rate parts at step 6, where the second had no reason to save: 3 to 6 again.
    unique = dt.preview(large, max_steps=STEPS).steps_unique
    assert steps_counted(count) == unique + 3
    assert again.summary()["steps_unique"] == unique
    assert again.summary()["steps_repeated"] == 3
    assert_is_as_alone(again)


def test_without_merging_every_trial_is_trained_alone(tmp_path: Path, one_worker: Client) -> None:
    count = tmp_path / "count"
    study = dt.create_study(
        SmallNet,
        name="control",
        storage=tmp_path,
        metric="loss",
        merge=False,
        config={"count": str(count)},
    )
    space = dt.Space(lr=list(LR[:2]), batch_size=5, momentum=0.9)
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=one_worker, progress=False)
    assert steps_counted(count) == 2 * STEPS == study.summary()["steps_executed"]
    assert_is_as_alone(study)


class Drawn(dt.Trainer):
    """Takes random steps of the global generator; S3's client draws in between, if asked."""

    requires_process = True
    ignored_config = ("with_store",)

    def build(self, hp: Mapping[str, Any]) -> None:
        random.seed(self.seed)
        self.at = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        from botocore.retryhandler import delay_exponential

        self.at += random.random()
        if self.config["with_store"]:
            delay_exponential("rand", 2, 1)  # as a thread of its own does before it tries again

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.at}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "random": np.array(random.getstate()[1], np.uint32)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.at = state["at"]
        random.setstate((3, tuple(state["random"].tolist()), None))


@pytest.mark.s3
def test_what_the_stores_client_draws_does_not_reach_the_trainer(
    tmp_path: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dasktune._cluster.local import local_client

    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    study = dt.create_study(
        Drawn,
        name="drawn",
        storage=f"s3://{moto.create_bucket()}/drawn",
        database=tmp_path / "drawn.db",
        metric="loss",
        config={"with_store": True},
    )
    with local_client(1) as client:
        study.optimize(dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=3), client=client)
    alone = run_alone(Drawn, {"lr": 0.1}, 3, config={"with_store": False})
    assert study.trials[0].metrics == alone.metrics
    study.close()
