"""Trainers that forget a part which moves from the first step on: refused by the check."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.trainer.resume_kinds.kind import refused
from tests.trainer.resume_kinds.smallest import Net, Slope, target


class ForgottenPython(Slope):
    """Python's global generator"""

    def begin(self) -> None:
        random.seed(self.seed)

    def push(self) -> float:
        return random.random()


class ForgottenNumpy(Slope):
    """NumPy's global generator"""

    def begin(self) -> None:
        np.random.seed(self.seed)

    def push(self) -> float:
        return float(np.random.rand())


class ForgottenTorch(Slope):
    """torch's global generator"""

    def begin(self) -> None:
        torch.manual_seed(self.seed)

    def push(self) -> float:
        return float(torch.rand(()))


class ForgottenHeld(Slope):
    """A generator of NumPy in an attribute"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.noise.random())


class ForgottenLegacy(Slope):
    """A `RandomState` of NumPy in an attribute"""

    def begin(self) -> None:
        self.noise = np.random.RandomState(self.seed)

    def push(self) -> float:
        return float(self.noise.rand())


class ForgottenMomentum(Slope):
    """Momentum in a number"""

    def begin(self) -> None:
        self.momentum = 0.0

    def push(self) -> float:
        self.momentum = 0.9 * self.momentum + 0.1 * self.weight
        return self.momentum


class ForgottenMoments(Slope):
    """Adam by hand: two arrays in a dict"""

    def begin(self) -> None:
        self.moments = {"first": np.zeros(2), "second": np.zeros(2)}

    def push(self) -> float:
        self.moments["first"] = 0.9 * self.moments["first"] + 0.1 * self.weight
        self.moments["second"] = 0.99 * self.moments["second"] + 0.01 * self.weight**2
        return float((self.moments["first"] / np.sqrt(self.moments["second"] + 1e-8)).sum())


class ForgottenCounter(Slope):
    """A counter that matters in every 8th step"""

    def begin(self) -> None:
        self.calls = 0

    def push(self) -> float:
        self.calls += 1
        return float(self.calls % 8 == 0)


class ForgottenPosition(Slope):
    """A Python generator over the batches"""

    def begin(self) -> None:
        self.batches = self.endless()

    def endless(self) -> Iterator[float]:
        while True:
            yield from (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)

    def push(self) -> float:
        return next(self.batches)


class ForgottenCount(Slope):
    """An `itertools.count` in an attribute"""

    def begin(self) -> None:
        self.numbers = itertools.count()

    def push(self) -> float:
        return target(next(self.numbers))


COUNTER = {"calls": 0}


class ModuleGlobal(Slope):
    """A counter in a global dict of the module"""

    def push(self) -> float:
        COUNTER["calls"] += 1
        return COUNTER["calls"] / 50


TOTAL = 0


class GlobalNumber(Slope):
    """A global number with a `global` statement"""

    def push(self) -> float:
        global TOTAL
        TOTAL += 1
        return TOTAL / 50


class ClassAttribute(Slope):
    """A list in an attribute of the class"""

    calls: list[int] = []  # noqa: RUF012

    def push(self) -> float:
        self.calls.append(1)
        return len(self.calls) / 50


class ClassCounter(Slope):
    """A number of the class that a class method counts"""

    count = 0

    @classmethod
    def counted(cls) -> int:
        cls.count += 1
        return cls.count

    def push(self) -> float:
        return self.counted() / 50


class DefaultArgument(Slope):
    """A list in a default argument of a method"""

    def push(self, calls: list[int] = []) -> float:  # noqa: B006
        calls.append(1)
        return len(calls) / 50


def counting() -> Callable[[], float]:
    calls = 0

    def count() -> float:
        nonlocal calls
        calls += 1
        return calls / 50

    return count


class Closure(Slope):
    """A counter in a closure that is held in an attribute"""

    def begin(self) -> None:
        self.push = counting()  # type: ignore[method-assign]


class Clock(Slope):
    """A result that depends on the clock"""

    def push(self) -> float:
        return time.perf_counter_ns() % 1_000_003 / 1e6


class Unseeded(Slope):
    """A generator without a seed"""

    def begin(self) -> None:
        self.noise = np.random.default_rng()

    def push(self) -> float:
        return float(self.noise.random())


class BestSoFar(Slope):
    """`evaluate` keeps the best loss, on which the next step depends"""

    def begin(self) -> None:
        self.best = float("inf")

    def evaluate(self) -> dict[str, float]:
        self.best = min(self.best, self.weight**2)
        return super().evaluate()

    def push(self) -> float:
        return min(self.best, 1.0)


@dataclass
class Schedule:
    """The position of a schedule."""

    step: int = 0
    scale: float = 1.0

    def advance(self) -> float:
        self.step += 1
        self.scale *= 0.95
        return self.scale


class HeldSchedule(Slope):
    """A number in a dataclass that the trainer holds"""

    def begin(self) -> None:
        self.schedule = Schedule()

    def push(self) -> float:
        return self.schedule.advance()


class Slotted:
    """A number in a slot."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class SlotNumber(Slope):
    """A number in the slot of an object"""

    def begin(self) -> None:
        self.sums = Slotted()

    def push(self) -> float:
        self.sums.total += 0.02
        return self.sums.total


