"""Kinds of trainers that people write, each in its smallest form.

The first line of a docstring is what the table of trainers says about the kind.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import dasktune as dt
from dasktune.trainer.data import ResumableLoader

SAMPLES, BATCH, FEATURES = 20, 4, 3


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a data set that is always the same."""
    x = torch.linspace(-1, 1, SAMPLES * FEATURES).reshape(SAMPLES, FEATURES).sin()
    return x, (x.sum(1, keepdim=True) > 0).float()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1)
    )


class Net(dt.TorchTrainer):
    """PyTorch: dropout, batch norm, momentum, batches from `ResumableLoader`"""

    # Only one thread of the tests trains, and no other one draws or counts threads.
    requires_process = False

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.y = samples()
        self.model = network()
        self.optimizer = self.make_optimizer(hp["lr"])
        self.loader = ResumableLoader((self.x, self.y), BATCH, seed=self.seed)

    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def setup(self, hp: Mapping[str, Any]) -> None:
        if "lr" in hp:
            self.optimizer.param_groups[0]["lr"] = hp["lr"]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.loader.next_batch()
        return x, y

    def loss(self) -> torch.Tensor:
        x, y = self.batch()
        return nn.functional.binary_cross_entropy_with_logits(self.model(x), y)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.evaluated()(self.x).square().mean())}

    def evaluated(self) -> nn.Module:
        return self.model


class MixedPrecision(Net):
    """AMP: `autocast` and `GradScaler`"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

    def train(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class AveragedEma(Net):
    """EMA: `AveragedModel` of torch"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def train(self) -> None:
        super().train()
        self.ema.update_parameters(self.model)

    def evaluated(self) -> nn.Module:
        return self.ema


class TensorEma(Net):
    """EMA: tensors of one's own, `lerp_` under `no_grad`"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.ema = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.ema[name].lerp_(parameter, 0.1)

    def evaluate(self) -> dict[str, float]:
        outputs = torch.func.functional_call(self.model, self.ema, (self.x,))
        return {"loss": float(outputs.square().mean())}


class DataEma(TensorEma):
    """EMA: tensors of one's own, changed through `.data`"""

    def train(self) -> None:
        Net.train(self)
        for name, parameter in self.model.named_parameters():
            self.ema[name].data.mul_(0.9).add_(0.1 * parameter.data)


class NumpyView(Net):
    """A tensor that is changed through `tensor.numpy()`"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.seen = torch.zeros(1)

    def train(self) -> None:
        super().train()
        self.seen.numpy()[:] += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": super().evaluate()["loss"] * float(self.seen)}


class SetBesideTensor(Net):
    """A set beside a tensor in one dict"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.seen: dict[str, Any] = {"weight": torch.ones(1), "rows": set()}

    def train(self) -> None:
        self.seen["rows"].add(len(self.seen["rows"]))
        super().train()

    def evaluate(self) -> dict[str, float]:
        return {"loss": super().evaluate()["loss"] + len(self.seen["rows"])}


class Accumulation(Net):
    """Gradients accumulated over 4 steps, `zero_grad` after the update"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.steps = 0

    def train(self) -> None:
        self.loss().backward()
        self.steps += 1
        if self.steps % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class AccumulationWithin(Net):
    """Gradients accumulated over 2 batches within a step"""

    def train(self) -> None:
        self.optimizer.zero_grad()
        for _ in range(2):
            (self.loss() / 2).backward()
        self.optimizer.step()


class Swa(Net):
    """SWA: `AveragedModel`, `SWALR`, batch norm updated within the step"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.average = AveragedModel(self.model)
        self.schedule = SWALR(self.optimizer, swa_lr=0.01, anneal_epochs=3)
        self.steps = 0

    def train(self) -> None:
        super().train()
        self.steps += 1
        if self.steps >= 2:
            self.average.update_parameters(self.model)
            self.schedule.step()
            update_bn([self.x], self.average)

    def evaluated(self) -> nn.Module:
        return self.average


class Lbfgs(Net):
    """LBFGS with a closure"""

    def make_optimizer(self, lr: float) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            self.model.parameters(), lr=lr, max_iter=3, line_search_fn="strong_wolfe"
        )

    def train(self) -> None:
        x, y = self.batch()

        def closure() -> float:
            self.optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(x), y)
            loss.backward()
            return float(loss)

        self.optimizer.step(closure)


