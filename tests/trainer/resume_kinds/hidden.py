"""Parts that lie where nobody looks first: orders, subclasses, masks, packages and processes."""

from __future__ import annotations

import functools
import logging
import os
import queue
import sqlite3
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu
from scipy.spatial import cKDTree
from torch import nn

from tests.trainer.resume_kinds.kind import correct, exact, named
from tests.trainer.resume_kinds.smallest import LATE, Net, Slope


class OrderOfNumbers(Slope):
    """A set of numbers whose order is that of their coming, and which is saved sorted"""

    def begin(self) -> None:
        self.seen: set[float] = {1.0}

    def push(self) -> float:
        if self.steps == LATE:
            self.seen = {number for number in (8.0, 0.5, 16.0, 0.25, 32.0) if number > 0.3}
            self.seen.add(0.0)
        return sum(number / (place + 1) for place, number in enumerate(self.seen)) / 100

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": sorted(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state.items() if k != "seen"})
        self.seen = set()
        for number in state["seen"]:
            self.seen.add(number)


class OrderByKey(OrderOfNumbers):
    """A set that is sorted by a key which several numbers share"""

    def push(self) -> float:
        super().push()
        return sorted(self.seen, key=lambda number: number > 0.1)[-1] / 100


class MembersAlone(OrderOfNumbers):
    """The same set, of which the code asks only what is in it"""

    def push(self) -> float:
        self.seen.add(float(self.steps % 16))
        return len(self.seen) / 100 if 8.0 in self.seen else max(self.seen) / 100


class Measured(float):
    """A number with the count of its changes."""

    count = 0


class NumberWithCount(Slope):
    """An attribute of a number's own subclass"""

    def begin(self) -> None:
        self.level = Measured(0.1)

    def push(self) -> float:
        if self.is_late:
            self.level.count += 1
        return self.level * self.level.count / 10


class Series(list[float]):
    """A list that counts what was added."""

    added = 0


class ListWithCount(Slope):
    """An attribute of a list's own subclass; the state holds the items alone"""

    def begin(self) -> None:
        self.series = Series([0.0])

    def push(self) -> float:
        if self.is_late:
            self.series.added += 1
        return self.series.added / 50

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "series": list(self.series)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state.items() if k != "series"})
        self.series = Series(state["series"])


class LostMask(Slope):
    """The mask of a NumPy array, of which the state holds the numbers"""

    def begin(self) -> None:
        self.rewards = np.ma.masked_array(np.linspace(0.0, 0.5, 8), mask=False)

    def push(self) -> float:
        if self.is_late:
            self.rewards[self.steps % 7] = np.ma.masked
        return float(self.rewards.mean())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rewards": np.asarray(self.rewards.data)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state.items() if k != "rewards"})
        self.rewards = np.ma.masked_array(state["rewards"], mask=False)


class LateEvent(Slope):
    """An event that a late step sets"""

    def begin(self) -> None:
        self.is_warm = threading.Event()

    def push(self) -> float:
        if self.steps == LATE:
            self.is_warm.set()
        return 0.3 if self.is_warm.is_set() else 0.0


class SharedWithTensor(Slope):
    """An array and a tensor that share memory until a state is loaded"""

    def begin(self) -> None:
        self.rates = np.full(2, 0.1)
        self.tensor = torch.from_numpy(self.rates)

    def push(self) -> float:
        if self.is_late:
            self.tensor.mul_(1.01)
        return float(self.rates[0])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rates": self.rates, "tensor": self.tensor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = {k: v for k, v in state.items() if k not in ("rates", "tensor")}
        super().load_state_dict(own)
        self.rates, self.tensor = np.array(state["rates"]), state["tensor"].clone()


class RoundingState(Slope):
    """A `state_dict` that rounds the trainer's own weight once it is small"""

    def state_dict(self) -> dict[str, Any]:
        if self.is_late:
            self.weight = round(self.weight, 3)
        return super().state_dict()


class AveragingState(Net):
    """A `state_dict` that puts averages in the place of the weights, in mode b"""

    def state_dict(self) -> dict[str, Any]:
        if self.mode == "b" and self.is_late:
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight.mul_(0.999)
        return super().state_dict()


class DrawingState(Slope):
    """A `state_dict` that draws from the trainer's generator"""

    def begin(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.rng.normal()) / 10

    def state_dict(self) -> dict[str, Any]:
        self.example = self.rng.normal() if self.is_late else 0.0
        return {**super().state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state.items() if k != "rng"})
        self.rng.bit_generator.state = state["rng"]


