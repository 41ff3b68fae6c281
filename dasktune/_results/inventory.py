"""The inventory of a checkpoint store, and the trials that use each checkpoint.

The store is listed once; all else comes from the database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dasktune._driver.history import record_of
from dasktune._driver.retention.listing import COMMIT_NBYTES
from dasktune._driver.retention.value import keys_on
from dasktune._garbage import without_collections
from dasktune._results.rows import plan_of, register
from dasktune.errors import CorruptRecordError, StorageError
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.checkpoints import CheckpointStore, Commit, Stored
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import CheckpointRow, StudyRow, TrialRow, UnreadableStudy
from dasktune.storage.files.clock import store_clock
from dasktune.storage.leases import Lease, Leases
from dasktune.types import Step

Owners = Mapping[str, tuple[int, ...]]
"""Numbers of trials by study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A checkpoint in the store.

    Parameters
    ----------
    key, step
        Key and step of its state.
    nbytes
        Bytes in the store, counted as for a budget: those of the state and of its commit.
    seconds
        Training time since the checkpoint before it; None if unknown.
    written, used
        When it was written and last used (epoch seconds); 0 if unknown.
    owners
        Trials whose path it lies on, by study; a study without such trials had one that ended
        before it. Without a database, the software that trained it in place of a study.
    """

    key: str
    step: Step
    nbytes: int
    seconds: float | None
    written: float
    used: float = 0.0
    owners: Owners = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The checkpoints of a study.

    Parameters
    ----------
    name
        The study's; without a database, the software that trained the states.
    trials
        Number of its trials.
    checkpoints, nbytes, seconds, written, used
        Number of its checkpoints; sums and latest times over them.
    shared
        Number of checkpoints that other studies use, too.
    """

    name: str
    trials: int
    checkpoints: int
    nbytes: int
    seconds: float
    written: float
    used: float
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The content of a store.

    Parameters
    ----------
    trials
        Number of trials by study, oldest study first.
    unfinished
        Bytes of uploads without a commit: their workers died, or still write.
    gone
        Number of checkpoints in the database that the store does not have.
    leases
        Leases of the steps that are in training now.
    roots
        Names of the studies that have a root, by root; of a study whose trials have several seeds,
        each is a root.
    unreadable
        The studies that cannot be read: which states they use is unknown.
    """

    holdings: tuple[Holding, ...]
    trials: Mapping[str, int]
    unfinished: int
    gone: int
    leases: tuple[Lease, ...]
    roots: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unreadable: tuple[UnreadableStudy, ...] = ()

    @property
    def strangers(self) -> list[Holding]:
        """The checkpoints that no known study uses."""
        return [holding for holding in self.holdings if not holding.owners]

    def shelves(self) -> list[Shelf]:
        """Return the checkpoints by study, oldest first, then by the software that trained them."""
        by_name: dict[str, list[Holding]] = {name: [] for name in self.trials}
        for holding in self.holdings:
            for name in holding.owners:
                by_name.setdefault(name, []).append(holding)
        return [
            Shelf(
                name=name,
                trials=self.trials.get(name, 0),
                checkpoints=len(held),
                nbytes=sum(holding.nbytes for holding in held),
                seconds=sum(holding.seconds or 0.0 for holding in held),
                written=max((holding.written for holding in held), default=0.0),
                used=max((holding.used for holding in held), default=0.0),
                shared=sum(len(holding.owners) > 1 for holding in held),
            )
            for name, held in by_name.items()
        ]


def take_inventory(
    store: CheckpointStore, database: Database | None, *, opens: bool = False
) -> Inventory:
    """Return the inventory of a store, with the trials that use each checkpoint.

    The store is listed once. Commits of states with a row in the database are not opened, but by
    the listing if the states lie in them. `opens` opens those of states that no study knows;
    without a database, every commit is opened.

    Raises
    ------
    StorageError
        If store or database cannot be read.
    """
    stored = list(store.inventory())
    there = {each.key: each for each in stored if each.is_committed and each.attempts}
    rows = {} if database is None else {row.key: row for row in database.storage_rows()}
    unrecorded = {key: each.step for key, each in there.items() if key not in rows}
    owners, trials, roots, unreadable = (
        ({}, {}, {}, ()) if database is None else _owners(database, rows, unrecorded)
    )
    reads = opens or database is None
    commits = store.commits(
        key for key in unrecorded if reads or key in owners or len(there[key].attempts) > 1
    )
    if database is None:
        owners = {key: {_trained_with(commits.get(key)): ()} for key in there}
    holdings = tuple(
        _holding(each, rows.get(key), commits.get(key), owners.get(key, {}))
        for key, each in there.items()
    )
    total = sum(each.nbytes for each in stored)
    return Inventory(
        holdings=holdings,
        trials=trials,
        unfinished=total - sum(holding.nbytes - COMMIT_NBYTES for holding in holdings),
        gone=len(rows.keys() - there.keys()),
        leases=tuple(_leases(store)),
        roots=roots,
        unreadable=tuple(unreadable),
    )


def _holding(
    stored: Stored, row: CheckpointRow | None, commit: Commit | None, owners: Owners
) -> Holding:
    """Return a checkpoint from its listing, its database row and its commit."""
    known = commit if row is None else row
    last = max(stored.attempts.values(), key=lambda attempt: attempt[1])
    nbytes, written = last if known is None else stored.attempts.get(known.attempt, last)
    return Holding(
        key=stored.key,
        step=stored.step if known is None else known.step,
        nbytes=nbytes + COMMIT_NBYTES,
        seconds=None if known is None else known.seconds,
        written=written,
        used=0.0 if row is None else row.used,
        owners=owners,
    )


def _trained_with(commit: Commit | None) -> str:
    """Return the software and device that trained a state, in words."""
    if commit is None:
        return "(commit cannot be read)"
    names = (("python", "Python"), ("numpy", "NumPy"), ("torch", "torch"))
    software = [
        f"{word} {commit.environment[name]}" for name, word in names if commit.environment.get(name)
    ]
    text = ", ".join([*software, str(commit.environment.get("device", "(unknown device)"))])
    # Anyone may have written it, and a terminal shows it.
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _leases(store: CheckpointStore) -> list[Lease]:
    """Return the leases of the steps that are in training now.

    The clock of the store decides, as it does for drivers. It is asked by a file that is written,
    and so only if there are such leases, of drivers that may have died.
    """
    try:
        leases = Leases(store.files)
        listed = [
            (driver, lease)
            for driver in leases.drivers(leases.holders())
            for lease in driver.leases
            if not (lease.is_done or lease.is_asked)
        ]
        now = store_clock(store.files)() if listed else 0.0
    except OSError as error:
        raise StorageError(f"cannot read leases from {store.url}: {error}") from error
    return [lease for driver, lease in listed if driver.is_live(now)]


# ------------------------------------------------------------- the trials that use states


class _Known:
    """Keys of states by step."""

    def __init__(self, states: Iterable[tuple[str, Step]]) -> None:
        self.keys: dict[Step, set[str]] = defaultdict(set)
        for key, step in states:
            self.keys[step].add(key)
        self.steps = sorted(self.keys)

    def on(self, node: Node) -> Iterator[str]:
        """Yield the keys of the states on a node."""
        return (key for step, key in keys_on(node, self.steps) if key in self.keys[step])


@without_collections()
def _owners(
    database: Database, rows: Mapping[str, CheckpointRow], unrecorded: Mapping[str, Step]
) -> tuple[
    dict[str, dict[str, tuple[int, ...]]],
    dict[str, int],
    dict[str, frozenset[str]],
    list[UnreadableStudy],
]:
    """Return the trials that use each state, by key; each study's trials; and studies by root.

    The last part of the result are the studies that cannot be read.

    The root of states without a row is unknown: they may lie on the path of any study.
    """
    by_root: dict[str, list[tuple[str, Step]]] = defaultdict(list)
    for row in rows.values():
        by_root[row.root].append((row.key, row.step))
    known = {root: _Known(states) for root, states in by_root.items()}
    others = _Known(unrecorded.items())
    owners: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    trials: dict[str, int] = {}
    roots: dict[str, set[str]] = defaultdict(set)
    studies, unreadable = database.readable_studies()
    for study in studies:
        try:
            plan, trials[study.name] = _planned(study, database.trials(study.id))
        except CorruptRecordError as error:
            problem = UnreadableStudy(study=study.name, problem=str(error), id=study.id)
            unreadable.append(problem)
            continue
        for key, numbers in _uses(plan, known, others).items():
            owners[key][study.name] = tuple(numbers)
        for root in (plan.root_key, *map(plan.root_key_of, plan.roots)):
            roots[root].add(study.name)
    for key, row in rows.items():
        if key not in owners:
            owners[key] = dict.fromkeys(sorted(roots[row.root]), ())
    return owners, trials, {root: frozenset(names) for root, names in roots.items()}, unreadable


def _planned(study: StudyRow, rows: Iterable[TrialRow]) -> tuple[SearchPlan, int]:
    """Return a plan with the requested steps of a study's trials, and the number of trials."""
    count = 0
    plan = plan_of(study)
    for trial in map(record_of, rows):
        count += 1
        until = max(trial.steps, trial.until or 0)
        if until and trial.was_trained_here:
            register(plan, trial, until)
    return plan, count


def _uses(plan: SearchPlan, known: Mapping[str, _Known], others: _Known) -> dict[str, list[int]]:
    """Return the trials whose path each known state lies on, by its key."""
    on = {node: list(others.on(node)) for node in plan}
    for node, keys in on.items():
        root = plan.root_key_of(node)
        if root in known:
            keys += known[root].on(node)
    uses: dict[str, list[int]] = defaultdict(list)
    for number in sorted(plan.paths):
        for node in plan.nodes_of(number):
            for key in on.get(node, ()):
                uses[key].append(number)
    return uses