class BatchSchedule(Net):
    """A scheduler stepped by batch: `OneCycleLR` with momentum"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.schedule = lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.5, total_steps=20)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = hp["lr"]

    def train(self) -> None:
        super().train()
        self.schedule.step()


class EpochSchedule(BatchSchedule):
    """Schedulers stepped by epoch: `StepLR`, then `ReduceLROnPlateau`"""

    def build(self, hp: Mapping[str, Any]) -> None:
        Net.build(self, hp)
        self.schedule = lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)

    def train(self) -> None:
        epoch = self.loader.epoch
        Net.train(self)
        if self.loader.epoch != epoch:
            self.schedule.step()
            self.plateau.step(1.0)


class NewOptimizer(Net):
    """Another optimizer from a step on, made in `setup`"""

    def setup(self, hp: Mapping[str, Any]) -> None:
        super().setup(hp)
        if hp["lr"] < 0.1 and isinstance(self.optimizer, torch.optim.SGD):
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=hp["lr"])


class Unfreezing(Net):
    """A layer that is frozen at first, and trained from step 4 on"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.steps = 0
        self.layer = self.model.get_submodule("0")
        self.layer.requires_grad_(False)

    def train(self) -> None:
        self.steps += 1
        self.layer.requires_grad_(self.steps >= 4)
        super().train()


class Growing(Net):
    """A network that grows while it is trained"""

    def train(self) -> None:
        assert isinstance(self.model, nn.Sequential)
        self.model.append(nn.Linear(1, 1))
        super().train()


class ThreadLoader(Net):
    """`ResumableLoader` with threads and a random transform"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        data = (self.x, self.y)
        self.loader = ResumableLoader(data, BATCH, seed=self.seed, workers=2, transform=with_noise)


def with_noise(sample: Any, generator: np.random.Generator) -> Any:
    x, y = sample
    return x + float(generator.normal()), y


class TorchLoader(Net):
    """torch's `DataLoader`, an epoch within each step"""

    workers = 0
    persistent = False

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.batches = DataLoader(
            TensorDataset(self.x, self.y),
            10,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.persistent,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def train(self) -> None:
        for x, y in self.batches:
            self.optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(self.model(x), y).backward()
            self.optimizer.step()


class TorchLoaderWorkers(TorchLoader):
    """torch's `DataLoader` with worker processes, an epoch in every 4th step"""

    workers = 1

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.steps = 0

    def train(self) -> None:
        self.steps += 1
        (super() if self.steps % 4 == 1 else super(TorchLoader, self)).train()


class TorchLoaderResumable(Net):
    """torch's `DataLoader` with a sampler of its own, in `dt.loader`, a batch in each step"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        order = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
        source = DataLoader(TensorDataset(self.x, self.y), batch_size=BATCH, sampler=order)
        self.loader = dt.loader(source, seed=self.seed)


class TorchLoaderPersistent(TorchLoader):
    """torch's `DataLoader` with `persistent_workers=True`"""

    workers = 1
    persistent = True


class HeldIterator(Net):
    """An iterator held in an attribute"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.rows = iter(range(100))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        row = next(self.rows)
        return self.x[row : row + BATCH], self.y[row : row + BATCH]


class HeldGenerators(Net):
    """Generators of Python, NumPy and torch, global and held"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.python = random.Random(self.seed)
        self.numpy = np.random.default_rng(self.seed)
        self.torch = torch.Generator().manual_seed(self.seed)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().batch()
        noise = self.python.random() + self.numpy.random() + random.random() + np.random.rand()
        return x + noise + torch.rand(1, generator=self.torch) + torch.rand(1), y


class Agent:
    """A network and what trains it, without `state_dict`."""

    def __init__(self, lr: float) -> None:
        self.net = network()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=0.9)
        self.noise = 1.0


class HeldAgent(Net):
    """Network and optimizer in an object of one's own"""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.y = samples()
        self.agent = Agent(hp["lr"])
        self.loader = ResumableLoader((self.x, self.y), BATCH, seed=self.seed)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.agent.optimizer.param_groups[0]["lr"] = hp["lr"]

    def train(self) -> None:
        x, y = self.batch()
        self.agent.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(self.agent.net(x), y).backward()
        self.agent.optimizer.step()

    def evaluated(self) -> nn.Module:
        return self.agent.net


