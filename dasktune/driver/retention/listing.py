"""What lies in a store as one listing shows it, and what there is nobody's any more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dasktune.storage.checkpoints import CheckpointStore, Stored
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import CheckpointRow
from dasktune.types import Step

COMMIT_NBYTES = 1000
"""About what a commit takes, which listings do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint.

    Parameters
    ----------
    step
        Of its state.
    nbytes
        All that lies under its key.
    attempt
        Whose it is; None if that is not known.
    used
        When it was written or used last (epoch seconds).
    seconds
        What its training took since the checkpoint before it; None if that is not known.
    """

    step: Step
    nbytes: int
    attempt: str | None
    used: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What lies in a store.

    Parameters
    ----------
    checkpoints
        By key.
    unfinished
        Bytes of uploads without a commit, by key: they are under way, or dead.
    orphans
        Key and attempt of uploads that are dead: nothing was written for long.
    dangling
        Keys of commits without data.
    kept
        Keys of states that other studies keep.
    """

    checkpoints: Mapping[str, Found]
    unfinished: Mapping[str, int]
    orphans: tuple[tuple[str, str], ...] = ()
    dangling: frozenset[str] = field(default=frozenset())
    kept: frozenset[str] = field(default=frozenset())


def survey(
    store: CheckpointStore,
    database: Database | None,
    *,
    own: Collection[str],
    now: float,
    grace: float,
    kept: Callable[[], frozenset[str]],
) -> Survey:
    """Return what lies in a store.

    Parameters
    ----------
    store
        Is listed once.
    database
        Says what it took to train states, and when they were used; None if there is none.
    own
        Keys of which all is known: nothing is looked up for them.
    now
        Epoch seconds.
    grace
        Age in seconds from which on an upload without a commit is dead.
    kept
        Gives the keys that others keep; asked only if there are states that are not `own`.

    Raises
    ------
    StorageError
        If store or database cannot be read.
    """
    stored = list(store.inventory())
    there = {one.key: one for one in stored if one.is_committed and one.attempts}
    several = [key for key, one in there.items() if len(one.attempts) > 1]
    whose = {key: commit.attempt for key, commit in store.commits(several).items()}
    for key, one in there.items():
        if len(one.attempts) == 1:
            whose[key] = next(iter(one.attempts))
    strangers = there.keys() - set(own)
    rows: dict[str, CheckpointRow] = {}
    if strangers and database is not None:
        rows = {row.key: row for row in database.storage_rows() if row.key in strangers}
    orphans = [
        (one.key, attempt)
        for one in stored
        for attempt, (_, last) in one.attempts.items()
        if _is_dead(one, attempt, whose) and last and now - last > grace
    ]
    return Survey(
        checkpoints={
            key: _found(one, whose.get(key), rows.get(key), now) for key, one in there.items()
        },
        unfinished={one.key: one.nbytes for one in stored if not one.is_committed},
        orphans=tuple(sorted(orphans)),
        dangling=frozenset(one.key for one in stored if one.is_committed and not one.attempts),
        kept=kept() if strangers else frozenset(),
    )


def _is_dead(one: Stored, attempt: str, whose: Mapping[str, str]) -> bool:
    """Whether no commit names an attempt; of a commit that cannot be read nobody knows."""
    if not one.is_committed:
        return True
    return one.key in whose and whose[one.key] != attempt


def _found(one: Stored, attempt: str | None, row: CheckpointRow | None, now: float) -> Found:
    last = max(when for _, when in one.attempts.values())
    return Found(
        step=one.step,
        nbytes=one.nbytes + COMMIT_NBYTES,
        attempt=attempt,
        # Where a store does not tell the time, nothing is old.
        used=max(last or now, 0.0 if row is None else row.used),
        seconds=None if row is None else row.seconds,
    )
