"""Trainers whose merged studies are exact: what torch and NumPy keep, and states that are whole."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import SGDRegressor
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import dasktune as dt
from dasktune.trainer.data import ResumableLoader
from tests.trainer.resume_kinds.kind import exact
from tests.trainer.resume_kinds.smallest import SAMPLES, Net, Slope, network, samples, target


class PlainNet(Net):
    """PyTorch: a network and SGD with momentum"""


class Compiled(Net):
    """`torch.compile`, with the backend that only traces"""

    def begin(self) -> None:
        self.forward = torch.compile(self.model, backend="eager")

    def loss(self) -> torch.Tensor:
        return nn.functional.mse_loss(self.forward(self.x), self.y)


class MixedPrecision(Net):
    """AMP: `autocast` to bfloat16 and `GradScaler`"""

    def begin(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)

    def train(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class CopiedTeacher(Net):
    """EMA: a teacher made by `deepcopy`"""

    def begin(self) -> None:
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            for mean, parameter in zip(
                self.teacher.parameters(), self.model.parameters(), strict=True
            ):
                mean.lerp_(parameter, 0.1)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.teacher(self.x).square().mean())}


class OwnAverages(Net):
    """EMA: tensors of one's own in a dict"""

    def begin(self) -> None:
        self.means = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.means[name].lerp_(parameter, 0.1)

    def evaluate(self) -> dict[str, float]:
        outputs = torch.func.functional_call(self.model, self.means, (self.x,))
        return {"loss": float(outputs.square().mean())}


class WeightAverage(Net):
    """SWA: `AveragedModel`, `SWALR`, batch norm updated within the step"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def begin(self) -> None:
        self.average = AveragedModel(self.model)
        self.schedule = SWALR(self.optimizer, swa_lr=0.01, anneal_epochs=5)

    def train(self) -> None:
        super().train()
        if self.is_late:
            self.average.update_parameters(self.model)
            self.schedule.step()
            update_bn([self.x], self.average)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.average(self.x).square().mean())}


class OneCycle(Net):
    """A scheduler by batch: `OneCycleLR`, which moves the momentum, too"""

    def begin(self) -> None:
        self.schedule = lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.5, total_steps=200)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = float(hp["lr"])

    def train(self) -> None:
        super().train()
        self.schedule.step()


class LossPlateau(OneCycle):
    """`ReduceLROnPlateau` by the loss of each step"""

    def begin(self) -> None:
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=3)

    def train(self) -> None:
        Net.train(self)
        self.plateau.step(float(self.loss().detach()))


class WarmRestarts(Net):
    """`CosineAnnealingWarmRestarts` after a `LinearLR`, in a `SequentialLR`"""

    def begin(self) -> None:
        parts = [
            lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=5),
            lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 7),
        ]
        self.schedule = lr_scheduler.SequentialLR(self.optimizer, parts, milestones=[5])

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = float(hp["lr"])

    def train(self) -> None:
        super().train()
        self.schedule.step()


class CumulativeNorm(Net):
    """Batch norm with `momentum=None`: cumulative averages"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1))


class SearchingLbfgs(Net):
    """LBFGS with a closure"""

    def made_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.model.parameters(), lr=lr, max_iter=2)

    def train(self) -> None:
        self.steps += 1

        def closure() -> float:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return float(loss.detach())

        self.optimizer.step(closure)


def seed_worker(number: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32 + number)


class WorkerLoader(Net):
    """`DataLoader` with two worker processes and `worker_init_fn`, an epoch in 2 of 100 steps"""

    def begin(self) -> None:
        self.batches = DataLoader(
            TensorDataset(self.x, self.y),
            4,
            shuffle=True,
            num_workers=2,
            multiprocessing_context="fork",
            worker_init_fn=seed_worker,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def train(self) -> None:
        super().train()
        if self.steps % 50 == 20:
            for x, y in self.batches:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()


class SpectralNorm(Net):
    """A parametrization: spectral norm, with vectors that each step moves"""

    def made_model(self) -> Any:
        return nn.Sequential(
            parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)
        )


class WeightNorm(Net):
    """A parametrization: weight norm"""

    def made_model(self) -> Any:
        return nn.Sequential(
            parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1)
        )


