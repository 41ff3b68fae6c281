"""Parts of torch that a `TorchTrainer` does not save, and that move after the 7th step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.trainer.resume_kinds.kind import named
from tests.trainer.resume_kinds.smallest import LATE, Net, network


class DropoutSchedule(Net):
    """The rate of a dropout, `model[1].p`, which falls late"""

    def made_model(self) -> Any:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def train(self) -> None:
        if self.is_late:
            self.model[1].p *= 0.95
        super().train()


class Temperature(nn.Module):
    """A layer with a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = nn.Linear(3, 1), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) / self.temperature
        return out


class ModuleNumber(Net):
    """A plain number on a module of one's own, which rises late"""

    def made_model(self) -> Any:
        return Temperature()

    def train(self) -> None:
        if self.is_late:
            self.model.temperature *= 1.02
        super().train()


class Forgetting(nn.Module):
    """A layer that keeps its last outputs in a plain tensor, as a recurrent net its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden, self.calls = nn.Linear(3, 1), torch.zeros(8, 1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + 0.5 * self.hidden
        if self.training:
            self.calls += 1
            if self.calls >= LATE:
                self.hidden = out.detach()
        return out


class RecurrentState(Net):
    """Truncated backpropagation: the hidden state in a plain tensor of a module"""

    def made_model(self) -> Any:
        return Forgetting()


class OptimizerNumber(Net):
    """A number on an optimizer, which counts late steps"""

    def begin(self) -> None:
        self.optimizer.bad = 0  # type: ignore[attr-defined]

    def loss(self) -> torch.Tensor:
        if self.is_late:
            self.optimizer.bad += 1  # type: ignore[attr-defined]
        return super().loss() / (1 + self.optimizer.bad)  # type: ignore[attr-defined]


class CountingHook:
    """Scales outputs by the number of its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        self.calls += module.training
        return output / max(1, self.calls - LATE)


class ForwardHook(Net):
    """A forward hook that counts its calls, and scales from the 12th on"""

    def begin(self) -> None:
        self.model[1].register_forward_hook(CountingHook())


class GradientHook(Net):
    """A hook on a parameter with a count in a closure"""

    def begin(self) -> None:
        calls = 0

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return gradient / max(1, calls - LATE)

        self.model[0].weight.register_hook(hook)


class RemovedHook(Net):
    """A hook of `build` that a late step removes"""

    def begin(self) -> None:
        self.hook = self.model[1].register_forward_hook(lambda module, inputs, out: out * 0.5)

    def train(self) -> None:
        if self.steps == LATE:
            self.hook.remove()
        super().train()


class LateHook(Net):
    """A hook that a late step adds"""

    def train(self) -> None:
        if self.steps == LATE:
            self.model[1].register_forward_hook(lambda module, inputs, out: out * 0.5)
        super().train()


class ReplacedLayer(Net):
    """A layer without weights that a late step replaces by another one"""

    def train(self) -> None:
        if self.steps == LATE:
            self.model[1] = nn.ReLU()
        super().train()


class PatchedForward(Net):
    """A `forward` that a late step replaces"""

    def train(self) -> None:
        if self.steps == LATE:
            self.model[1].forward = torch.sin
        super().train()


class SmoothingNumber(Net):
    """A number of a loss module, `criterion.beta`, which falls late"""

    def begin(self) -> None:
        self.criterion = nn.SmoothL1Loss(beta=1.0)

    def loss(self) -> torch.Tensor:
        if self.is_late:
            self.criterion.beta *= 0.95
        out: torch.Tensor = self.criterion(self.model(self.x), self.y)
        return out


def schedule_rate() -> Callable[[int], float]:
    factor = 1.0

    def at(step: int) -> float:
        nonlocal factor
        if step > LATE:
            factor *= 0.97
        return factor

    return at


class ScheduleClosure(Net):
    """`LambdaLR` with a function whose factor is in its closure"""

    def begin(self) -> None:
        self.schedule = lr_scheduler.LambdaLR(self.optimizer, schedule_rate())

    def setup(self, hp: Any) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = float(hp["lr"])

    def train(self) -> None:
        super().train()
        self.schedule.step()


class LateAccumulation(Net):
    """Gradients accumulated over 4 steps, from a late step on"""

    def train(self) -> None:
        self.steps += 1
        if not self.is_late or self.steps % 4 == 0:
            self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


class Masked(nn.Module):
    """A layer with a mask that is made once, from its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 1), 0
        self.masks: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        if self.calls < LATE:
            return self.layer(x)  # type: ignore[no-any-return]
        if len(x) not in self.masks:
            weight = self.layer.weight.detach()
            self.masks[len(x)] = (weight - weight.mean()).sigmoid()
        return nn.functional.linear(x, self.layer.weight * self.masks[len(x)])


class CachedMask(Net):
    """An attention mask that is cached late, and depends on the weights of that step"""

    def made_model(self) -> Any:
        return Masked()


class Averages:
    """Averages of parameters in an object of one's own."""

    def __init__(self, model: nn.Module) -> None:
        self.means = [parameter.detach().clone() for parameter in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for mean, parameter in zip(self.means, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.1)


class OwnAverager(Net):
    """EMA: averages in an object of one's own, which begins late"""

    def begin(self) -> None:
        self.averages = Averages(self.model)

    def train(self) -> None:
        super().train()
        if self.is_late:
            self.averages.update(self.model)

    def evaluate(self) -> dict[str, float]:
        return {"loss": sum(float(mean.sum()) for mean in self.averages.means)}


class LateTeacher(Net):
    """Distillation: a copy of the network that is made in a late step"""

    def begin(self) -> None:
        self.teacher: nn.Module | None = None

    def loss(self) -> torch.Tensor:
        if self.steps == LATE:
            self.teacher = network()
            self.teacher.load_state_dict(self.model.state_dict())
        if self.teacher is None:
            return super().loss()
        with torch.no_grad():
            goal = self.teacher(self.x)
        return super().loss() + nn.functional.mse_loss(self.model(self.x), goal)


KINDS = (
    named(DropoutSchedule, "model"),
    named(ModuleNumber, "temperature"),
    named(RecurrentState, "hidden"),
    named(OptimizerNumber, "bad"),
    named(ForwardHook, "hook"),
    named(GradientHook, "hook"),
    named(RemovedHook, "hook"),
    named(LateHook, "hook"),
    named(ReplacedLayer, "model"),
    named(PatchedForward, "forward"),
    named(SmoothingNumber, "criterion"),
    named(ScheduleClosure, "schedule"),
    named(LateAccumulation, ".grad"),
    named(CachedMask, "mask"),
    named(OwnAverager, "averages"),
    named(LateTeacher, "teacher"),
)
