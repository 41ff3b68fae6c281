"""A training in one process: what `TorchTrainer.divided` and `share` do by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Undivided:
    """A training in one process: nothing is divided."""

    rank = 0
    world_size = 1

    def divided(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module itself."""
        return module

    def share(self, value: Any) -> Any:
        """Return the whole batch."""
        return value
