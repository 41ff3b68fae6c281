"""dasktune: hyper-parameter tuning on Dask that never trains the same steps twice."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dasktune._lazy import import_on_use

__version__ = "0.1.0"

_HOMES = {
    "Branch": "dasktune.space",
    "Callback": "dasktune._study.callbacks",
    "CheckpointStore": "dasktune.storage.checkpoints",
    "Choice": "dasktune.space",
    "Family": "dasktune.space",
    "Float": "dasktune.space",
    "Forest": "dasktune.algos.forest",
    "Int": "dasktune.space",
    "Limits": "dasktune._engine.limits",
    "Needs": "dasktune.needs",
    "ResumableLoader": "dasktune.trainer",
    "Run": "dasktune.trainer",
    "Scale": "dasktune._engine.scaling",
    "Space": "dasktune.space",
    "Study": "dasktune._study.study",
    "Timeouts": "dasktune._engine.timeouts",
    "TorchTrainer": "dasktune.trainer",
    "Trainer": "dasktune.trainer",
    "Trial": "dasktune._engine.trials",
    "TrialState": "dasktune.types",
    "check_resume": "dasktune.trainer",
    "create_study": "dasktune._study.create",
    "delete_study": "dasktune._study.deletion",
    "doctor": "dasktune.doctor",
    "from_optuna": "dasktune.trainer.objective",
    "loader": "dasktune.trainer",
    "load_study": "dasktune._study.loading",
    "local_client": "dasktune._cluster.local",
    "merge_rate": "dasktune._results.merge_rate",
    "preview": "dasktune._study.preview",
    "rename_study": "dasktune._study.deletion",
    "simulate": "dasktune.simulate",
    "slurm_client": "dasktune.slurm",
}
"""Public names and where they live: imported when first used, so that this stays light."""

_PARTS = ("algos", "errors", "integrations", "samplers", "sequences", "space", "types")

__all__ = ["__version__", *sorted(_HOMES), *_PARTS]


_import = import_on_use(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    return import_module(f"dasktune.{name}") if name in _PARTS else _import(name)


def __dir__() -> list[str]:
    return sorted(__all__)