class AgentCounter(HeldAgent):
    """A number in an object of one's own"""

    def train(self) -> None:
        self.agent.noise *= 0.9
        super().train()

    def evaluate(self) -> dict[str, float]:
        return {"loss": super().evaluate()["loss"] * self.agent.noise}


class Window(Net):
    """The last losses in a `deque`"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.window: deque[float] = deque(maxlen=5)

    def loss(self) -> torch.Tensor:
        loss = super().loss()
        self.window.append(float(loss))
        return loss

    def evaluate(self) -> dict[str, float]:
        return {"loss": sum(self.window)}


class MixedDict(Net):
    """A network and a number in one dict"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.parts: dict[str, Any] = {"model": self.model, "steps": 0}

    def train(self) -> None:
        super().train()
        self.parts["steps"] += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.parts["steps"]}


class HeldEstimator(dt.TorchTrainer):
    """scikit-learn: an estimator held by a `TorchTrainer`"""

    requires_process = False

    def build(self, hp: Mapping[str, Any]) -> None:
        x, y = samples()
        self.x, self.y = x.numpy(), y[:, 0].numpy()
        self.model = SGDClassifier(random_state=self.seed)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.model.set_params(alpha=hp["lr"])

    def train(self) -> None:
        self.model.partial_fit(self.x, self.y, classes=[0, 1])

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.model.coef_.sum()) if hasattr(self.model, "coef_") else 0.0}


class Descent(dt.Trainer):
    """NumPy: pure functions from state to state, as in JAX"""

    def build(self, hp: Mapping[str, Any]) -> None:
        x, y = samples()
        self.x, self.y = x.numpy().astype(float), y[:, 0].numpy().astype(float)
        self.state: dict[str, Any] = {
            "weights": np.zeros(FEATURES),
            "momentum": np.zeros(FEATURES),
            "step": 0,
        }

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def noise(self) -> float:
        # As a key of JAX: made from the step, not from the draws before.
        return float(np.random.default_rng([self.seed, self.state["step"]]).normal())

    def train(self) -> None:
        state = self.state
        error = self.x @ state["weights"] - self.y + self.noise()
        momentum = 0.9 * state["momentum"] + self.x.T @ error / SAMPLES
        self.state = {
            "weights": state["weights"] - self.lr * momentum,
            "momentum": momentum,
            "step": state["step"] + 1,
        }

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.square(self.x @ self.state["weights"] - self.y).mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state["state"]


class SavedGenerators(Descent):
    """NumPy: generators of Python and NumPy, global and held, in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        random.seed(self.seed)
        np.random.seed(self.seed)
        self.generator = np.random.default_rng(self.seed)

    def noise(self) -> float:
        return random.random() + np.random.rand() + float(self.generator.random())

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
            "held": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        self.generator.bit_generator.state = state["held"]


class PartialFit(dt.Trainer):
    """scikit-learn: `partial_fit`, with the fitted attributes as the state"""

    FITTED = ("coef_", "intercept_", "t_")

    def build(self, hp: Mapping[str, Any]) -> None:
        x, y = samples()
        self.x, self.y = x.numpy(), y[:, 0].numpy()
        self.model = SGDClassifier(random_state=self.seed)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.model.set_params(alpha=hp["lr"])

    def train(self) -> None:
        self.model.partial_fit(self.x, self.y, classes=[0, 1])

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(np.abs(self.model.coef_).sum())}

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self.model, name) for name in self.FITTED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.train()
        vars(self.model).update(state)


class EstimatorAsState(PartialFit):
    """scikit-learn: the estimator itself in the state"""

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model}


class ForgottenPython(Descent):
    """Python's global generator, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        random.seed(self.seed)

    def noise(self) -> float:
        return random.random()


class ForgottenNumpy(Descent):
    """NumPy's global generator, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        np.random.seed(self.seed)

    def noise(self) -> float:
        return float(np.random.rand())


class ForgottenHeld(Descent):
    """A generator of NumPy in an attribute, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.generator = np.random.default_rng(self.seed)

    def noise(self) -> float:
        return float(self.generator.random())


class ForgottenTorch(Descent):
    """torch's global generator, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        torch.manual_seed(self.seed)

    def noise(self) -> float:
        return float(torch.rand(()))


class ForgottenMomentum(Descent):
    """A part of the optimizer, not in the state"""

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.state["weights"], "step": self.state["step"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = {**self.state, **state}


class ForgottenCounter(Descent):
    """A counter that matters at every 4th step, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls = 0

    def noise(self) -> float:
        self.calls += 1
        return float(self.calls % 4 == 0)


