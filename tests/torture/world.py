"""The store of a simulated study: dasktune's own checkpoint store, its files in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dasktune.errors import CorruptCheckpointError
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.codec import Snapshot, encode
from dasktune.storage.zarr_array import ArrayFiles
from dasktune.types import Metrics, Step
from tests.torture.books import check
from tests.torture.files import MemoryFiles
from tests.torture.ways import State


class Store:
    """The checkpoint store of the study, and what was ever committed to it."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.checkpoints = MixedStore("memory://torture", files=files)
        self.committed: set[State] = set()
        self._commits: dict[tuple[str, int], bytes] = {}
        """Each commit as it was made, by its file and how often that was removed before."""

    def save(
        self,
        key: str,
        state: State,
        *,
        attempt: str,
        step: Step,
        reports: tuple[tuple[Step, Metrics], ...],
    ) -> Commit:
        """Commit a state; return the commit that stands."""
        commit = self.checkpoints.save(
            encode({"state": state}), key=key, attempt=attempt, step=step, reports=reports
        )
        self.committed.add(state)
        self._check_commit(key, commit)
        return commit

    def _check_commit(self, key: str, commit: Commit) -> None:
        """Check that the commit of a key stands as it was made, until it is removed."""
        path = layout.commit_path(key)
        (content,) = self.files.read("", [path])
        if content is not None:
            first = self._commits.setdefault((path, self.files.removals[path]), content.tobytes())
            check(first == content.tobytes(), f"{commit.attempt} wrote over the commit of {key}")

    def load(self, key: str) -> State | None:
        """Return the state of a key, or None."""
        try:
            state: State = self.checkpoints.load(key)[0]["state"]
        except CorruptCheckpointError:
            return None
        return state

    def states(self) -> Iterator[tuple[str, State]]:
        """Yield all keys with their states."""
        keys = self.checkpoints.keys()
        for key in keys:
            state = self.load(key)
            if state is not None:
                yield key, state

    def has(self, key: str) -> bool:
        """Whether a key has a commit that can be read."""
        return key in self.checkpoints.commits([key])


class MixedStore(CheckpointStore):
    """Stores every second state as if it were large: both kinds compete for a key."""

    _saves = 0

    def _is_small(self, snapshot: Snapshot, data: ArrayFiles) -> bool:
        self._saves += 1
        return self._saves % 2 == 0 and super()._is_small(snapshot, data)


class SharedStore(CheckpointStore):
    """The store as the evictor of one driver has it.

    Parameters
    ----------
    store
        The store.
    on_removed
        Called with each state that is removed.
    """

    def __init__(self, store: Store, on_removed: Callable[[State], None]) -> None:
        super().__init__(store.checkpoints.url, files=store.files)
        self._states = store
        self._on_removed = on_removed

    def discard(self, key: str, *, attempt: str | None = None) -> bool:
        """Remove a checkpoint."""
        state = self._states.load(key)
        is_removed = super().discard(key, attempt=attempt)
        if is_removed and state is not None:
            self._on_removed(state)
        return is_removed
