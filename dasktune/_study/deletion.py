"""Deleting and renaming studies: the rows of the database, and the states that only they use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from dasktune._results.inventory import Holding, take_inventory
from dasktune._study.config import default_database
from dasktune._study.folder import from_folder, study_folder
from dasktune._words import counted
from dasktune.errors import (
    ConfigurationError,
    CorruptRecordError,
    StorageError,
    name_problems,
    refuse,
    unknown,
)
from dasktune.report.status_report import driver_of
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.leases import Leases
from dasktune.storage.redaction import redacted
from dasktune.storage.retention import GRACE, size_text

THREADS = 8
"""States that are removed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A deleted study, and the states that were removed with it.

    Parameters
    ----------
    trials
        Number of its trials.
    checkpoints, nbytes
        Number and size of the removed states: no other study of the database uses them.
    shared, shared_nbytes
        Number and size of its states that stay, since other studies use them.
    recent, recent_nbytes
        Number and size of its states that stay, since drivers run that may load them.
    is_done
        Whether it was deleted; False if this only says so.
    """

    study: str
    store: str
    trials: int
    checkpoints: int
    nbytes: int
    shared: int
    shared_nbytes: int
    recent: int
    recent_nbytes: int
    is_done: bool

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return asdict(self)

    def __str__(self) -> str:
        verb, freed = ("deleted", "freed") if self.is_done else ("would delete", "would free")
        states = counted(self.checkpoints, "checkpoint")
        lines = [
            f"{verb} study {self.study!r} with {counted(self.trials, 'trial')}; {freed} "
            f"{size_text(self.nbytes)} in {states} of {redacted(self.store)}"
        ]
        if self.shared:
            amount = size_text(self.shared_nbytes)
            lines.append(
                f"{counted(self.shared, 'checkpoint')} ({amount}) of other studies, too, stay"
            )
        if self.recent:
            amount = size_text(self.recent_nbytes)
            lines.append(
                f"{counted(self.recent, 'checkpoint')} ({amount}) of the last hour stay, since "
                "drivers run that may load them; 'dasktune gc --budget' removes them later"
            )
        return "\n".join(lines)


def delete_study(
    name: str,
    *,
    storage: str | os.PathLike[str],
    database: str | None = None,
    dry_run: bool = False,
) -> Deletion:
    """Delete a study, and the states in its store that no other study of the database uses.

    Its trials, log and results are lost. Measured metrics stay as long as another study has the
    same trainer and seed: it may use them. Snapshots in an Optuna storage and reports stay, too.

    Parameters
    ----------
    name
        The study.
    storage, database
        As for `dasktune.create_study`.
    dry_run
        Change nothing, only return the amounts.

    Raises
    ------
    ConfigurationError
        If there is no such study, or a driver runs it.
    StorageError
        If store or database cannot be read or written.

    Examples
    --------
    >>> import dasktune as dt, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> dt.create_study(None, name="typo", metric="loss", storage=folder).close()
    >>> dt.delete_study("typo", storage=folder).trials
    0
    """
    place = from_folder(study_folder(), str(storage))
    with _opened(place, database) as opened:
        row = _idle(opened, name)
        store = CheckpointStore(place)
        store.name()  # of no other folder, and of no later version, anything is removed
        inventory = take_inventory(store, opened)
        if inventory.unreadable:  # they may use the states, too
            raise CorruptRecordError("\n".join(map(str, inventory.unreadable)))
        used = [holding for holding in inventory.holdings if name in holding.owners]
        own = [holding for holding in used if set(holding.owners) == {name}]
        recent = [holding for holding in own if _is_recent(holding)] if _has_drivers(store) else []
        own = [holding for holding in own if holding not in recent]
        if not dry_run:
            _discard(store, opened, [holding.key for holding in own])
            _idle(opened, name)  # a driver may have begun meanwhile
            opened.delete_study(
                row.id,
                roots=[root for root, names in inventory.roots.items() if names == {name}],
            )
        shared = [holding for holding in used if len(holding.owners) > 1]
        return Deletion(
            study=name,
            store=place,
            trials=inventory.trials[name],
            checkpoints=len(own),
            nbytes=_nbytes(own),
            shared=len(shared),
            shared_nbytes=_nbytes(shared),
            recent=len(recent),
            recent_nbytes=_nbytes(recent),
            is_done=not dry_run,
        )


def rename_study(
    name: str,
    new_name: str,
    *,
    storage: str | os.PathLike[str],
    database: str | None = None,
) -> None:
    """Give a study another name; store, states and results stay as they are.

    Study files must use the new name from then on, and the old ``storage``: the default folder has
    the name of the study.

    Parameters
    ----------
    name, new_name
        The names before and after.
    storage, database
        As for `dasktune.create_study`.

    Raises
    ------
    ConfigurationError
        If there is no such study, a driver runs it, or the new name is taken or invalid.
    StorageError
        If the database cannot be read or written.
    """
    refuse(name_problems("name", new_name))
    with _opened(from_folder(study_folder(), str(storage)), database) as opened:
        row = _idle(opened, name)
        if not opened.rename_study(row.id, new_name):
            raise ConfigurationError(f"name must be a name that no study has, got {new_name!r}")


@contextmanager
def _opened(storage: str, database: str | None) -> Iterator[Database]:
    place = None if database is None else from_folder(study_folder(), str(database))
    opened = Database(default_database(storage) if place is None else place, create=False)
    try:
        yield opened
    finally:
        opened.close()


def _idle(database: Database, name: str) -> StudyRow:
    """Return the row of a study; refuse one that is not there, or that a driver runs."""
    row = database.study(name)
    if row is None:
        raise ConfigurationError(unknown("study", name, [each.name for each in database.studies()]))
    run = database.last_run(row.id)
    if run is not None and (driver := driver_of(run, time.time())).is_alive:
        raise ConfigurationError(
            f"study {name!r} must not run: its driver is process {driver.pid} on {driver.host}; "
            "end it first"
        )
    return row


def _has_drivers(store: CheckpointStore) -> bool:
    """Return whether drivers of any study use the store now."""
    try:
        leases = Leases(store.files)
        holders = leases.holders()
        now = store.time() if holders else 0.0
        return any(driver.is_live(now) for driver in leases.drivers(holders))
    except OSError as error:
        raise StorageError(f"cannot read leases from {store.url}: {error}") from error


def _is_recent(holding: Holding) -> bool:
    return time.time() - max(holding.written, holding.used) < GRACE


def _discard(store: CheckpointStore, database: Database, keys: list[str]) -> None:
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-rm") as pool:
        list(pool.map(store.discard, keys))
    database.forget_checkpoints(keys)


def _nbytes(holdings: Iterable[Holding]) -> int:
    return sum(holding.nbytes for holding in holdings)
