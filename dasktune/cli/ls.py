"""A listing of the stored checkpoints, by study or one by one, read from store and database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dasktune._results.inventory import Holding, Inventory, Shelf, take_inventory
from dasktune._study.config import default_database
from dasktune._words import counted
from dasktune.cli.results import table
from dasktune.cli.status import DATABASES, check_exists
from dasktune.cli.study_file import config_in
from dasktune.errors import ConfigurationError, CorruptRecordError, refuse, unknown
from dasktune.report.formats import duration, percent, printable
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.leases import Lease
from dasktune.storage.redaction import redacted
from dasktune.storage.retention import size_text

MOST_TRIALS = 5
"""Trials of a checkpoint that are named."""

MOST_LEASES = 5
"""Leases that are named."""

NONE = "—"

LEGEND = "used: a trial last went on from one; shared: other studies use these checkpoints, too"
"""The columns of studies that their names alone do not explain."""

SORTS: Mapping[str, tuple[Callable[[Shelf], Any], Callable[[Holding], Any]]] = {
    "study": (
        lambda shelf: shelf.name,
        lambda holding: (not holding.owners, sorted(holding.owners), holding.step, holding.key),
    ),
    "size": (lambda one: (-one.nbytes, one.name), lambda one: (-one.nbytes, one.key)),
    "cost": (
        lambda shelf: (-shelf.seconds, shelf.name),
        lambda holding: (holding.seconds is None, -(holding.seconds or 0.0), holding.key),
    ),
    "age": (lambda one: (one.written, one.name), lambda one: (one.written, one.key)),
}
"""Keys that sort studies and checkpoints: the largest, dearest or oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The store to list, its database if there is one, and a study if only one is meant."""

    store: str
    database: str | None
    study: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The part of an inventory that is shown, and its order.

    Parameters
    ----------
    sort
        One of `SORTS`.
    limit
        Most rows; None shows all.
    """

    checkpoints: bool = False
    sort: str = "study"
    limit: int | None = None

    def __post_init__(self) -> None:
        refuse([unknown("sort", self.sort, SORTS)] if self.sort not in SORTS else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The contents of a store, ready to be shown.

    Parameters
    ----------
    inventory
        All checkpoints, uploads and leases of the store.
    view
        The part of it that is shown.
    now
        When the inventory was taken (epoch seconds).
    """

    places: Places
    inventory: Inventory
    view: View
    now: float

    @property
    def shelves(self) -> list[Shelf]:
        """The stored checkpoints by study, in order."""
        name = self.places.study
        shelves = [shelf for shelf in self.inventory.shelves() if name in (None, shelf.name)]
        return sorted(shelves, key=SORTS[self.view.sort][0])

    @property
    def holdings(self) -> list[Holding]:
        """The checkpoints that are meant, in order."""
        name = self.places.study
        holdings = [
            holding for holding in self.inventory.holdings if name is None or name in holding.owners
        ]
        return sorted(holdings, key=SORTS[self.view.sort][1])

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document; times are epoch seconds."""
        inventory = self.inventory
        shown: dict[str, object] = {
            "store": redacted(self.places.store),
            "database": self.places.database and redacted(self.places.database),
            "studies": [asdict(shelf) for shelf in self.shelves[: self.view.limit]],
        }
        if self.view.checkpoints:
            shown["checkpoints"] = [asdict(holding) for holding in self.holdings[: self.view.limit]]
        return {
            **shown,
            "total": _figures(inventory.holdings),
            "of_other_databases": _figures(inventory.strangers),
            "unfinished_nbytes": inventory.unfinished,
            "gone": inventory.gone,
            "leases": [lease.to_json() for lease in inventory.leases],
        }

    def __str__(self) -> str:
        rows = self._checkpoint_rows() if self.view.checkpoints else self._study_rows()
        shown = rows[: None if self.view.limit is None else self.view.limit + 1]
        lines = table([*map(str, shown[0])], shown[1:]) if len(rows) > 1 else []
        if len(shown) < len(rows):
            lines.append(f"and {len(rows) - len(shown):,} more")
        if lines and self.places.database is not None and not self.view.checkpoints:
            lines += ["", LEGEND]
        return "\n".join([*lines, *([""] if lines else []), *self._totals()])

    def _study_rows(self) -> list[list[object]]:
        knows = self.places.database is not None
        head = ["study", "trials"] if knows else ["trained with"]
        head += ["checkpoints", "size", "training", "written", *(["used", "shared"] * knows)]
        rows: list[list[object]] = [[*head]]
        for shelf in self.shelves:
            written = self._ago(shelf.written)
            row = [shelf.name, *([f"{shelf.trials:,}"] if knows else []), f"{shelf.checkpoints:,}"]
            row += [size_text(shelf.nbytes), duration(shelf.seconds), written]
            if knows:
                shared = percent(shelf.shared, shelf.checkpoints)
                row += [
                    self._ago(shelf.used),
                    f"{shelf.shared:,} ({shared})" if shelf.shared else NONE,
                ]
            rows.append([*row])
        return rows

    def _checkpoint_rows(self) -> list[list[object]]:
        first = "study: trials" if self.places.database is not None else "trained with"
        rows: list[list[object]] = [[first, "step", "size", "training", "written", "key"]]
        for holding in self.holdings:
            seconds = NONE if holding.seconds is None else duration(holding.seconds)
            owners = "; ".join(map(_owner, holding.owners.items())) or NONE
            written = self._ago(holding.written)
            rows.append(
                [
                    owners,
                    f"{holding.step:,}",
                    size_text(holding.nbytes),
                    seconds,
                    written,
                    holding.key,
                ]
            )
        return rows

    def _totals(self) -> list[str]:
        inventory, database = self.inventory, self.places.database
        lines = [f"{redacted(self.places.store)}: {_in_words(inventory.holdings)}"]
        if database is None:
            lines.append("no database: states are told apart by what they were trained with")
        elif inventory.strangers:
            lines.append(f"of other databases: {_in_words(inventory.strangers)}")
        lines += [
            printable(f"{each}; which checkpoints it uses is unknown")
            for each in inventory.unreadable
        ]
        if inventory.unfinished:
            text = size_text(inventory.unfinished)
            lines.append(f"of uploads that did not finish, or are under way: {text}")
        if inventory.gone:
            lines.append(f"known and not stored any more: {counted(inventory.gone, 'checkpoint')}")
        if inventory.leases:
            lines.append(f"being trained now: {_leases(inventory.leases)}")
        return lines

    def _ago(self, when: float) -> str:
        return f"{duration(max(0.0, self.now - when))} ago" if when else NONE


def read(places: Places, view: View) -> Listing:
    """Return the contents of a store; nothing is made or changed but the file that tells its time.

    Raises
    ------
    ConfigurationError
        If the database has no study of that name.
    StorageError
        If store or database cannot be read.
    """
    database = None if places.database is None else Database(places.database, create=False)
    now = time.time()
    try:
        store = CheckpointStore(places.store)
        store.name()
        inventory = take_inventory(store, database, opens=view.checkpoints)
    finally:
        if database is not None:
            database.close()
    known = [shelf.name for shelf in inventory.shelves()]
    is_only = len(inventory.trials) == 0
    problems = [each for each in inventory.unreadable if is_only or each.study == places.study]
    if problems:
        raise CorruptRecordError("\n".join(map(str, problems)))
    if places.study is not None and places.study not in known:
        raise ConfigurationError(unknown("study", places.study, known))
    return Listing(places=places, inventory=inventory, view=view, now=now)


def places_of(
    target: str,
    *,
    storage: str | None = None,
    database: str | None = None,
    study: str | None = None,
    settings: Sequence[str] = (),
) -> Places:
    """Return the store, database and study that a target means.

    Parameters
    ----------
    target
        A study file, a storage folder or URL, or a database's file or URL.
    storage, database
        URLs that replace the default ones of the target.
    study
        The only study to look at; all of the database if None, or the file's own.
    settings
        As for `dasktune.cli.study_file.load`, if the target is a study file.

    Raises
    ------
    ConfigurationError
        If the target is of another kind, or the place of its store is unknown.
    """
    path = Path(target)
    if path.suffix == ".py":
        config = config_in(path, settings)
        return Places(
            store=storage or config.store_url,
            database=database or config.database_url,
            study=study or config.name,
        )
    if settings:
        raise ConfigurationError(f"config is for a study file, got {target!r}")
    if _is_database(target):
        store = storage or _store_beside(target)
        return Places(store=store, database=target, study=study)
    if "://" not in target:
        check_exists(target)
    return Places(store=target, database=database or _database_beside(target), study=study)


def _is_database(target: str) -> bool:
    if "://" in target:
        return target.partition(":")[0].partition("+")[0] in DATABASES
    return Path(target).is_file()


def _store_beside(database: str) -> str:
    """Return the store that a SQLite file lies in."""
    folder = Path(database).parent
    if "://" in database or not (folder / layout.MARKER).is_file():
        raise ConfigurationError(
            f"{redacted(database)} does not lie in a store; say where that is: --storage"
        )
    return str(folder)


def _database_beside(store: str) -> str | None:
    """Return the default database of a store if its file exists, or None."""
    url = default_database(store)
    return url if "://" not in url and Path(url).is_file() else None


def _figures(holdings: Sequence[Holding]) -> dict[str, object]:
    return {
        "checkpoints": len(holdings),
        "nbytes": sum(holding.nbytes for holding in holdings),
        "seconds": sum(holding.seconds or 0.0 for holding in holdings),
    }


def _in_words(holdings: Sequence[Holding]) -> str:
    nbytes = sum(holding.nbytes for holding in holdings)
    text = f"{counted(len(holdings), 'checkpoint')}, {size_text(nbytes)}"
    seconds = [holding.seconds for holding in holdings if holding.seconds is not None]
    return f"{text}, {duration(sum(seconds))} of training" if seconds else text


def _owner(item: tuple[str, Sequence[int]]) -> str:
    """Return a study with its trials, in words."""
    study, trials = item
    if not trials:
        return study
    named = ", ".join(map(str, trials[:MOST_TRIALS]))
    more = f" and {len(trials) - MOST_TRIALS} more" if len(trials) > MOST_TRIALS else ""
    return f"{study}: {named}{more}"


def _leases(leases: Sequence[Lease]) -> str:
    named = ", ".join(
        f"steps {lease.start:,} to {lease.stop:,} by {printable(lease.holder)}"
        for lease in leases[:MOST_LEASES]
    )
    more = f" and {len(leases) - MOST_LEASES} more" if len(leases) > MOST_LEASES else ""
    return f"{named}{more}"
