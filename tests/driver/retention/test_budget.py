"""A byte budget on a real cluster: the store stays under it, and the results are the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.storage.codec import encode

pytestmark = pytest.mark.cluster

STEPS = 12
FLOATS = 20_000
NBYTES = 8 * FLOATS


class Wide(dt.Trainer):
    """Has a state of a known size, and counts its steps in a file."""

    ignored_config = ("log",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.weight = np.linspace(0, 1, FLOATS)
        self.rng = np.random.default_rng(self.seed)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        with open(self.config["log"], "ab") as file:
            file.write(b".")
        self.weight = self.weight * (1 - self.lr) + self.lr * self.rng.normal(size=FLOATS)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.square(self.weight).sum())}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, "rng": self.rng.bit_generator.state, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight, self.lr = state["weight"].copy(), state["lr"]
        self.rng.bit_generator.state = state["rng"]


def open_study(folder: Path, name: str, **options: Any) -> Study:
    (folder / name).mkdir(exist_ok=True)
    study: Study = dt.create_study(
        Wide,
        name=name,
        storage=folder / name / "store",
        metric="loss",
        config={"log": str(folder / name / "log")},
        load_if_exists=True,
        **options,
    )
    return study


def space() -> dt.Space:
    drops = [MultiStep(0.1, milestones=[at], gamma=0.5) for at in (2, 4, 6, 8)]
    return dt.Space(lr=drops, width=[Constant(1), *(Piecewise([1, 2], [at]) for at in (3, 7, 9))])


def steps(study: Study) -> int:
    return os.path.getsize(study.config["log"])  # type: ignore[arg-type]


def stored(study: Study) -> int:
    return sum(one.nbytes for one in study.store.inventory())


@pytest.mark.parametrize("kind", ["grid", "sha"])
def test_results_under_a_tight_budget_equal_those_without_budget(
    tmp_path: Path, four_workers: Client, kind: str
) -> None:
    tuner: Tuner = (
        dt.algos.Grid(space(), max_steps=STEPS)
        if kind == "grid"
        else dt.algos.SHA(space(), trials=16, max_steps=STEPS, min_steps=3, seed=3)
    )
    free = open_study(tmp_path, "free")
    free.optimize(tuner, client=four_workers, progress=False)
    budget = max(stored(free) // 5, 8 * NBYTES)
    tight = open_study(tmp_path, "tight", budget=budget, keep="best:2")
    tight.optimize(tuner, client=four_workers, progress=False)
    assert stored(tight) <= budget < stored(free)
    assert [(one.state, one.metrics) for one in tight.trials] == [
        (one.state, one.metrics) for one in free.trials
    ]
    # What is repeated is counted, and no more than that is trained.
    summary = tight.summary()
    assert steps(tight) == summary["steps_executed"]
    assert steps(tight) - summary["steps_repeated"] == steps(free)
    # The winners' weights are there, the same.
    best = sorted(tight.trials, key=lambda one: (one.value, one.number))[:2]
    for trial in best:
        key = tight.plan.node_at(trial.number, trial.steps).key_at(trial.steps)
        ours, theirs = (study.store.load(key)[0] for study in (tight, free))
        assert encode(ours).digest == encode(theirs).digest
    rows = {row.key for row in tight.database.storage_rows()}
    assert rows == set(tight.store.keys())
    free.close()
    tight.close()


def test_resumed_study_shrinks_its_store_to_a_smaller_budget(
    tmp_path: Path, four_workers: Client
) -> None:
    study = open_study(tmp_path, "later")
    study.optimize(
        dt.algos.Grid(space(), max_steps=STEPS // 2), client=four_workers, progress=False
    )
    before, trained = stored(study), steps(study)
    study.close()
    study = open_study(tmp_path, "later", budget=before // 2)
    study.optimize(dt.algos.Grid(space(), max_steps=STEPS), client=four_workers, progress=False)
    assert stored(study) <= before // 2
    assert study.summary()["steps_executed"] == steps(study) > trained
    # What is asked for again is trained again from what is left.
    again = study.evaluate({"lr": MultiStep(0.1, milestones=[2], gamma=0.5), "width": 1}, STEPS)
    assert again == study.trials[-1].metrics[STEPS]
    study.close()


def test_wrong_options_are_refused_together_and_make_no_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_study(tmp_path, "wrong", budget="twenty", keep="worst", seed="a")
    assert len(caught.value.problems) == 3
    assert not (tmp_path / "wrong" / "store").exists()


def test_what_a_study_keeps_is_known_to_others(tmp_path: Path, four_workers: Client) -> None:
    from dasktune._results.keep import keep_of, kept_elsewhere

    study = open_study(tmp_path, "kept", keep="best:3")
    study.optimize(dt.algos.Grid(space(), max_steps=STEPS), client=four_workers, progress=False)
    best = sorted(study.trials, key=lambda one: (one.value, one.number))[:3]
    keys = {study.plan.node_at(one.number, STEPS).key_at(STEPS) for one in best}
    assert kept_elsewhere(study.database) == keys
    row = study.database.study("kept")
    assert row is not None
    assert str(keep_of(study.database, row.id)) == "best:3"
    study.close()
    study = open_study(tmp_path, "kept", keep="none")
    assert kept_elsewhere(study.database) == frozenset()
    study.close()
    study = open_study(tmp_path, "kept")
    assert kept_elsewhere(study.database) < keys
    study.close()
