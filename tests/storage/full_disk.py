"""A database whose disk is full."""

from __future__ import annotations

from dasktune.errors import StorageError
from dasktune.storage.database.database import Batch, Database


class FullDisk(Database):
    """Refuses to write while it is full."""

    is_full = False

    def write(self, batch: Batch) -> None:
        """Write a batch, unless the disk is full."""
        if self.is_full:
            raise StorageError("the disk is full")
        super().write(batch)
