"""Workers that are jobs of SLURM: what to ask for, and a cluster of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "SlurmOptions": "dasktune.slurm.options",
    "options_for": "dasktune.slurm.table",
    "slurm_client": "dasktune.slurm.workers",
}
"""Imported when first used: each job begins with a module of this package, and must be light."""

__all__ = ["SlurmOptions", "options_for", "slurm_client"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dasktune.slurm' has no attribute {name!r}")
