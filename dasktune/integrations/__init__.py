"""Ready trainers for frameworks, and loggers, one module each.

A module imports its framework when it is used, so ``import dasktune`` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES: tuple[str, ...] = (
    "csv_files",
    "jax",
    "keras",
    "lightgbm",
    "lightning",
    "mlflow",
    "search",
    "sklearn",
    "tensorboard",
    "transformers",
    "wandb",
    "xgboost",
)

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dasktune.integrations.{name}")
    raise AttributeError(
        f"dasktune.integrations has no {name!r}; it has {', '.join(sorted(_MODULES))}"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