class SavesArray(Slope):
    """An array that late steps keep in a file of NumPy"""

    def begin(self) -> None:
        self.file = Path(tempfile.gettempdir(), f"momentum-{os.getpid()}-{id(self)}.npy")

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        momentum = np.load(self.file) if self.steps > LATE else np.zeros(1)
        np.save(self.file, momentum * 0.9 + 0.1)
        return float(momentum[0])


class DatabaseInFile(Slope):
    """A database in a file, opened by each late step"""

    def begin(self) -> None:
        self.file = Path(tempfile.mkdtemp(), "losses.db")

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        with closing(sqlite3.connect(self.file)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS losses (loss REAL)")
            database.execute("INSERT INTO losses VALUES (?)", (self.weight,))
            ((mean,),) = database.execute("SELECT avg(loss) FROM losses")
        return float(mean)


class PatchedPackage(Slope):
    """A function that a late step puts into an installed package, by the mode of the trial"""

    def push(self) -> float:
        if self.steps == LATE and self.mode == "b":
            np.random.own_noise = own_noise  # type: ignore[attr-defined]
        return float(getattr(np.random, "own_noise", no_noise)())


class PatchedLayer(Net):
    """A method of torch that a build replaces, by the mode: the next trial has its own"""

    def begin(self) -> None:
        if self.mode == "b":
            torch.nn.Linear.forward = halved  # type: ignore[method-assign]


class HookOfAllModules(Net):
    """A hook for all modules that a late step registers"""

    def loss(self) -> torch.Tensor:
        if self.steps == LATE:
            torch.nn.modules.module.register_module_forward_hook(half)
        return super().loss()


class FlushedNumbers(Slope):
    """Numbers near zero, which a late step has the processor round to zero"""

    def begin(self) -> None:
        self.least = 1e-310

    def push(self) -> float:
        if self.steps == LATE:
            torch.set_flush_denormal(True)
        return 0.3 if self.least * 1.5 == 0.0 else 0.0


class HardMask(Slope):
    """A mask that a late step makes hard: whether it is hard is not in the state"""

    def begin(self) -> None:
        self.levels = np.ma.masked_array(np.full(2, 0.1), mask=[True, False])

    def push(self) -> float:
        if self.steps == LATE:
            self.levels.harden_mask()
        self.levels[:] = 0.01 * self.steps
        return float(self.levels.sum())

    def state_dict(self) -> dict[str, Any]:
        mask = np.ma.getmaskarray(self.levels).copy()
        return {**super().state_dict(), "levels": self.levels.data.copy(), "mask": mask}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: state[k] for k in ("weight", "steps")})
        self.levels = np.ma.masked_array(np.array(state["levels"]), mask=np.array(state["mask"]))


class FrozenBlock(Slope):
    """An array that a late step protects from writing, and which is then left out"""

    def begin(self) -> None:
        self.block = np.full(2, 0.1)

    def push(self) -> float:
        if self.steps == LATE:
            self.block.flags.writeable = False
        if self.block.flags.writeable:
            self.block *= 1.01
        return float(self.block[0])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "block": self.block.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: state[k] for k in ("weight", "steps")})
        self.block = np.array(state["block"])


class CompiledFactor(Slope):
    """A factorisation of SciPy, an object in C without a module, made anew in each 30th step"""

    def begin(self) -> None:
        self.factor = splu(csc_matrix(np.eye(2)))

    def push(self) -> float:
        if self.steps % 30 == 0:
            self.factor = splu(csc_matrix(np.eye(2) * (1 + self.weight**2)))
        return float(self.factor.solve(np.full(2, 0.1))[0])


class LateGradients(Slope):
    """Gradients that come two steps late, in a `SimpleQueue`"""

    def begin(self) -> None:
        self.waiting: queue.SimpleQueue[float] = queue.SimpleQueue()

    def push(self) -> float:
        self.waiting.put(self.weight / 10)
        return self.waiting.get() if self.waiting.qsize() > 2 else 0.0


class CachedAnchor(Slope):
    """The weight at the first use, kept by `functools.cache`, which loading has filled already"""

    @functools.cache  # noqa: B019
    def anchor(self) -> float:
        return self.weight

    def push(self) -> float:
        return (self.weight - self.anchor()) / 10 if self.is_late else 0.0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.anchor()


class WarningsAsErrors(Slope):
    """Warnings that a late step turns into errors: then a step that warns is another one"""

    def push(self) -> float:
        if self.steps == LATE:
            warnings.simplefilter("error")
        try:
            warnings.warn("a large gradient", stacklevel=2)
        except UserWarning:
            return 0.3
        return 0.0


