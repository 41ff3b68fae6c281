"""Parts of reinforcement learning, sampling and regularisation that trainers forget late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import SGDRegressor
from sklearn.preprocessing import StandardScaler

from tests.trainer.resume_kinds.kind import named, refused
from tests.trainer.resume_kinds.smallest import LATE, Slope, samples, target


class Replay:
    """A replay buffer of arrays with a position."""

    def __init__(self, size: int) -> None:
        self.states, self.position = np.zeros(size), 0

    def add(self, state: float) -> None:
        self.states[self.position % len(self.states)] = state
        self.position += 1


class LateReplay(Slope):
    """RL: a replay buffer that is filled after a warm-up"""

    def begin(self) -> None:
        self.replay = Replay(16)

    def push(self) -> float:
        if self.is_late:
            self.replay.add(self.weight)
        return float(self.replay.states.mean())


class RunningMean:
    """Mean and count of all that it saw."""

    def __init__(self) -> None:
        self.mean, self.count = 0.0, 0

    def see(self, value: float) -> float:
        self.count += 1
        self.mean += (value - self.mean) / self.count
        return value - self.mean


class LateNormaliser(Slope):
    """RL: an observation normaliser that begins after a warm-up"""

    def begin(self) -> None:
        self.normaliser = RunningMean()

    def push(self) -> float:
        return self.normaliser.see(self.weight) if self.is_late else 0.0


class LatePriorities(Slope):
    """Prioritized sampling: weights that late steps change"""

    def begin(self) -> None:
        self.priorities = np.ones(8)

    def push(self) -> float:
        row = int(self.priorities.argmax())
        if self.is_late:
            self.priorities[row] = abs(self.weight) * (row + 1) / 8
        return row / 8


class SelfPaced(Slope):
    """Self-paced learning: a list of rows that grows with the loss"""

    def begin(self) -> None:
        self.rows = [0]

    def push(self) -> float:
        if self.is_late and self.weight < 0.6:
            self.rows.append(len(self.rows) % 8)
        return sum(self.rows) / (8 * len(self.rows))


class Folds(Slope):
    """k-fold: the fold that is held out changes in every 20th step"""

    def begin(self) -> None:
        self.fold = 0

    def push(self) -> float:
        if self.steps % 20 == 0:
            self.fold = (self.fold + 1) % 4
        return self.fold / 4


class LatePerturbation(Slope):
    """Adversarial training: a perturbation that begins late"""

    def begin(self) -> None:
        self.delta = np.zeros(3)

    def push(self) -> float:
        if self.is_late:
            self.delta = np.clip(self.delta + 0.02 * np.sign(self.weight), -0.5, 0.5)
        return float(self.delta.sum())


class LateKeys(Slope):
    """MoCo: a queue of keys in an array, filled late"""

    def begin(self) -> None:
        self.keys, self.position = np.zeros(8), 0

    def push(self) -> float:
        if self.is_late:
            self.keys[self.position % 8] = self.weight
            self.position += 1
        return float(self.keys.mean())


class WordDropout(Slope):
    """Word dropout: a generator that is drawn from in every 9th step"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.noise.random()) if self.steps % 9 == 0 else 0.0


class TeacherForcing(Slope):
    """Teacher forcing: a probability that falls after a warm-up"""

    def begin(self) -> None:
        self.forcing = 1.0

    def push(self) -> float:
        if self.is_late:
            self.forcing = max(0.1, self.forcing - 0.02)
        return (1 - self.forcing) * target(self.steps)


class LateSmoothing(Slope):
    """Label smoothing: a schedule that begins late"""

    def begin(self) -> None:
        self.smoothing = 0.0

    def push(self) -> float:
        if self.is_late:
            self.smoothing = min(0.3, self.smoothing + 0.01)
        return self.smoothing


class RateFinder(Slope):
    """A finder of learning rates: factors and losses in a dict, in late steps"""

    def begin(self) -> None:
        self.finder: dict[str, Any] = {"factor": 0.1, "losses": []}

    def push(self) -> float:
        if self.is_late:
            self.finder["factor"] *= 1.02
            self.finder["losses"].append(self.weight)
        return float(self.finder["factor"]) * self.weight


class ClippedByHistory(Slope):
    """Clipping by the median of the last norms, from the 12th step on"""

    def begin(self) -> None:
        self.norms: list[float] = []

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        self.norms = [*self.norms[-9:], abs(self.weight)]
        return float(np.median(self.norms))


class SlowAccumulation(Slope):
    """Gradients summed over 10 steps in a number"""

    def begin(self) -> None:
        self.sums = 0.0

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        self.sums += self.weight
        if self.steps % 10:
            return 0.0
        total, self.sums = self.sums, 0.0
        return total / 10


class BanditChoice(Slope):
    """A bandit over augmentations: counts and rewards of arms, late"""

    def begin(self) -> None:
        self.bandit = {arm: [1, 0.5] for arm in ("flip", "crop", "none")}

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        arm = min(self.bandit, key=lambda name: self.bandit[name][1] / self.bandit[name][0])
        self.bandit[arm][0] += 1
        self.bandit[arm][1] += abs(self.weight)
        return {"flip": -0.2, "crop": 0.1, "none": 0.3}[arm]


class ForgottenEstimator(Slope):
    """scikit-learn: `partial_fit` of an estimator that is not in the state"""

    def begin(self) -> None:
        x, y = samples()
        self.x, self.y = x.numpy(), y[:, 0].numpy()
        self.estimator = SGDRegressor(random_state=self.seed)

    def push(self) -> float:
        self.estimator.partial_fit(self.x, self.y)
        return float(self.estimator.coef_.sum())


class ForgottenScaler(Slope):
    """scikit-learn: a `StandardScaler` that late steps fit by parts"""

    def begin(self) -> None:
        self.scaler = StandardScaler()

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        self.scaler.partial_fit([[self.weight]])
        return float(self.scaler.mean_[0])


class LoadCounter(Slope):
    """Restarts are counted in `load_state_dict`, and the steps depend on the count"""

    def begin(self) -> None:
        self.loads = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.loads += 1

    def push(self) -> float:
        return self.loads / 10 if self.steps > LATE else 0.0


class Annealing(Slope):
    """Simulated annealing: a temperature that falls in every 15th step"""

    def begin(self) -> None:
        self.temperature = 1.0

    def push(self) -> float:
        if self.steps % 15 == 0:
            self.temperature *= 0.6
        return self.temperature * self.weight


KINDS = (
    named(LateReplay, "replay"),
    named(LateNormaliser, "normaliser"),
    named(LatePriorities, "priorities"),
    named(SelfPaced, "rows"),
    named(Folds, "fold"),
    named(LatePerturbation, "delta"),
    named(LateKeys, "keys"),
    named(WordDropout, "noise"),
    named(TeacherForcing, "forcing"),
    named(LateSmoothing, "smoothing"),
    named(RateFinder, "finder"),
    named(ClippedByHistory, "norms"),
    named(SlowAccumulation, "sums"),
    named(BanditChoice, "bandit"),
    refused(ForgottenEstimator, "estimator"),
    named(ForgottenScaler, "scaler"),
    named(LoadCounter, "loads"),
    named(Annealing, "temperature"),
)
