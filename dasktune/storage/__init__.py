"""Storage: checkpoints in a zarr store, studies and metrics in a database.

The names below are loaded on first use, because SQLAlchemy and fsspec are slow to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dasktune.storage.checkpoints import CheckpointStore, Commit
    from dasktune.storage.codec import Snapshot, decode, encode
    from dasktune.storage.database.database import Batch, Database

__all__ = ["Batch", "CheckpointStore", "Commit", "Database", "Snapshot", "decode", "encode"]

_HOMES = {
    "Batch": "database",
    "CheckpointStore": "checkpoints",
    "Commit": "checkpoints",
    "Database": "database",
    "Snapshot": "codec",
    "decode": "codec",
    "encode": "codec",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
