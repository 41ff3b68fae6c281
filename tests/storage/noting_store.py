"""A checkpoint store that notes which commits are opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dasktune.storage.checkpoints import CheckpointStore, Commit


class NotingStore(CheckpointStore):
    """Notes the keys of commits that are opened: those asked for together, and all of them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: list[str] = []
        self.opened_in_all: list[str] = []

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        """Return the commits of keys that have one."""
        listed = list(keys)
        self.opened.extend(listed)
        return super().commits(listed)

    def _commit_files(self, keys: Iterable[str]) -> Any:
        listed = list(keys)
        self.opened_in_all += listed
        return super()._commit_files(listed)
