"""Correct trainers of torch, and correct functions, that look as if they forgot something."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm import tqdm

import dasktune as dt
from tests.trainer.resume_kinds.kind import correct
from tests.trainer.resume_kinds.smallest import Net, Slope, network, samples, target


class ClearedGradients(Net):
    """`.grad` of the last step, which `zero_grad` clears first"""

    def train(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=False)
        self.loss().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


class BareNet(Slope):
    """A network in a trainer that saves no gradients"""

    def begin(self) -> None:
        self.inputs, self.goals = samples()
        torch.manual_seed(self.seed)
        self.model = network()
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self) -> None:
        self.steps += 1
        self.sgd.zero_grad()
        (self.lr * nn.functional.mse_loss(self.model(self.inputs), self.goals)).backward()
        self.sgd.step()

    def evaluate(self) -> dict[str, float]:
        return {"loss": nn.functional.mse_loss(self.model(self.inputs), self.goals).item()}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.steps = state["steps"]


class ReturnedGradient(BareNet):
    """A gradient that `torch.autograd.grad` returns, before `zero_grad` of the base class"""

    def train(self) -> None:
        x = self.inputs[self.steps % 8].clone().requires_grad_()
        (slope,) = torch.autograd.grad(x.sum().tanh(), x)
        with torch.no_grad():
            self.model[0].bias += 0.01 * slope.sum()
        super().train()


class HandleOfHook(Net):
    """A hook that keeps the last output for display, with its handle"""

    def begin(self) -> None:
        self.seen: dict[str, torch.Tensor] = {}
        self.handle = self.model[1].register_forward_hook(self.see)

    def see(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.seen["hidden"] = output.detach()


class Rotary(nn.Module):
    """Cosines of positions in a buffer that grows and is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.length = nn.Linear(3, 1), 0
        self.register_buffer("cosines", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        if position >= self.length:
            self.length = 2 * position + 2
            self.cosines = torch.cos(torch.arange(self.length) / 9)
        out: torch.Tensor = self.layer(x) * self.cosines[position]
        return out


class RotaryBuffer(Net):
    """Rotary embeddings: a buffer that is not persistent and grows"""

    def made_model(self) -> Any:
        return Rotary()

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(self.x, self.steps), self.y)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.model(self.x, 0).square().mean())}


class PlainRotary(nn.Module):
    """Cosines of positions in plain attributes that grow, as in a library's module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.length = nn.Linear(3, 1), 0
        self.cached: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        if self.cached is None or position >= self.length:
            self.length = 2 * position + 2
            self.cached = torch.cos(torch.arange(self.length) / 9)
        out: torch.Tensor = self.layer(x) * self.cached[position]
        return out


class RotaryCache(RotaryBuffer):
    """Rotary embeddings: a plain tensor on the module that grows"""

    def made_model(self) -> Any:
        return PlainRotary()


class Causal(nn.Module):
    """A layer with causal masks by length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) not in self.masks:
            self.masks[len(x)] = torch.ones(len(x), len(x)).tril()
        return self.masks[len(x)] @ self.layer(x) / len(x)


class MaskCache(Net):
    """Causal masks by length in a dict of a module"""

    def made_model(self) -> Any:
        return Causal()

    def loss(self) -> torch.Tensor:
        rows = 8 if self.is_late else 4
        return nn.functional.mse_loss(self.model(self.x[:rows]), self.y[:rows])


class LastTensors(Net):
    """The last batch, loss and gradient norm in attributes, for display"""

    def begin(self) -> None:
        self.last_loss: Any = None
        self.norms: deque[float] = deque(maxlen=5)

    def train(self) -> None:
        self.steps += 1
        self.last_batch = self.x.flip(0)
        self.optimizer.zero_grad()
        self.last_loss = self.loss()
        self.last_loss.backward()
        self.optimizer.step()
        self.last_loss = self.last_loss.detach()


class AverageInState(Net):
    """SWA in an `AveragedModel`, with a scheduler and a scaler"""

    def begin(self) -> None:
        self.average = AveragedModel(self.model)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def setup(self, hp: Any) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = float(hp["lr"])

    def train(self) -> None:
        super().train()
        self.average.update_parameters(self.model)
        self.schedule.step()


