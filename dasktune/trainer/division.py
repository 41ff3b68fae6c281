"""One training divided over several processes: what `TorchTrainer.divided` and `share` do.

All processes make the same calls with the same values, so their generators stay alike; each takes
its share of every batch. Two things differ: the share, and the noise that the modules draw in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from dasktune.errors import TrainerError
from dasktune.trainer.generators import is_cuda
from dasktune.trainer.undivided import Undivided
from dasktune.types import Step


class DividedTraining(Undivided):
    """The part of one process in a divided training.

    Parameters
    ----------
    rank
        Number of the process, from 0.
    world_size
        Number of processes.

    Attributes
    ----------
    is_training
        Whether a step is being trained. `evaluate` runs in the first process alone.
    """

    def __init__(self, rank: int, world_size: int, seed: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.is_training = False
        self._seed = seed
        self._step: Step = 0
        self._calls = 0
        self._weight = 1.0 / world_size
        self._modules: dict[int, _Divided] = {}

    @contextmanager
    def training(self, step: Step) -> Iterator[None]:
        """Train the step after `step` steps."""
        self._step, self._calls, self.is_training = step, 0, True
        self._weight = 1.0 / self.world_size
        try:
            yield
        finally:
            self.is_training = False

    def divided(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module whose gradients are those of all processes together."""
        if not self.is_training:
            return module
        known = self._modules.get(id(module))
        if known is None:
            known = self._modules[id(module)] = _Divided(module, self)
        return known

    def share(self, value: Any) -> Any:
        """Return this process's part of a batch, or of each tensor of a container."""
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self.share(item) for item in value)
        if isinstance(value, dict):
            return {key: self.share(item) for key, item in value.items()}
        if not isinstance(value, torch.Tensor | np.ndarray) or not value.ndim:
            return value
        size = len(value)
        if size < self.world_size:
            raise TrainerError(
                f"a batch must have a sample for each of {self.world_size} devices, got {size}"
            )
        first, last = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
        self._weight = (last - first) / size
        return value[first:last]

    def averaged(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Return the gradients of the whole batch from those of all shares.

        A gradient is that of the mean over a share, so it counts with the size of the share.
        """
        part = bucket.buffer().mul_(self._weight)
        summed: torch.futures.Future[Any] = distributed.all_reduce(part, async_op=True).get_future()
        return summed.then(_first)

    @contextmanager
    def own_noise(self, device: str) -> Iterator[None]:
        """Draw from a generator of this process, step and call; the common one stays as it was.

        It is a function of (seed, step, call, rank): a resumed training draws the same noise.
        """
        self._calls += 1
        text = f"{self._seed}:{self._step}:{self._calls}:{self.rank}"
        seed = int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
        devices = [torch.device(device)] if is_cuda(device) else []
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield


class _WithUnused(torch.nn.Module):
    """A module, and a parameter without elements that nothing uses.

    If torch searches for unused parameters and finds none, it prints a warning against the search.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        trained = [each for each in module.parameters() if each.requires_grad]
        if trained:  # else torch refuses the module
            # Before the others, since a bucket of its own would have nothing to send.
            self.unused = torch.nn.Parameter(trained[0].detach().new_empty(0))
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)


class _Divided(DistributedDataParallel):
    """A module whose processes draw noise of their own, and average their gradients."""

    def __init__(self, module: torch.nn.Module, division: DividedTraining) -> None:
        # Without the search for unused parameters, torch rebuilds the buckets of gradients after
        # the first step. Sums in other buckets have other bits: a resumed training would differ.
        super().__init__(_WithUnused(module), find_unused_parameters=True)
        self._division = division
        self._place = str(next(module.parameters()).device)
        # A lambda, since torch compares the annotations of a hook, which are texts in this module.
        self.register_comm_hook(division, lambda state, bucket: state.averaged(bucket))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self._division.own_noise(self._place):
            return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]


def _first(done: torch.futures.Future[Any]) -> torch.Tensor:
    [tensor] = done.value()
    return cast(torch.Tensor, tensor)
