"""A checkpoint store whose writes a test holds back."""

from __future__ import annotations

import threading
from typing import Any

from dasktune.storage.checkpoints import CheckpointStore, Commit

PATIENCE = 30.0
"""How long an event is waited for, in seconds."""


class HeldStore(CheckpointStore):
    """Saves nothing while it is held."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._may_save = threading.Event()
        self._may_save.set()

    def hold(self) -> None:
        """Keep all saves waiting from now on."""
        self._may_save.clear()

    def release(self) -> None:
        """Continue the held saves."""
        self._may_save.set()

    def save(self, *arguments: Any, **options: Any) -> Commit:
        """Save a state as soon as that may be."""
        assert self._may_save.wait(PATIENCE)
        return super().save(*arguments, **options)