class CopiedAverage(Net):
    """A `deepcopy` of the network as an average, with buffers"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def begin(self) -> None:
        self.mean = copy.deepcopy(self.model).requires_grad_(False)

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            for mean, value in zip(
                self.mean.state_dict().values(), self.model.state_dict().values(), strict=True
            ):
                mean.copy_(mean * 0.9 + value * 0.1) if mean.is_floating_point() else None


class Remembered(Dataset):  # type: ignore[type-arg]
    """A data set with a cache of its samples."""

    def __init__(self) -> None:
        self.x, self.y = samples()
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        if row not in self.cache:
            self.cache[row] = (self.x[row], self.y[row])
        return self.cache[row]


class CachingDataset(Slope):
    """A `DataLoader` over a data set that caches its samples, an epoch within each 5th step"""

    def begin(self) -> None:
        self.data = Remembered()
        self.batches = DataLoader(self.data, 4)

    def push(self) -> float:
        if self.steps % 5:
            return 0.0
        return sum(float(x.mean() * self.weight) for x, _ in self.batches) / 10


class Samples:
    """Samples of data that an attribute holds, each copied once."""

    def __init__(self) -> None:
        self.numbers = torch.linspace(-1, 1, 40).sin()

    @cache  # noqa: B019
    def sample(self, index: int) -> torch.Tensor:
        return self.numbers[index].clone()


class CachedSamples(Slope):
    """A method with a cache that reads data which never change"""

    def begin(self) -> None:
        self.data = Samples()

    def push(self) -> float:
        value = self.data.sample(self.steps % 40)
        return 0.1 * value.item()


class ForkedWorkers(Net):
    """A `DataLoader` with a worker process, an epoch in two of 100 steps"""

    def begin(self) -> None:
        self.batches = DataLoader(
            TensorDataset(self.x, self.y), 4, num_workers=1, multiprocessing_context="fork"
        )

    def train(self) -> None:
        super().train()
        if self.steps % 50 == 20:
            for x, y in self.batches:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()


class StopIterationLoop(Net):
    """`it = iter(loader)` in the step, made again at `StopIteration` within the step"""

    def train(self) -> None:
        self.steps += 1
        batches = iter(torch.split(self.x, 4))
        for _ in range(3):
            try:
                x = next(batches)
            except StopIteration:
                batches = iter(torch.split(self.x, 4))
                x = next(batches)
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()


class FrozenTeacher(Net):
    """Distillation: a frozen teacher, with its outputs cached at the first need"""

    def begin(self) -> None:
        self.teacher = network().requires_grad_(False)

    @cached_property
    def goal(self) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = self.teacher(self.x)
        return out

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(self.x), self.goal if self.is_late else self.y)


class TimesAndNames(Net):
    """A logger, times and texts beside a network"""

    harmless_differences = ("trainer.started", "trainer.seconds")

    def begin(self) -> None:
        self.logger, self.started = logging.getLogger("resume kinds"), time.time()
        self.seconds = 0.0

    def train(self) -> None:
        super().train()
        self.seconds = time.time() - self.started


class SparseFeatures(Net):
    """Constant features in a sparse tensor, and a list of texts"""

    def begin(self) -> None:
        self.features = torch.eye(8).to_sparse()
        self.labels = ["cat", "dog"] * 4

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(torch.sparse.mm(self.features, self.model(self.x)), self.y)


class SparseGraph(Net):
    """A constant sparse matrix of SciPy beside a network"""

    def begin(self) -> None:
        self.graph = sparse.csr_matrix((np.ones(8), np.arange(8), np.arange(9)))

    def loss(self) -> torch.Tensor:
        graph = (self.graph + self.graph.T) / 2  # which notes in the matrix that it is sorted
        rows = torch.as_tensor(graph.dot(self.x.numpy()), dtype=torch.float32)
        return nn.functional.mse_loss(self.model(rows), self.y)


class OwnStateDict(Net):
    """An object of one's own with `state_dict` and `load_state_dict`"""

    def begin(self) -> None:
        self.averager = Averager()

    def loss(self) -> torch.Tensor:
        loss = super().loss()
        return loss * (1 + self.averager.add(float(loss)))


class Averager:
    """A mean with a state, and a time that is not in it."""

    def __init__(self) -> None:
        self.total, self.count, self.made = 0.0, 0, time.time()

    def add(self, value: float) -> float:
        self.total, self.count = self.total + value, self.count + 1
        return self.total / self.count

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.count = state["total"], state["count"]


def ordered_function(run: Any) -> None:
    """A function that splits an order of its data into the batches of several steps"""
    data, weight = samples()[0].flatten(), 1.0
    torch.manual_seed(0)
    batches: list[torch.Tensor] = []
    for step in run.steps():
        if not batches:
            batches = list(torch.randperm(len(data)).split(5))
        picked = data[batches.pop()]
        weight -= run["lr"] * (weight - float(picked.mean()) - target(step))
        run.report(loss=weight**2)


@contextlib.contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    begun = time.monotonic()
    try:
        yield
    finally:
        times[name] = times.get(name, 0.0) + time.monotonic() - begun


