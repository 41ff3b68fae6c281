"""Look-ups of states in the store, in threads: the driver's loop goes on, also if it is away."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dasktune._driver.attempts import LookUp
from dasktune.errors import StorageError
from dasktune.storage.checkpoints import CheckpointStore, Commit

logger = logging.getLogger(__name__)

THREADS = 8
"""Look-ups at a time."""

Commits = Mapping[str, Commit]
"""Commits by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """The answer to a question about the states of an attempt."""

    question: LookUp
    commits: Future[Commits]


class LookUps:
    """Looks up commits in a store, which should be tried briefly only: lost stages wait for it."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-look-up")

    def ask(self, keys: Collection[str]) -> Future[Commits]:
        """Begin to look up keys; the result has those commits that can be read.

        It is empty if the store does not answer: the states are trained again, or looked up later.
        """
        if keys:
            return self._pool.submit(find_commits, self._store, keys)
        nothing: Future[Commits] = Future()
        nothing.set_result({})
        return nothing

    def close(self) -> None:
        """End the threads; look-ups that are under way are waited for, and others are dropped."""
        self._pool.shutdown(cancel_futures=True)


def find_commits(store: CheckpointStore, keys: Collection[str]) -> Commits:
    """Return the commits of keys that are in the store and can be read; none if it is away."""
    try:
        return store.commits(keys)
    except StorageError as error:
        logger.warning("states could not be looked up: %s", error)
        return {}
