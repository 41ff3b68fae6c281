"""A forest in a study: its weights are shown, and the study goes on and is replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.algos.forest import priority
from dasktune.algos.forest.ranks import ModelWeight, lines_of

SPACE = dt.Space(
    kernel=[
        dt.Branch("steady", dt.Space(a=dt.Float(0.0, 1.0))),
        dt.Branch("rough", dt.Space(b=dt.Float(0.0, 1.0))),
    ]
)


def new_tuner() -> dt.algos.Tuner:
    return dt.algos.ASHA(SPACE, trials=24, max_steps=4, sampler=dt.Forest(complexity=False))


def opened(folder: Path) -> Any:
    return dt.create_study(None, name="own", storage=folder, metric="loss", load_if_exists=True)


def trained(study: Any, most: int) -> None:
    """Train as many parts of trials in a loop of our own, or all."""
    for _ in range(most):
        asked = study.ask(new_tuner())
        if asked is None:
            return
        rough = asked.params.get("b", 0.0)
        study.tell(asked, (17.0 * rough) % 1.0 + 1 / asked.until)


def test_a_study_goes_on_with_the_priorities_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(priority, "FITS", 5)
    first = opened(tmp_path)
    trained(first, 15)
    half = first.models(new_tuner())
    first.close()
    again = opened(tmp_path)
    assert again.models(new_tuner()) == half
    trained(again, 1000)
    steady, rough = again.models(new_tuner())
    assert steady.priority == 0
    assert rough.priority > 0
    assert rough.weight == 2 / 3
    assert steady.trials + rough.trials == 24
    replayed = again.replay(new_tuner())
    assert replayed.identical, str(replayed)
    assert {"assessed"} <= {record["kind"] for record in again.log(new_tuner())}


def test_lines_of_models_begin_with_the_largest_weight() -> None:
    models = [
        ModelWeight(name=f"m{at}", weight=at / 66, complexity=3.0, priority=None, trials=at)
        for at in range(12)
    ]
    lines = lines_of(models)
    assert str(replace(models[1], rank=0.25)).startswith("m1: weight 0.015, rank 0.25, complexity")
    assert lines[0] == "m11: weight 0.167, complexity 3, priority unknown, 11 trials"
    assert lines[-1] == "and 2 models more"


def test_simulated_study_has_the_models_in_its_summary() -> None:
    forest = dt.Forest(priority=False)
    tuner = dt.algos.Random(SPACE, trials=12, max_steps=2, sampler=forest)
    summary = dt.simulate(tuner, lambda values, step: 1 / step, workers=2).summary()
    assert [model["name"] for model in summary["models"]] == ["kernel=steady", "kernel=rough"]
    assert [model["trials"] for model in summary["models"]] == [
        model.trials for model in tuner.model_weights
    ]
    assert sum(model["trials"] for model in summary["models"]) == 12
    bare = dt.algos.Random(SPACE, trials=2, max_steps=2)
    assert dt.simulate(bare, lambda values, step: 1 / step).summary()["models"] == []