class ForgottenPosition(Descent):
    """A Python generator over the batches, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.batches = self.endless()

    def endless(self) -> Iterator[float]:
        while True:
            yield from (0.0, 0.1, 0.2, 0.3, 0.4)

    def noise(self) -> float:
        return next(self.batches)


def summing(steps: int) -> Generator[float, float, None]:
    """Take a number at a time; give their sum after so many, else 0."""
    given, result = 0.0, 0.0
    for count in itertools.count(1):
        given += yield result
        given, result = (0.0, given) if count % steps == 0 else (given, 0.0)


class SlowAccumulation(Descent):
    """Errors summed over 8 steps in a Python generator, not in the state"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.sums = summing(8)
        next(self.sums)

    def noise(self) -> float:
        return self.sums.send(1.0 + float(self.state["weights"].sum()))


COUNTER = {"calls": 0}


class ModuleGlobal(Descent):
    """A counter in a global variable of the module"""

    def noise(self) -> float:
        COUNTER["calls"] += 1
        return float(COUNTER["calls"])


class ClassAttribute(Descent):
    """A counter in an attribute of the class"""

    calls: list[int] = []  # noqa: RUF012

    def noise(self) -> float:
        self.calls.append(1)
        return float(len(self.calls))


class DefaultArgument(Descent):
    """A list in the default argument of a function"""

    def noise(self, calls: list[int] = []) -> float:  # noqa: B006
        calls.append(1)
        return float(len(calls))


def counting() -> Callable[[], float]:
    calls = 0

    def count() -> float:
        nonlocal calls
        calls += 1
        return float(calls)

    return count


class Closure(Descent):
    """A counter in the closure of a function"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.noise = counting()  # type: ignore[method-assign]


class Clock(Descent):
    """A result that depends on the clock"""

    def noise(self) -> float:
        return time.perf_counter_ns() % 1_000_003 / 1e6


class Unseeded(Descent):
    """A generator without a seed"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.generator = np.random.default_rng()

    def noise(self) -> float:
        return float(self.generator.random())


class BestSoFar(Descent):
    """`evaluate` keeps the best loss, on which the next step depends"""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.evaluations = 0

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        return super().evaluate()

    def noise(self) -> float:
        return float(self.evaluations)


def tracking(run: Any) -> None:
    """A training function: model, optimizer, loader, generator and numbers are tracked"""
    x, y = samples()
    model, noise = network(), np.random.default_rng(run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=run["lr"], momentum=0.9)
    loader = run.loader((x, y), BATCH)
    mean = run.state["mean"] = torch.zeros(())
    run.track(model, optimizer, noise)
    for _ in run.steps():
        model.train()
        inputs, labels = loader.next_batch()
        optimizer.zero_grad()
        outputs = model(inputs + 0.1 * float(noise.random()))
        loss = nn.functional.binary_cross_entropy_with_logits(outputs, labels)
        loss.backward()
        optimizer.step()
        mean.lerp_(loss.detach(), 0.1)
        run.report(loss=float(mean))


def untracked(run: Any) -> None:
    """A training function with a generator that is not tracked"""
    weight, noise = run.state.setdefault("weight", np.ones(3)), np.random.default_rng(run.seed)
    for _ in run.steps():
        weight -= run["lr"] * (weight + noise.random())
        run.report(loss=float(weight.sum()))


def counting_in_a_variable(run: Any) -> None:
    """A training function that counts in a variable"""
    weight, calls = run.state.setdefault("weight", np.ones(3)), 0
    for _ in run.steps():
        calls += len(weight)
        weight -= run["lr"] * (weight + calls)
        run.report(loss=float(weight.sum()))


def forgetting(run: Any) -> None:
    """A training function that counts in an attribute of an inner function"""

    def step(weight: Any) -> Any:
        step.calls += len(weight)  # type: ignore[attr-defined]
        return run["lr"] * (weight + step.calls)  # type: ignore[attr-defined]

    weight, step.calls = run.state.setdefault("weight", np.ones(3)), 0  # type: ignore[attr-defined]
    for _ in run.steps():
        weight -= step(weight)
        run.report(loss=float(weight.sum()))
