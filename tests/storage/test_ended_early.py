"""A process that ends between two changes of a store leaves whole states, or no commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.files.base import Files
from dasktune.storage.files.objects import open_files

KEY = "a1b2c3"
LARGE = {"weights": np.arange(100_000.0), "who": 1}
SMALL = {"who": 2}

CHANGES = ("write", "create", "replace", "remove", "remove_files", "remove_same")


class EndOfProcess(BaseException):
    """Stands for the end of a process."""


class EndingFiles:
    """Files of a process that ends before a change of them.

    Parameters
    ----------
    files
        What is changed.
    changes
        How many changes are made.
    """

    def __init__(self, files: Files, changes: int) -> None:
        self._files, self._left = files, changes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)
        if name not in CHANGES:
            return method

        def change(*arguments: Any, **more: Any) -> Any:
            if not self._left:
                raise EndOfProcess
            self._left -= 1
            return method(*arguments, **more)

        return change


def save(store: CheckpointStore, state: Mapping[str, Any], attempt: str) -> None:
    store.save(encode(state), key=KEY, attempt=attempt, step=1)


def save_after_the_commit_was_removed(store: CheckpointStore) -> None:
    store.discard(KEY)
    save(store, LARGE, "2-bb")


@pytest.mark.parametrize(
    "work",
    [
        lambda store: save(store, LARGE, "2-bb"),
        lambda store: store.discard(KEY),
        lambda store: store.discard(KEY, attempt="1-aa"),
        save_after_the_commit_was_removed,
    ],
    ids=["save", "discard", "discard-attempt", "replace"],
)
@pytest.mark.parametrize("before", [None, SMALL, LARGE], ids=["absent", "small", "large"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_each_end_between_changes_leaves_whole_states(
    place: str,
    before: Mapping[str, Any] | None,
    work: Callable[[CheckpointStore], object],
    tmp_path: Path,
) -> None:
    for changes in count():
        folder = tmp_path / str(changes)
        url = str(folder) if place == "local" else f"memory:/{folder}"
        store = CheckpointStore(url)
        if before is not None:
            save(store, before, "1-aa")
        has_ended = False
        try:
            files = cast("Files", EndingFiles(open_files(url), changes))
            work(CheckpointStore(url, files=files))
        except EndOfProcess:
            has_ended = True
        if store.commit_of(KEY) is not None:
            state = store.load(KEY)[0]
            assert encode(state).digest in {encode(each).digest for each in (before, LARGE)}
        save(store, LARGE, "3-cc")  # whatever was left is in nobody's way
        store.load(KEY)
        if not has_ended:
            break