class PseudoLabels(Net):
    """Labels that the network itself gives anew in every 10th step"""

    def train(self) -> None:
        super().train()
        if self.steps % 10 == 0:
            with torch.no_grad():
                self.y = (self.y + self.model(self.x)) / 2


class DropoutNet(Net):
    """Dropout and noise of torch's global generator"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def loss(self) -> torch.Tensor:
        x = self.x + 0.1 * torch.randn_like(self.x)
        return nn.functional.mse_loss(self.model(x), self.y)


class Adversaries(Net):
    """GAN: two networks with an optimizer each, in turns"""

    def begin(self) -> None:
        self.critic = nn.Linear(1, 1)
        self.second = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def train(self) -> None:
        self.steps += 1
        made = self.model(self.x)
        self.second.zero_grad()
        (self.critic(made.detach()).mean() - self.critic(self.y).mean()).backward()
        self.second.step()
        self.optimizer.zero_grad()
        (nn.functional.mse_loss(made, self.y) - 0.1 * self.critic(made).mean()).backward()
        self.optimizer.step()


class TensorReplay(Net):
    """A replay buffer of tensors with a position, from which a seeded generator draws"""

    def begin(self) -> None:
        self.memory, self.position = torch.zeros(32, 3), 0
        self.noise = torch.Generator().manual_seed(self.seed)

    def loss(self) -> torch.Tensor:
        self.memory[self.position % 32] = torch.rand(3, generator=self.noise)
        self.position += 1
        rows = torch.randint(min(self.position, 32), (4,), generator=self.noise)
        return super().loss() + self.model(self.memory[rows]).square().mean()


class TargetNetwork(Net):
    """Q-learning: a target network that is copied in every 20th step"""

    def begin(self) -> None:
        self.goal = copy.deepcopy(self.model).requires_grad_(False)

    def loss(self) -> torch.Tensor:
        if self.steps % 20 == 0:
            self.goal.load_state_dict(self.model.state_dict())
        return nn.functional.mse_loss(self.model(self.x), self.y + 0.5 * self.goal(self.x.flip(0)))


class Queue(nn.Module):
    """The keys of the last steps, as in MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: torch.Tensor
        self.position: torch.Tensor
        self.register_buffer("keys", torch.zeros(16))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            rows = (int(self.position) + torch.arange(len(x))) % 16
            self.keys[rows] = x.detach()[:, 0]
            self.position += len(x)
        return x - self.keys.mean()


class MomentumQueue(Net):
    """MoCo: a queue of keys in buffers of a module"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), Queue(), nn.Linear(4, 1))


class ExplorationRate(Net):
    """An epsilon in an attribute, and choices by Python's global generator"""

    def begin(self) -> None:
        self.epsilon = 1.0

    def loss(self) -> torch.Tensor:
        self.epsilon *= 0.97
        x = self.x.flip(0) if random.random() < self.epsilon else self.x
        return nn.functional.mse_loss(self.model(x), self.y)


