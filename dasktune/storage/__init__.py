"""Storage: checkpoints in a zarr store, studies and metrics in a database.

The names below are loaded on first use, because SQLAlchemy and fsspec are slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dasktune._lazy import import_on_use

if TYPE_CHECKING:
    from dasktune.storage.checkpoints import CheckpointStore, Commit
    from dasktune.storage.codec import Snapshot, decode, encode
    from dasktune.storage.database.database import Batch, Database

__all__ = ["Batch", "CheckpointStore", "Commit", "Database", "Snapshot", "decode", "encode"]

_HOMES = {
    "Batch": "dasktune.storage.database.database",
    "CheckpointStore": "dasktune.storage.checkpoints",
    "Commit": "dasktune.storage.checkpoints",
    "Database": "dasktune.storage.database.database",
    "Snapshot": "dasktune.storage.codec",
    "decode": "dasktune.storage.codec",
    "encode": "dasktune.storage.codec",
}

__getattr__ = import_on_use(__name__, _HOMES)
