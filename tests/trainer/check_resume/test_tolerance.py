"""The check where training is exact within a tolerance only, as on a GPU.

No GPU takes part: the trainers round at random by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from random import SystemRandom
from typing import Any

import numpy as np
import pytest
import torch

from dasktune.trainer.base import Trainer
from dasktune.trainer.check_resume.check import ResumeReport, check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from tests.forgetful import Amount, Slot, Tally
from tests.forked import run_forked

pytestmark = pytest.mark.process


class Rounding(Trainer):
    """Descent whose sums are rounded in another way each time; its last loss decides nothing."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = np.random.default_rng(0).normal(size=(20, 3))
        self.weights, self.target = np.zeros(3), np.array([1.0, -2.0, 0.5])
        self.last: np.ndarray[Any, Any] | None = None

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def noise(self) -> float:
        return 0.0

    def rounded(self) -> float:
        return 1 + 1e-8 * SystemRandom().uniform(-1, 1)

    def train(self) -> None:
        self.last = self.x @ (self.weights - self.target)
        self.weights = (
            self.weights * self.rounded() - self.lr * self.x.T @ self.last / 20 + self.noise()
        )

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.square(self.x @ (self.weights - self.target)).mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weights = state["weights"]


class LateCounter(Rounding):
    """Forgets a counter that matters at every 16th step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls = Tally(0)

    def noise(self) -> float:
        self.calls += 1
        return float(self.calls % 16 == 0)


class LateAverage(LateCounter):
    """Forgets an average of its first weight that matters at every 16th step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.average = Amount(0)

    def noise(self) -> float:
        self.average = Amount(0.9 * self.average + 0.1 * self.weights[0])
        return super().noise() * float(self.average)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "calls": int(self.calls)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weights, self.calls = state["weights"], Tally(state["calls"])


class ForgottenGenerator(Rounding):
    """Forgets its generator."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.generator = Slot(np.random.default_rng(self.seed))

    def noise(self) -> float:
        return float(self.generator.value.normal())


class Coarse(Rounding):
    """Rounds by more than the check allows, and in each process otherwise."""

    def rounded(self) -> float:
        return 1 + 0.01 * (os.getpid() % 1000)


class CoarseNet(Coarse):
    """Rounds too much, and has a net whose gradients no state holds."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.net = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(self.net.weight)
        torch.nn.init.zeros_(self.net.bias)

    def train(self) -> None:
        super().train()
        self.net.zero_grad()
        self.net(torch.ones(3)).sum().backward()


def checked(trainer_class: type) -> ResumeReport:
    run = partial(run_in_new_process, execute=run_forked)
    return check_resume(trainer_class, {"lr": 0.1}, device="cuda", run=run)


def test_rounding_passes() -> None:
    report = checked(Rounding)
    assert report.ok, str(report)
    assert report.tolerance == 0.001


@pytest.mark.parametrize(
    ("trainer_class", "path"), [(LateCounter, "trainer.calls"), (LateAverage, "trainer.average")]
)
def test_forgotten_part_without_an_effect_is_named(trainer_class: type, path: str) -> None:
    (difference,) = checked(trainer_class).differences
    assert difference.path == path
    assert "when the state was saved" in difference.reason


def test_cause_is_named_before_its_effect() -> None:
    paths = [difference.path for difference in checked(ForgottenGenerator).differences]
    assert paths.index("trainer.generator.value") < paths.index("metrics after step 3['loss']")


def test_rounding_beyond_the_tolerance_is_no_wrong_resume() -> None:
    paths = [difference.path for difference in checked(Coarse).differences]
    assert paths.index("algorithms of the GPU") < paths.index("metrics after step 3['loss']")


def test_gradients_that_a_step_clears_are_no_cause() -> None:
    paths = [each.path for each in checked(CoarseNet).differences]
    assert "algorithms of the GPU" in paths
    assert not any(path.endswith(".grad") for path in paths)