class Normaliser(nn.Module):
    """A running mean and variance in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.square: torch.Tensor
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("square", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.05)
            self.square.lerp_(x.square().mean(0), 0.05)
        return (x - self.mean) / self.square.sqrt()


class RunningNormaliser(Net):
    """A running normaliser in buffers of a module"""

    def made_model(self) -> Any:
        return nn.Sequential(Normaliser(), network())


class PriorityWeights(Net):
    """Prioritized sampling: weights of samples in a tensor"""

    def begin(self) -> None:
        self.priorities = torch.ones(SAMPLES)

    def loss(self) -> torch.Tensor:
        rows = torch.multinomial(self.priorities, 4)
        errors = (self.model(self.x[rows]) - self.y[rows]).square()[:, 0]
        self.priorities[rows] = errors.detach() + 0.1
        return errors.mean()


class AdversarialBuffer(Net):
    """Free adversarial training: a perturbation that is kept between steps"""

    def begin(self) -> None:
        self.delta = torch.zeros(SAMPLES, 3)

    def train(self) -> None:
        self.steps += 1
        delta = self.delta.clone().requires_grad_()
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(self.x + delta), self.y).backward()
        assert delta.grad is not None
        self.delta = (self.delta + 0.1 * delta.grad.sign()).clamp(-0.3, 0.3)
        self.optimizer.step()


class Unfreezing(Net):
    """A layer that is trained from a late step on"""

    def begin(self) -> None:
        self.model[0].requires_grad_(False)

    def train(self) -> None:
        self.model[0].requires_grad_(self.is_late)
        super().train()


class LateOptimizer(Net):
    """Another optimizer from the first drop on, made in `setup`"""

    def setup(self, hp: Mapping[str, Any]) -> None:
        super().setup(hp)
        if hp["lr"] < 0.1 and isinstance(self.optimizer, torch.optim.SGD):
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=float(hp["lr"]))


class SeveralBatches(Net):
    """Gradients accumulated over 2 batches within a step"""

    def train(self) -> None:
        self.steps += 1
        self.optimizer.zero_grad()
        for rows in (slice(0, 4), slice(4, 8)):
            (nn.functional.mse_loss(self.model(self.x[rows]), self.y[rows]) / 2).backward()
        self.optimizer.step()


class OwnLoader(Net):
    """Batches from `ResumableLoader`"""

    def begin(self) -> None:
        self.loader = ResumableLoader((self.x, self.y), 3, seed=self.seed)

    def loss(self) -> torch.Tensor:
        x, y = self.loader.next_batch()
        return nn.functional.mse_loss(self.model(x), y)


class Pytree(Slope):
    """NumPy: pure functions from one tree of arrays to the next, as in JAX"""

    def begin(self) -> None:
        self.tree: dict[str, Any] = {"params": [np.ones(3), np.zeros(2)], "momentum": np.zeros(3)}

    def push(self) -> float:
        params, momentum = self.tree["params"], self.tree["momentum"]
        momentum = 0.9 * momentum + 0.1 * (params[0] - self.weight)
        moved = [params[0] - 0.1 * momentum, 0.9 * params[1] + momentum[:2]]
        self.tree = {"params": moved, "momentum": momentum}
        return float(moved[0].sum())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "tree": self.tree}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.tree = state["tree"]


class Perceptron(Slope):
    """NumPy: a perceptron with Adam by hand and seeded noise, all of it saved"""

    def begin(self) -> None:
        self.generator = np.random.default_rng(self.seed)
        self.arrays = {"w": np.ones(3), "first": np.zeros(3), "second": np.zeros(3)}

    def push(self) -> float:
        arrays = self.arrays
        gradient = arrays["w"] * self.weight + 0.1 * self.generator.normal(size=3)
        arrays["first"] = 0.9 * arrays["first"] + 0.1 * gradient
        arrays["second"] = 0.99 * arrays["second"] + 0.01 * gradient**2
        arrays["w"] = arrays["w"] - 0.01 * arrays["first"] / (np.sqrt(arrays["second"]) + 1e-8)
        return float(arrays["w"].sum())

    def state_dict(self) -> dict[str, Any]:
        noise = self.generator.bit_generator.state
        return {**super().state_dict(), "arrays": dict(self.arrays), "noise": noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.arrays = dict(state["arrays"])
        self.generator.bit_generator.state = state["noise"]


class PartialFit(Slope):
    """scikit-learn: `partial_fit`, with the fitted attributes in the state"""

    FITTED = ("coef_", "intercept_", "t_")

    def begin(self) -> None:
        x, y = samples()
        self.x, self.y = x.numpy(), y[:, 0].numpy()
        self.estimator = SGDRegressor(random_state=self.seed)

    def push(self) -> float:
        self.estimator.partial_fit(self.x, self.y)
        return float(self.estimator.coef_.sum())

    def state_dict(self) -> dict[str, Any]:
        fitted = {name: getattr(self.estimator, name) for name in self.FITTED}
        return {**super().state_dict(), "fitted": fitted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.estimator.partial_fit(self.x, self.y)
        vars(self.estimator).update(state["fitted"])


class WholeGenerators(Net):
    """Generators of Python, NumPy and torch, global and held"""

    def begin(self) -> None:
        self.python = random.Random(self.seed)
        self.numpy = np.random.default_rng(self.seed)
        self.torch = torch.Generator().manual_seed(self.seed)

    def loss(self) -> torch.Tensor:
        held = self.python.random() + self.numpy.random() + random.random() + np.random.rand()
        noise = held + torch.rand(1, generator=self.torch) + torch.rand(1)
        return nn.functional.mse_loss(self.model(self.x + 0.1 * noise), self.y)


def tracked(run: Any) -> None:
    """A function: model, optimizer, loader and generator are tracked"""
    x, y = samples()
    model, noise = network(), np.random.default_rng(run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    loader = run.loader((x, y), 3)
    run.track(model, optimizer, noise)
    for _ in run.steps():
        inputs, labels = loader.next_batch()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs + 0.1 * float(noise.random())), labels)
        loss.backward()
        optimizer.step()
        run.report(loss=loss.detach())


def aliased(run: Any) -> None:
    """A function: variables that are other names of parts of `run.state`"""
    seen = run.state["seen"] = []
    parts = run.state["parts"] = {"weight": 1.0}
    for step in run.steps():
        seen.append(step)
        parts["weight"] -= run["lr"] * (parts["weight"] - target(step) + 0.01 * len(seen))
        run.report(loss=parts["weight"] ** 2)


def nested(run: Any) -> None:
    """A function: loops within a step"""
    weight = run.state["weight"] = np.ones(2)
    for step in run.steps():
        for row in range(3):
            for column in range(2):
                weight[column] -= run["lr"] * (weight[column] - target(step + row)) / 3
        run.report(loss=float(weight.sum()))


def shown(run: Any) -> None:
    """A function: a progress bar of tqdm around the steps"""
    run.state["weight"] = 1.0
    for step in tqdm(run.steps(), disable=True):
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        run.report(loss=run.state["weight"] ** 2)


LOGGER = logging.getLogger("resume kinds")


def logged(steps: Iterator[int]) -> Iterator[int]:
    for step in steps:
        yield step
        LOGGER.debug("step %d has ended", step)


def wrapped(run: Any) -> None:
    """A function: a generator of one's own around the steps"""
    run.state["weight"] = 1.0
    for step in logged(run.steps()):
        run.state["weight"] -= run["lr"] * (run.state["weight"] - target(step))
        run.report(loss=run.state["weight"] ** 2)


