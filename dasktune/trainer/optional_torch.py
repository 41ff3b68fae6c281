"""torch, or what stands for it where it is not installed: training functions may do without.

Where torch is missing, no value is a tensor, a module or an optimizer, and there are no threads
and options of torch to set.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any


class _OfTorch:
    """A type that no value has."""


def _ignore(*arguments: object) -> None:
    """Set nothing: there is no torch that could read it."""


def _absent() -> Any:
    """Return the names that `TorchTrainer` and training functions use, without a torch."""
    return SimpleNamespace(
        Tensor=_OfTorch,
        Size=_OfTorch,
        nn=SimpleNamespace(Module=_OfTorch, Parameter=_OfTorch),
        optim=SimpleNamespace(Optimizer=_OfTorch),
        utils=SimpleNamespace(data=SimpleNamespace(DataLoader=_OfTorch)),
        no_grad=nullcontext,
        set_num_threads=_ignore,
    )


IS_INSTALLED = True
"""Whether torch can be imported."""

if TYPE_CHECKING:
    import torch as torch
else:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        torch, IS_INSTALLED = _absent(), False
