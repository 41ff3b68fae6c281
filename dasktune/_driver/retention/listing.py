"""One listing of a store: its checkpoints, and what is left of dead uploads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dasktune.storage.checkpoints import SMALL_NBYTES, CheckpointStore, Stored
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import CheckpointRow
from dasktune.types import Step

COMMIT_NBYTES = 1000
"""About the size of a commit, which listings do not count."""


def tensor_nbytes_of(nbytes: int) -> int:
    """Return the size that tensors of so many bytes take in the store: base64 in a commit.

    Examples
    --------
    >>> tensor_nbytes_of(3000), tensor_nbytes_of(300_000)
    (4000, 300000)
    """
    return -(-nbytes // 3) * 4 if nbytes <= SMALL_NBYTES else nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A checkpoint in a store, and the attempt that made it, if that is known."""

    step: Step
    nbytes: int
    """Bytes of all files under its key."""
    attempt: str | None
    used: float
    """When it was written or used last: epoch seconds, by this machine's clock."""
    seconds: float | None = None
    """Training time since the checkpoint before it, if that is known."""
    tensor_nbytes: int | None = None
    """`tensor_nbytes_of` what its worker reported; None if only a listing shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreListing:
    """The content of a store: checkpoints by key, and what is none."""

    checkpoints: Mapping[str, StoredState]
    unfinished: Mapping[str, int]
    """Bytes of uploads without a commit, by key: they are under way, or dead."""
    orphans: tuple[tuple[str, str], ...]
    """Key and attempt of dead uploads: nothing was written for long."""
    leftovers: tuple[str, ...]
    """Paths of temporary files that processes which died long ago have left."""
    dangling: frozenset[str]
    """Keys of commits without data."""


def list_store(
    store: CheckpointStore,
    database: Database | None,
    *,
    own: Collection[str],
    now: float,
    store_now: float,
    grace: float,
) -> StoreListing:
    """Return the content of a store; the database gives training times and last uses of states.

    Of the keys in `own` all is known already. `now` is by this machine's clock, `store_now` the
    same time by the store's, which alone measures the ages of its files: an upload without a commit
    is dead once it is older than `grace`.
    """
    uploads = list(store.inventory())
    committed = {
        upload.key: upload for upload in uploads if upload.is_committed and upload.attempts
    }
    several = [key for key, upload in committed.items() if len(upload.attempts) > 1]
    makers = {key: commit.attempt for key, commit in store.commits(several).items()}
    for key, upload in committed.items():
        if len(upload.attempts) == 1:
            makers[key] = next(iter(upload.attempts))
    foreign = committed.keys() - set(own)
    rows: dict[str, CheckpointRow] = {}
    if foreign and database is not None:
        rows = {row.key: row for row in database.storage_rows() if row.key in foreign}
    orphans = [
        (upload.key, attempt)
        for upload in uploads
        for attempt, (_, last) in upload.attempts.items()
        if _has_no_commit(upload, attempt, makers) and 0 < last < store_now - grace
    ]
    leftovers = [
        file.path
        for upload in uploads
        for file in upload.leftovers
        if 0 < file.modified < store_now - grace
    ]
    pending = [upload for upload in uploads if upload.attempts and not upload.is_committed]
    dangling = [upload.key for upload in uploads if upload.is_committed and not upload.attempts]
    return StoreListing(
        checkpoints={
            key: _stored_state(upload, makers.get(key), rows.get(key), now, store_now)
            for key, upload in committed.items()
        },
        unfinished={upload.key: upload.nbytes for upload in pending},
        orphans=tuple(sorted(orphans)),
        leftovers=tuple(sorted(leftovers)),
        dangling=frozenset(dangling),
    )


def remove_orphan(store: CheckpointStore, key: str, attempt: str) -> None:
    """Remove the files of a dead upload, unless it has come to a commit since it was listed."""
    commit = store.commit_of(key)
    if commit is None or commit.attempt != attempt:
        store.remove_attempt(key, attempt)


def _has_no_commit(upload: Stored, attempt: str, makers: Mapping[str, str]) -> bool:
    """Return whether no commit names an attempt; False where the commit cannot be read."""
    if not upload.is_committed:
        return True
    return upload.key in makers and makers[upload.key] != attempt


def _stored_state(
    upload: Stored, attempt: str | None, row: CheckpointRow | None, now: float, store_now: float
) -> StoredState:
    last = max(when for _, when in upload.attempts.values())
    written = now - (store_now - last) if last else now
    return StoredState(
        step=upload.step,
        nbytes=upload.nbytes + COMMIT_NBYTES,
        attempt=attempt,
        # Where a store does not tell the time, nothing is old.
        used=max(written, 0.0 if row is None else row.used),
        seconds=None if row is None else row.seconds,
    )