def timings_function(run: Any) -> None:
    """A function with the times of its parts in a dict and a list"""
    times, laps, weight = {"step": 0.0}, [], 1.0
    parts: dict[str, float] = {}
    for step in run.steps():
        begun = time.perf_counter()
        with timed(parts, "weight"):
            weight -= run["lr"] * (weight - target(step))
        times["step"] += time.perf_counter() - begun
        laps.append(time.perf_counter() - begun)
        logging.getLogger("resume kinds").debug("%s, %s, %s", times, sum(laps), parts)
        run.report(loss=weight**2)


def timed_function(run: Any) -> None:
    """A function: times, a progress bar and the last loss in variables"""
    run.state["weight"], started, last = 1.0, time.time(), None
    bar = tqdm(total=100, disable=True)
    for step in run.steps():
        begun = time.perf_counter()
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        last = run.state["weight"] ** 2
        seconds = time.perf_counter() - begun
        bar.set_postfix_str(f"{last:.3f} {seconds:.3f} {time.time() - started:.1f}")
        run.report(loss=last)


def scratch_function(run: Any) -> None:
    """A function: buffers, batches and gradients that each step overwrites"""
    run.state["weight"] = 1.0
    x, buffer = np.linspace(-1, 1, 8), np.empty(8)
    for step in run.steps():
        np.multiply(x, run.state["weight"], out=buffer)
        batch = buffer[step % 4 :]
        gradient = float(batch.mean()) + run.state["weight"] - target(step)
        run.state["weight"] -= run["lr"] * gradient
        run.report(loss=run.state["weight"])


def cached_function(run: Any) -> None:
    """A function: a cache of samples in a dict, and one of functions by shape"""
    run.state["weight"], cache, compiled = 1.0, {}, {}
    for step in run.steps():
        row = step * 5 % 17
        if row not in cache:
            cache[row] = math.sin(row)
        if row % 3 not in compiled:
            compiled[row % 3] = lambda value: value / 2
        run.state["weight"] -= run["lr"] * (run.state["weight"] - compiled[row % 3](cache[row]))
        run.report(loss=run.state["weight"])


def iterating_function(run: Any) -> None:
    """A function: iterators that each step makes, and a generator from its number"""
    run.state["weight"] = 1.0
    for step in run.steps():
        noise = np.random.default_rng([run.seed, step])
        run.keep_fixed(noise)
        rows = iter((0.1, 0.2))
        push = next(rows) + float(noise.random()) + sum(itertools.islice(itertools.count(), 2))
        run.state["weight"] -= run["lr"] * (run.state["weight"] - push)
        run.report(loss=run.state["weight"])


def teacher_function(run: Any) -> None:
    """A function: a frozen teacher by `keep_fixed`, and settings in objects"""
    x, _ = samples()
    model, teacher = network(), network().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"])
    run.track(model, optimizer)
    run.keep_fixed(teacher)
    options = {"scale": 0.5, "names": {"a", "b"}}
    for _ in run.steps():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), options["scale"] * teacher(x))
        loss.backward()
        optimizer.step()
        run.report(loss=loss.detach())


def loaded_function(run: Any) -> None:
    """A function: `run.loader` with an epoch within a step, and an inner function"""
    x, y = samples()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    loader = run.loader((x, y), 4)
    run.track(model, optimizer)

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(inputs), labels)

    for _ in run.steps():
        losses = []
        for inputs, labels in loader.epoch_batches():
            optimizer.zero_grad()
            loss = loss_of(inputs, labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        run.report(loss=sum(losses))


class TorchLoaderInStep(Net):
    """`dt.loader` over a `DataLoader` without shuffling"""

    def begin(self) -> None:
        self.loader = dt.loader(DataLoader(TensorDataset(self.x, self.y), 4), seed=self.seed)

    def loss(self) -> torch.Tensor:
        x, y = self.loader.next_batch()
        return nn.functional.mse_loss(self.model(x), y)


KINDS = (
    correct(ClearedGradients),
    correct(ReturnedGradient),
    correct(HandleOfHook),
    correct(RotaryBuffer),
    correct(RotaryCache),
    correct(MaskCache),
    correct(LastTensors),
    correct(AverageInState),
    correct(CopiedAverage),
    correct(CachingDataset),
    correct(CachedSamples),
    correct(ForkedWorkers),
    correct(StopIterationLoop),
    correct(FrozenTeacher),
    correct(TimesAndNames),
    correct(SparseFeatures),
    correct(SparseGraph),
    correct(OwnStateDict),
    correct(ordered_function),
    correct(timed_function),
    correct(timings_function),
    correct(scratch_function),
    correct(cached_function),
    correct(iterating_function),
    correct(teacher_function),
    correct(loaded_function),
    correct(TorchLoaderInStep),
)
