"""Workers that are jobs of SLURM: options of the jobs, and a cluster of them."""

from __future__ import annotations

from dasktune._lazy import import_on_use

_HOMES = {
    "SlurmOptions": "dasktune.slurm.options",
    "options_for": "dasktune.slurm.options",
    "pools_client": "dasktune.slurm.workers",
    "pools_for": "dasktune.slurm.options",
    "slurm_client": "dasktune.slurm.workers",
}
"""Imported on first use: each job starts with a module of this package, and must be light."""

__all__ = ["SlurmOptions", "options_for", "pools_client", "pools_for", "slurm_client"]

__getattr__ = import_on_use(__name__, _HOMES)
