"""A checkpoint store that notes which commits are opened."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune.storage.checkpoints import CheckpointStore, Commit


class NotingStore(CheckpointStore):
    """Notes the keys of all commits that are opened together."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: list[str] = []

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        """Return the commits of keys that have one."""
        listed = list(keys)
        self.opened.extend(listed)
        return super().commits(listed)
