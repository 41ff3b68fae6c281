"""Attributes of a `TorchTrainer` that no state can hold: stopped at a save or a resume."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from sklearn.linear_model import SGDRegressor
from torch import nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.trainer.resume_kinds.kind import named, stopped
from tests.trainer.resume_kinds.smallest import Net, network


class LateAveragedModel(Net):
    """An `AveragedModel` that is made in a late step"""

    def begin(self) -> None:
        self.average: Any = None

    def train(self) -> None:
        super().train()
        if self.is_late:
            if self.average is None:
                self.average = AveragedModel(self.model)
            self.average.update_parameters(self.model)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float((self.average or self.model)(self.x).square().mean())}


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Numbers from a position on."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[float]:
        while True:
            self.position += 1
            yield self.position % 11 / 11


class StreamPosition(Net):
    """An `IterableDataset` with a position, from which each step takes two numbers"""

    def begin(self) -> None:
        self.stream = Stream()

    def loss(self) -> torch.Tensor:
        numbers = iter(self.stream)
        push = next(numbers) + next(numbers)
        return nn.functional.mse_loss(self.model(self.x), self.y + push)


@dataclass(frozen=True)
class Position:
    """The position of a schedule."""

    step: int = 0


class FrozenPosition(Net):
    """A frozen dataclass that each step replaces"""

    def begin(self) -> None:
        self.position = Position()

    def loss(self) -> torch.Tensor:
        self.position = replace(self.position, step=self.position.step + 1)
        return super().loss() / self.position.step


class Slotted:
    """A number in a slot."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class HeldSlots(Net):
    """A number in the slot of an object"""

    def begin(self) -> None:
        self.sums = Slotted()

    def loss(self) -> torch.Tensor:
        self.sums.total += 0.02
        return super().loss() * self.sums.total


class HeldCounter(Net):
    """A `Counter`"""

    def begin(self) -> None:
        self.counts: Counter[str] = Counter()

    def loss(self) -> torch.Tensor:
        self.counts["calls"] += 1
        return super().loss() / self.counts["calls"]


class HeldDefaultDict(Net):
    """A `defaultdict`"""

    def begin(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)

    def loss(self) -> torch.Tensor:
        self.counts["calls"] += 1
        return super().loss() / self.counts["calls"]


class HeldDeque(Net):
    """The last losses in a `deque`"""

    def begin(self) -> None:
        self.window: deque[float] = deque(maxlen=5)

    def loss(self) -> torch.Tensor:
        loss = super().loss()
        self.window.append(float(loss.detach()))
        return loss * sum(self.window)


class LazyGenerator(Net):
    """A generator expression over random numbers"""

    def begin(self) -> None:
        noise = torch.Generator().manual_seed(self.seed)
        self.draws = (float(torch.rand((), generator=noise)) for _ in range(1000))

    def loss(self) -> torch.Tensor:
        return super().loss() * next(self.draws)


class HeldIterator(Net):
    """An iterator over the samples"""

    def begin(self) -> None:
        self.rows = iter(list(range(8)) * 100)

    def loss(self) -> torch.Tensor:
        row = next(self.rows)
        return nn.functional.mse_loss(self.model(self.x[row]), self.y[row])


class PersistentLoader(Net):
    """`DataLoader` with `persistent_workers=True`, an epoch in two of 100 steps"""

    def begin(self) -> None:
        self.batches = DataLoader(
            TensorDataset(self.x, self.y),
            4,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="fork",
        )

    def train(self) -> None:
        super().train()
        if self.steps % 50 == 5:
            for x, y in self.batches:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()


class HeldEstimator(Net):
    """An estimator of scikit-learn that each step fits"""

    def begin(self) -> None:
        self.estimator = SGDRegressor(random_state=self.seed)

    def loss(self) -> torch.Tensor:
        self.estimator.partial_fit(self.x.numpy(), self.y.numpy()[:, 0])
        return super().loss() + float(self.estimator.coef_.sum()) * self.model(self.x).mean()


class MixedDict(Net):
    """A network and a number in one dict"""

    def begin(self) -> None:
        self.parts: dict[str, Any] = {"model": self.model, "calls": 0}

    def loss(self) -> torch.Tensor:
        self.parts["calls"] += 1
        return super().loss() / self.parts["calls"]


class Agent:
    """A network and a number, without `state_dict`."""

    def __init__(self) -> None:
        self.net, self.noise = network(), 1.0


class AgentNumber(Net):
    """A number in an object of one's own beside its network"""

    def begin(self) -> None:
        self.agent = Agent()

    def loss(self) -> torch.Tensor:
        self.agent.noise *= 0.97
        with torch.no_grad():
            push = float(self.agent.net(self.x).mean()) * self.agent.noise
        return nn.functional.mse_loss(self.model(self.x), self.y + push)


class Growing(Net):
    """A network that gets a layer in a late step"""

    def train(self) -> None:
        if self.steps == 20:
            self.model.append(nn.Linear(1, 1))
        super().train()


class PrunedLate(Net):
    """Pruning: a mask that is put on a layer in a late step"""

    def train(self) -> None:
        if self.steps == 20:
            prune.l1_unstructured(self.model[0], "weight", amount=0.5)
        super().train()


class Phase(Enum):
    """The phase of a training."""

    WARM = 1
    MAIN = 2


class HeldEnum(Net):
    """An enum that a late step changes"""

    def begin(self) -> None:
        self.phase = Phase.WARM

    def loss(self) -> torch.Tensor:
        if self.steps == 20:
            self.phase = Phase.MAIN
        return super().loss() * self.phase.value


class Pair(NamedTuple):
    """A mean and a count."""

    mean: float
    calls: int


class HeldNamedTuple(Net):
    """A named tuple that each step replaces"""

    def begin(self) -> None:
        self.pair = Pair(0.0, 0)

    def loss(self) -> torch.Tensor:
        self.pair = Pair(self.pair.mean + 0.02, self.pair.calls + 1)
        return super().loss() * self.pair.mean


KINDS = (
    stopped(LateAveragedModel, "average"),
    named(StreamPosition, "stream"),
    named(FrozenPosition, "position"),
    named(HeldSlots, "sums"),
    named(HeldCounter, "counts"),
    named(HeldDefaultDict, "counts"),
    named(HeldDeque, "window"),
    stopped(LazyGenerator, "draws"),
    stopped(HeldIterator, "rows"),
    stopped(PersistentLoader, "batches"),
    named(HeldEstimator, "estimator"),
    named(MixedDict, "parts"),
    named(AgentNumber, "agent"),
    stopped(Growing, "model"),
    stopped(PrunedLate, "model"),
    named(HeldEnum, "phase"),
    named(HeldNamedTuple, "pair"),
)
