"""Trainers that forget a part which moves after the 7th step only."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from tests.trainer.resume_kinds.kind import named
from tests.trainer.resume_kinds.smallest import LATE, Slope, target


class LateAverage(Slope):
    """An average over the last quarter"""

    def begin(self) -> None:
        self.average: float | None = None

    def train(self) -> None:
        super().train()
        if self.steps >= 25:
            before = self.weight if self.average is None else self.average
            self.average = 0.95 * before + 0.05 * self.weight

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.weight if self.average is None else self.average}


class PlateauRule(Slope):
    """A plateau rule: `best`, `bad` and `scale`"""

    def begin(self) -> None:
        self.best, self.bad, self.scale = float("inf"), 0, 1.0

    def push(self) -> float:
        loss = abs(self.weight - target(self.steps))
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        if self.bad >= 8:
            self.scale, self.bad = self.scale * 0.7, 0
        return self.scale * self.weight


class EarlyStop(Slope):
    """Early stopping: bad steps are counted from a late step on"""

    def begin(self) -> None:
        self.bad = 0

    def train(self) -> None:
        if self.bad < 30:
            super().train()
        else:
            self.steps += 1
        self.bad += self.steps >= LATE


class LowestLoss(Slope):
    """The lowest loss so far is reported, and it falls after the 7th step"""

    def begin(self) -> None:
        self.lowest = 0.1

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.lowest}

    def train(self) -> None:
        super().train()
        if self.is_late:
            self.lowest = min(self.lowest, (self.weight - 0.35) ** 2)


def scaled(factors: list[float], value: float) -> float:
    factors[0] *= 1.01
    return factors[0] * value


def augmenting() -> Callable[[float], float]:
    scale = 1.0

    def augment(value: float) -> float:
        nonlocal scale
        scale *= 1.01
        return scale * value

    return augment


class AugmentedByClosure(Slope):
    """An augmentation in a closure, used from a late step on"""

    def begin(self) -> None:
        self.augment = augmenting()

    def push(self) -> float:
        return self.augment(self.weight) if self.is_late else 0.0


class AugmentedByPartial(Slope):
    """An augmentation in a partial function of a list, used from a late step on"""

    def begin(self) -> None:
        self.augment = functools.partial(scaled, [1.0])

    def push(self) -> float:
        return self.augment(self.weight) if self.is_late else 0.0


class Augmentation:
    """A scale that grows with each call."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, value: float) -> float:
        self.scale *= 1.01
        return self.scale * value


class AugmentedByMethod(Slope):
    """An augmentation in a bound method, used from a late step on"""

    def begin(self) -> None:
        self.augment = Augmentation().__call__

    def push(self) -> float:
        return self.augment(self.weight) if self.is_late else 0.0


class AugmentedByObject(Slope):
    """An augmentation in an object that can be called, used from a late step on"""

    def begin(self) -> None:
        self.augment = Augmentation()

    def push(self) -> float:
        return self.augment(self.weight) if self.is_late else 0.0


class AugmentedByLambda(Slope):
    """An augmentation in a lambda over a local object, used from a late step on"""

    def begin(self) -> None:
        augmentation = Augmentation()
        self.augment = lambda value: augmentation(value)

    def push(self) -> float:
        return self.augment(self.weight) if self.is_late else 0.0


class LateGenerator(Slope):
    """A generator that is made in a late step"""

    def begin(self) -> None:
        self.noise: random.Random | None = None

    def push(self) -> float:
        if self.steps == LATE:
            self.noise = random.Random(self.seed)
        return self.noise.random() if self.noise else 0.0


class LateDraws(Slope):
    """A generator of `build` that is drawn from in late steps only"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.noise.random()) if self.is_late else 0.0


class LateGlobalDraws(Slope):
    """Python's global generator, drawn from in late steps only"""

    def begin(self) -> None:
        random.seed(self.seed)

    def push(self) -> float:
        return random.random() if self.is_late else 0.0


class LateLazyDraws(Slope):
    """A generator expression that is made in `build` and drawn from in late steps"""

    def begin(self) -> None:
        noise = random.Random(self.seed)
        self.draws: Iterator[float] = (noise.random() for _ in itertools.count())

    def push(self) -> float:
        return next(self.draws) if self.is_late else 0.0


class LateEpsilon(Slope):
    """Exploration: an epsilon that falls after a warm-up"""

    def begin(self) -> None:
        self.epsilon = 1.0

    def push(self) -> float:
        if self.is_late:
            self.epsilon *= 0.97
        return self.epsilon


class LateTarget(Slope):
    """Q-learning: a target weight that is copied in every 20th step"""

    def begin(self) -> None:
        self.goal = self.weight

    def push(self) -> float:
        if self.steps % 20 == 0:
            self.goal = self.weight
        return self.goal - self.weight


