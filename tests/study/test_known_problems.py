"""Problems of a tuner that are known before its first report: no cluster is started for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep

SPACE = dt.Space(lr=dt.Float(0.1, 1.0))


class Counter(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.steps = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        self.steps += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.steps), "frames": 4.0}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    """Give a study that cannot start a cluster."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("dasktune._study.optimize.cluster_of", refuse)
    made = dt.create_study(Counter, name="n", metric="loss", storage=tmp_path)
    yield made
    made.close()


def pop(**options: Any) -> dt.algos.POP:
    return dt.algos.POP(SPACE, trials=2, max_steps=8, **options)


def test_optimize_warns_of_what_a_new_tuner_never_does(
    study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    space = dt.Space(lr=[0.1, MultiStep(0.1, milestones=[4, 8, 9], gamma=0.1)])
    change = "lr changes at steps 8 and 9 in 1 of 2 trials, and no trial goes beyond step 8"
    assert f"note: {change}" in str(dt.preview(space, max_steps=8))
    with pytest.raises(AssertionError, match="a cluster was started"):
        study.optimize(dt.algos.Grid(space, max_steps=8), progress=False)
    assert f"study n: {change} (max_steps): sequences count steps" in caplog.text
    caplog.clear()
    with pytest.raises(AssertionError, match="a cluster was started"):
        study.evaluate({"lr": MultiStep(0.1, milestones=[8], gamma=0.1)}, 4)
    assert "changes" not in caplog.text


def test_optimize_refuses_unknown_metric_of_ends_when(study: Study) -> None:
    tuner = pop(ends_when={"frame": (3.0, None)})
    with pytest.raises(ConfigurationError, match="POP: unknown metric 'frame'; known: frames"):
        study.optimize(tuner, progress=False)
    with pytest.raises(ConfigurationError, match="unknown metric 'frame'"):
        study.optimize(dt.algos.Repeats(tuner, seeds=2), progress=False)
    with pytest.raises(AssertionError, match="a cluster was started"):
        study.optimize(pop(ends_when={"frames": (3.0, None)}), progress=False)


def test_optimize_refuses_ends_when_beyond_the_bounds(study: Study) -> None:
    tuner = pop(bounds=(0.0, 9.0), ends_when={"loss": (10.0, None)})
    text = r"POP: ends_when: loss must reach into the bounds, 0 to 9, got \(10.0, None\)"
    for wrong in (tuner, dt.algos.Repeats(tuner, seeds=2)):
        with pytest.raises(ConfigurationError, match=text.removeprefix("POP: ")):
            study.optimize(wrong, progress=False)
    for ends_when in ({"loss": (9.0, None)}, {"frames": (10.0, None)}):
        with pytest.raises(AssertionError, match="a cluster was started"):
            study.optimize(pop(bounds=(0.0, 9.0), ends_when=ends_when), progress=False)


@pytest.mark.parametrize(
    "tuner",
    [
        pop(bounds=(0.0, 1.0)),
        dt.algos.EarlyTerm(SPACE, trials=2, max_steps=8, bounds=(0.0, 1.0)),
    ],
    ids=lambda tuner: type(tuner).__name__,
)
def test_optimize_refuses_bounds_that_earlier_trials_break(
    study: Study, tuner: dt.algos.Tuner
) -> None:
    study.add_trial({"lr": 0.2}, 0.5, steps=8)
    with pytest.raises(AssertionError, match="a cluster was started"):
        study.optimize(tuner, progress=False)
    study.add_trial({"lr": 0.3}, 40.0, steps=8)
    other = type(tuner)(SPACE, trials=2, max_steps=8, bounds=(0.0, 2.0))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError) as caught:
        study.optimize(other, progress=False)
    text = "bounds must hold all values of loss, 0 to 2, got 40 at step 8 of trial 1"
    assert text in str(caught.value)


class Wide(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"weights": np.zeros(self.config["width"])}


def test_preview_with_trainer_gives_bytes_of_all_checkpoints() -> None:
    space = dt.Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[30], gamma=0.1)])
    plain = dt.preview(space, max_steps=60)
    cost = dt.preview(space, max_steps=60, trainer=Wide, config={"width": 125_000})
    assert (plain.nbytes, cost.checkpoints) == (None, 3)
    assert cost.nbytes == 3 * 1_000_000
    assert str(cost) == f"{plain}, 3 MB"
    with pytest.raises(ConfigurationError, match="trainer must be None for several spaces"):
        dt.preview([space], max_steps=60, trainer=Wide)  # type: ignore[call-overload]