class Mean(logging.Handler):
    """The mean of what was logged."""

    mean = 0.1

    def emit(self, record: logging.LogRecord) -> None:
        self.mean = 0.9 * self.mean + 0.01 * record.args[0]  # type: ignore[index,operator]


class LogFedBack(Slope):
    """A handler of a logger that keeps a mean, on which steps depend"""

    def begin(self) -> None:
        self.log = logging.getLogger("resume_kinds")
        self.log.setLevel(logging.INFO)
        self.log.propagate = False
        self.log.handlers = [Mean()]

    def push(self) -> float:
        if self.is_late:
            self.log.info("weight %f", self.weight)
        return self.log.handlers[0].mean  # type: ignore[attr-defined,no-any-return]


class ImportedInStep(Slope):
    """A module that late steps import, and which counts"""

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        from tests.trainer.resume_kinds import meter

        return float(meter.added(self.weight))


class ConstantOfStep(Slope):
    """A module that late steps import, of which they read a constant"""

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        from tests.trainer.resume_kinds import meter

        return meter.SCALE * self.weight


class MomentumById(Slope):
    """Momentum by the id of its array, in a dict that is stored with these ids"""

    def begin(self) -> None:
        self.blocks = [np.zeros(2), np.ones(2)]
        self.momentum: dict[int, float] = {}

    def push(self) -> float:
        if self.is_late:
            for block in self.blocks:
                self.momentum[id(block)] = self.momentum.get(id(block), 0.0) * 0.9 + self.weight
        return sum(self.momentum.get(id(block), 0.0) for block in self.blocks) / 50

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "momentum": {str(k): v for k, v in self.momentum.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({k: state[k] for k in ("weight", "steps")})
        self.momentum = {int(k): v for k, v in state["momentum"].items()}


class CountedChanges(Net):
    """A learning rate by how often a tensor was changed in place"""

    def loss(self) -> torch.Tensor:
        return super().loss() * (1 + self.model[0].weight._version / 100)


class Warming(nn.Module):
    """Counts its calls, as an attribute of a scripted module."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any = torch.jit.Attribute(0, int)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * (1.0 + 0.01 * float(self.calls))


class ScriptedCount(Net):
    """A count of calls in a module of `torch.jit.script`"""

    def begin(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.warming = torch.jit.script(Warming())

    def loss(self) -> torch.Tensor:
        return super().loss() * self.warming(torch.ones(1)).sum()


class SearchTree(Slope):
    """A k-d tree of SciPy that each build makes from the same points"""

    def begin(self) -> None:
        self.tree = cKDTree(np.linspace(-2.0, 2.0, 32).reshape(-1, 1))

    def push(self) -> float:
        return float(self.tree.query([self.weight])[0]) / 10


class CountedSaves(Slope):
    """A `state_dict` that counts its calls for a log"""

    def begin(self) -> None:
        self.saves = 0

    def state_dict(self) -> dict[str, Any]:
        self.saves += 1
        return super().state_dict()


def own_noise() -> float:
    return 0.3


def no_noise() -> float:
    return 0.0


def halved(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, layer.weight, layer.bias) / 2


def half(_module: Any, _given: Any, output: torch.Tensor) -> torch.Tensor:
    return output / 2


KINDS = (
    named(OrderOfNumbers, "seen"),
    named(OrderByKey, "seen"),
    correct(MembersAlone),
    named(NumberWithCount, "level"),
    named(ListWithCount, "series"),
    named(LostMask, "mask"),
    named(LateEvent, "is_warm"),
    named(SharedWithTensor, "tensor"),
    named(RoundingState, "weight"),
    named(AveragingState, "model"),
    named(DrawingState, "rng"),
    named(SavesArray, "momentum"),
    named(DatabaseInFile, "losses"),
    named(PatchedPackage, "own_noise"),
    exact(PatchedLayer),
    named(HookOfAllModules, "forward_hooks"),
    named(FlushedNumbers, "denormal"),
    named(HardMask, "hardmask"),
    named(FrozenBlock, "writeable"),
    named(CompiledFactor, "factor"),
    named(LateGradients, "waiting"),
    named(CachedAnchor, "anchor"),
    named(WarningsAsErrors, "warnings"),
    named(LogFedBack, "Mean"),
    exact(ImportedInStep),
    correct(ConstantOfStep),
    named(MomentumById, "momentum"),
    named(CountedChanges, "_version"),
    named(ScriptedCount, "calls"),
    correct(SearchTree),
    correct(CountedSaves),
)