class Curriculum(Slope):
    """Curriculum: a level that rises where the loss is small, late"""

    def begin(self) -> None:
        self.level = 0

    def push(self) -> float:
        if self.is_late and abs(self.weight) < 0.5:
            self.level += 1
        return self.level / 20


class AfterDrop(Slope):
    """A counter that moves after the first drop of the learning rate only"""

    def begin(self) -> None:
        self.drops = 0

    def push(self) -> float:
        if self.lr < 0.1 and self.is_late:
            self.drops += 1
        return self.drops / 20


class SeenDrops(Slope):
    """`setup` multiplies a factor at each call, and the resume calls it once"""

    def begin(self) -> None:
        self.drops = -1

    def setup(self, hp: Any) -> None:
        super().setup(hp)
        self.drops += 1

    def push(self) -> float:
        return self.drops / 4


class LateProperty(Slope):
    """A `cached_property` that keeps the weight of a late step"""

    @cached_property
    def baseline(self) -> float:
        return self.weight

    def push(self) -> float:
        return self.weight - self.baseline if self.is_late else 0.0


class LateSnapshot(Slope):
    """A `deepcopy` of the weights in a late step, to which training is drawn"""

    def begin(self) -> None:
        self.weights = {"w": 1.0}
        self.snapshot: dict[str, float] | None = None

    def push(self) -> float:
        self.weights["w"] = self.weight
        if self.steps == 2 * LATE:
            self.snapshot = copy.deepcopy(self.weights)
        return self.weight - self.snapshot["w"] if self.snapshot else 0.0

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.weights["w"] = self.weight


class LateList(Slope):
    """A list of losses that is filled in every 10th step"""

    def begin(self) -> None:
        self.losses: list[float] = []

    def push(self) -> float:
        if self.steps % 10 == 0:
            self.losses.append(self.weight)
        return sum(self.losses[-3:])


class LateKey(Slope):
    """A dict that gets a key in a late step"""

    def begin(self) -> None:
        self.counts: dict[str, int] = {"early": 0}

    def push(self) -> float:
        if self.is_late:
            self.counts["late"] = self.counts.get("late", 0) + 1
        return self.counts.get("late", 0) / 50


class LateAttribute(Slope):
    """An attribute that is made in a late step, and read by `getattr` with a default"""

    def push(self) -> float:
        if self.is_late:
            self.hidden = getattr(self, "hidden", 0.0) + 0.02
        return float(getattr(self, "hidden", 0.0))


class LateRule(Slope):
    """A function in an attribute, which a late step replaces by another one"""

    def begin(self) -> None:
        self.rule: Callable[[float], float] = abs

    def push(self) -> float:
        if self.steps == LATE:
            self.rule = np.sign
        return float(self.rule(self.weight))


class FirstPolicy:
    """Pushes down."""

    def __call__(self) -> float:
        return 0.2


class SecondPolicy(FirstPolicy):
    """Pushes up."""

    def __call__(self) -> float:
        return -0.2


class LateClass(Slope):
    """An object of another class from a late step on"""

    def begin(self) -> None:
        self.policy = FirstPolicy()

    def push(self) -> float:
        if self.steps == LATE:
            self.policy = SecondPolicy()
        return self.policy()


class LateInEvaluate(Slope):
    """`evaluate` counts good losses late, and the next steps depend on the count"""

    def begin(self) -> None:
        self.skips = 0

    def evaluate(self) -> dict[str, float]:
        if self.is_late and self.weight > 0:
            self.skips += 1
        return super().evaluate()

    def push(self) -> float:
        return self.skips / 50


KINDS = (
    named(LateAverage, "average"),
    named(PlateauRule, "best"),
    named(EarlyStop, "bad"),
    named(LowestLoss, "lowest"),
    named(AugmentedByClosure, "augment"),
    named(AugmentedByPartial, "augment"),
    named(AugmentedByMethod, "augment"),
    named(AugmentedByObject, "augment"),
    named(AugmentedByLambda, "augment"),
    named(LateGenerator, "noise"),
    named(LateDraws, "noise"),
    named(LateGlobalDraws, "Python's global random generator"),
    named(LateLazyDraws, "draws"),
    named(LateEpsilon, "epsilon"),
    named(LateTarget, "goal"),
    named(Curriculum, "level"),
    named(AfterDrop, "drops"),
    named(SeenDrops, "drops"),
    named(LateProperty, "baseline"),
    named(LateSnapshot, "snapshot"),
    named(LateList, "losses"),
    named(LateKey, "counts"),
    named(LateAttribute, "hidden"),
    named(LateRule, "rule"),
    named(LateClass, "policy"),
    named(LateInEvaluate, "skips"),
)
