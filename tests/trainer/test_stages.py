"""A stage tree as a plain Dask graph gives what lone runs give."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import dask.local
import numpy as np
import pytest
from distributed.comm import core

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.graph.tree import StageTree
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise
from dasktune.trainer.lifecycle import run_alone

STEPS = 10


class Walk(dt.Trainer):
    def build(self, hp: Any) -> None:
        self.weight = np.ones(3)
        self.rng = np.random.default_rng(self.seed)

    def setup(self, hp: Any) -> None:
        self.__dict__.update(hp)

    def train(self) -> None:
        self.weight = self.weight - self.lr * (self.weight + self.noise * self.rng.normal(size=3))

    def evaluate(self) -> dict[str, float]:
        return {"loss": float((self.weight**2).sum())}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Any) -> None:
        self.weight = state["weight"]
        self.rng.bit_generator.state = state["rng"]


SPACE = dt.Space(
    lr=[Constant(0.1), MultiStep(0.1, milestones=[6], gamma=0.1), Exponential(0.1, gamma=0.9)],
    noise=[0.1, Piecewise([0.1, 0.5], boundaries=[4])],
)


@pytest.mark.parametrize("report_every", [1, 4])
def test_the_synchronous_scheduler_trains_each_stage_once(
    tmp_path: Path, report_every: int
) -> None:
    study = dt.create_study(
        Walk, name="walk", storage=tmp_path, metric="loss", report_every=report_every
    )
    tuner = dt.algos.Grid(SPACE, max_steps=STEPS)
    tree = study.stage_tree(tuner)
    cost = dt.preview(SPACE, max_steps=STEPS)
    graph = tree.to_dask()
    assert tree.steps == cost.steps_unique
    assert len(graph) == len(tree)
    results = dask.local.get_sync(graph, list(graph))
    by_key = {stage.key: result for stage, result in zip(tree, results, strict=True)}
    ends = [stage for stage in tree if stage.stop == STEPS]
    assert len(ends) == len(tuner.configurations)
    for stage in ends:
        alone = run_alone(Walk, stage.sequences, STEPS, states_at=[STEPS])
        found = by_key[stage.key]
        assert found.metrics[STEPS] == alone.metrics[STEPS]
        np.testing.assert_array_equal(found.state["weight"], alone.states[STEPS]["weight"])
        assert found.state["rng"] == alone.states[STEPS]["rng"]
    assert study.trials == []


def test_tree_without_training_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a function that trains one stage"):
        StageTree({}).to_dask()


class Shaken(Walk):
    """Takes its steps from the global generator; Dask draws in between."""

    def build(self, hp: Any) -> None:
        super().build(hp)
        random.seed(self.seed)

    def train(self) -> None:
        self.weight = self.weight - self.lr * random.random()
        core.random.uniform(0, 1)  # as a thread of a worker's would


@pytest.mark.usefixtures("dask_draws_globally")
def test_draws_of_dask_do_not_reach_the_trainer(tmp_path: Path) -> None:
    study = dt.create_study(Shaken, name="shaken", storage=tmp_path, metric="loss")
    graph = study.stage_tree(dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=STEPS)).to_dask()
    (found,) = dask.local.get_sync(graph, list(graph))
    assert found.metrics == run_alone(Shaken, {"lr": 0.1}, STEPS).metrics