class ForgottenOrder(Slope):
    """An order of samples that is shuffled in each step by a saved generator"""

    def begin(self) -> None:
        self.noise, self.order = np.random.default_rng(self.seed), np.arange(8)

    def push(self) -> float:
        self.noise.shuffle(self.order)
        return float(self.order[0]) / 8

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "noise": self.noise.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.noise.bit_generator.state = state["noise"]


class ForgottenStatistics(Slope):
    """Running statistics of a normaliser by hand, as of a batch norm"""

    def begin(self) -> None:
        self.mean = np.zeros(3)

    def push(self) -> float:
        self.mean += 0.1 * (self.weight - self.mean)
        return float(self.mean.sum())


class ForgottenTeacher(Slope):
    """EMA: the weight of a teacher"""

    def begin(self) -> None:
        self.teacher = self.weight

    def push(self) -> float:
        self.teacher = 0.95 * self.teacher + 0.05 * self.weight
        return self.weight - self.teacher


class ForgottenMemory(Slope):
    """RL: a replay buffer in a list of tuples"""

    def begin(self) -> None:
        self.memory: list[tuple[int, float]] = []

    def push(self) -> float:
        self.memory.append((self.steps, self.weight))
        return self.memory[self.steps * 7 % len(self.memory)][1]


class Accumulation(Net):
    """Gradients accumulated over 4 steps, `zero_grad` after the update"""

    def train(self) -> None:
        self.steps += 1
        self.loss().backward()
        if self.steps % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class ForgottenOptimizer(Slope):
    """GAN: the momentum of the second optimizer is left out of the state"""

    def begin(self) -> None:
        self.critic = torch.nn.Parameter(torch.ones(1))
        self.second = torch.optim.SGD([self.critic], lr=0.05, momentum=0.9)

    def push(self) -> float:
        self.second.zero_grad()
        (self.critic * self.weight - 0.1 * self.critic**2).sum().neg().backward()
        self.second.step()
        with torch.no_grad():
            self.critic.clamp_(-1, 1)
        return float(self.critic)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "critic": self.critic.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        with torch.no_grad():
            self.critic.copy_(state["critic"])


class ForgottenScale(Slope):
    """A gradient scaler by hand: a scale that grows and falls"""

    def begin(self) -> None:
        self.scale = 1.0

    def push(self) -> float:
        self.scale *= 1.05 if self.weight < 0.8 else 0.7
        return 0.1 * self.scale


KINDS = (
    refused(ForgottenPython, "Python's global random generator"),
    refused(ForgottenNumpy, "NumPy's global random generator"),
    refused(ForgottenTorch, "torch's global random generator"),
    refused(ForgottenHeld, "noise"),
    refused(ForgottenLegacy, "noise"),
    refused(ForgottenMomentum, "momentum"),
    refused(ForgottenMoments, "moments"),
    refused(ForgottenCounter, "calls"),
    refused(ForgottenPosition, "batches"),
    refused(ForgottenCount, "numbers"),
    refused(ModuleGlobal, "COUNTER"),
    refused(GlobalNumber, "TOTAL"),
    refused(ClassAttribute, "calls"),
    refused(ClassCounter, "count"),
    refused(DefaultArgument, "calls"),
    refused(Closure, "calls"),
    refused(Clock, "outside the state"),
    refused(Unseeded, "noise"),
    refused(BestSoFar, "best"),
    refused(HeldSchedule, "schedule"),
    refused(SlotNumber, "sums"),
    refused(ForgottenOrder, "order"),
    refused(ForgottenStatistics, "mean"),
    refused(ForgottenTeacher, "teacher"),
    refused(ForgottenMemory, "memory"),
    refused(Accumulation, ".grad"),
    refused(ForgottenOptimizer, "second"),
    refused(ForgottenScale, "scale"),
)