class LabelSmoothing(Net):
    """A schedule of label smoothing in a number of the trainer"""

    def begin(self) -> None:
        self.smoothing = 0.3

    def loss(self) -> torch.Tensor:
        self.smoothing *= 0.95
        return nn.functional.mse_loss(self.model(self.x), self.y * (1 - self.smoothing))


class StatefulLoader(Net):
    """torch's `DataLoader` in `dt.loader`, a batch in each step"""

    def begin(self) -> None:
        source = DataLoader(TensorDataset(self.x, self.y), batch_size=3, shuffle=True)
        self.loader = dt.loader(source, seed=self.seed)

    def loss(self) -> torch.Tensor:
        x, y = self.loader.next_batch()
        return nn.functional.mse_loss(self.model(x), y)


KINDS = (
    exact(PlainNet),
    exact(Compiled),
    exact(MixedPrecision),
    exact(CopiedTeacher),
    exact(OwnAverages),
    exact(WeightAverage),
    exact(OneCycle),
    exact(LossPlateau),
    exact(WarmRestarts),
    exact(CumulativeNorm),
    exact(SearchingLbfgs),
    exact(WorkerLoader),
    exact(SpectralNorm),
    exact(WeightNorm),
    exact(PseudoLabels),
    exact(DropoutNet),
    exact(Adversaries),
    exact(TensorReplay),
    exact(TargetNetwork),
    exact(MomentumQueue),
    exact(ExplorationRate),
    exact(RunningNormaliser),
    exact(PriorityWeights),
    exact(AdversarialBuffer),
    exact(Unfreezing),
    exact(LateOptimizer),
    exact(SeveralBatches),
    exact(OwnLoader),
    exact(Pytree),
    exact(Perceptron),
    exact(PartialFit),
    exact(WholeGenerators),
    exact(tracked),
    exact(aliased),
    exact(nested),
    exact(shown),
    exact(wrapped),
    exact(LabelSmoothing),
    exact(StatefulLoader),
)
