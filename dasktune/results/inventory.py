"""What lies in a checkpoint store, and whom it serves: one listing, the rest from the database."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dasktune.engine.trials import TrialRecord
from dasktune.errors import StorageError
from dasktune.graph.plan import Node, SearchPlan
from dasktune.results.results import seeded_key_of
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit, Stored
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import CheckpointRow, StudyRow, TrialRow
from dasktune.storage.leases import Lease
from dasktune.types import Step

LEASE_AGE = 3600.0
"""Seconds after which a lease that was not renewed is not even read: renewals come every few."""

Owners = Mapping[str, tuple[int, ...]]
"""Numbers of trials by study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A checkpoint in the store.

    Parameters
    ----------
    key, step
        Of its state.
    nbytes
        What it takes in the store.
    seconds
        Training time since the checkpoint before it; None if that was not looked up.
    written, used
        When it was written, and found again last (epoch seconds); 0 if that is not known.
    owners
        Trials on whose way it lies, by study; a study without any had one that was ended
        before it. Where no database tells, what it was trained with in place of a study.
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
    """What is stored of one study.

    Parameters
    ----------
    name
        The study's; what states were trained with, where no database tells.
    trials
        How many trials it has.
    checkpoints, nbytes, seconds, written, used
        Number of its checkpoints; sums and latest times of theirs.
    shared
        How many of them serve other studies, too.
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
    """What lies in a store.

    Parameters
    ----------
    holdings
        All checkpoints.
    trials
        Number of trials by study, oldest study first.
    unfinished
        Bytes of uploads that did not come to a commit: their workers died, or still write.
    gone
        How many checkpoints the database knows that do not lie in the store.
    leases
        Steps that somebody trains at this time.
    """

    holdings: tuple[Holding, ...]
    trials: Mapping[str, int]
    unfinished: int
    gone: int
    leases: tuple[Lease, ...]

    @property
    def strangers(self) -> list[Holding]:
        """The checkpoints that no study serves from, as far as is known."""
        return [one for one in self.holdings if not one.owners]

    def shelves(self) -> list[Shelf]:
        """Return what is stored by study, oldest first, then by what states were trained with."""
        by_name: dict[str, list[Holding]] = {name: [] for name in self.trials}
        for one in self.holdings:
            for name in one.owners:
                by_name.setdefault(name, []).append(one)
        return [
            Shelf(
                name=name,
                trials=self.trials.get(name, 0),
                checkpoints=len(held),
                nbytes=sum(one.nbytes for one in held),
                seconds=sum(one.seconds or 0.0 for one in held),
                written=max((one.written for one in held), default=0.0),
                used=max((one.used for one in held), default=0.0),
                shared=sum(len(one.owners) > 1 for one in held),
            )
            for name, held in by_name.items()
        ]


def take_inventory(
    store: CheckpointStore, database: Database | None, now: float, *, opens: bool = False
) -> Inventory:
    """Return what lies in a store, and whom it serves.

    Parameters
    ----------
    store
        Is listed once. The commits of states that have a row in the database are not opened.
    database
        Where studies are recorded; without one, every commit is opened for what it says.
    now
        The time (epoch seconds).
    opens
        Also open the commits of states that no study of the database knows.

    Raises
    ------
    StorageError
        If store or database cannot be read.
    """
    stored = list(store.inventory())
    there = {one.key: one for one in stored if one.is_committed and one.attempts}
    rows = {} if database is None else {row.key: row for row in database.storage_rows()}
    unrecorded = {key: one.step for key, one in there.items() if key not in rows}
    owners, trials = ({}, {}) if database is None else _owners(database, rows, unrecorded)
    reads = opens or database is None
    commits = store.commits(
        key for key in unrecorded if reads or key in owners or len(there[key].attempts) > 1
    )
    if database is None:
        owners = {key: {_trained_with(commits.get(key)): ()} for key in there}
    holdings = tuple(
        _holding(one, rows.get(key), commits.get(key), owners.get(key, {}))
        for key, one in there.items()
    )
    total = sum(one.nbytes for one in stored)
    return Inventory(
        holdings=holdings,
        trials=trials,
        unfinished=total - sum(one.nbytes for one in holdings),
        gone=len(rows.keys() - there.keys()),
        leases=tuple(_leases(store, now)),
    )


def _holding(
    one: Stored, row: CheckpointRow | None, commit: Commit | None, owners: Owners
) -> Holding:
    """Return a checkpoint from what listing, database and commit say of it."""
    known = commit if row is None else row
    last = max(one.attempts.values(), key=lambda found: found[1])
    nbytes, written = last if known is None else one.attempts.get(known.attempt, last)
    return Holding(
        key=one.key,
        step=one.step if known is None else known.step,
        nbytes=nbytes,
        seconds=None if known is None else known.seconds,
        written=written,
        used=0.0 if row is None else row.used,
        owners=owners,
    )


def _trained_with(commit: Commit | None) -> str:
    """Return what a state was trained with, in words."""
    if commit is None:
        return "(commit cannot be read)"
    names = (("python", "Python"), ("numpy", "NumPy"), ("torch", "torch"))
    found = [
        f"{word} {commit.environment[name]}" for name, word in names if commit.environment.get(name)
    ]
    text = ", ".join([*found, str(commit.environment.get("device", "(unknown device)"))])
    # It may be anyone's, and is shown in a terminal.
    return "".join(one if one.isprintable() else "?" for one in text)


def _leases(store: CheckpointStore, now: float) -> list[Lease]:
    """Return the leases that are held; parts of others are left out."""
    try:
        entries = store.files.entries(layout.LEASES)
        recent = [one.path for one in entries if not one.modified or now - one.modified < LEASE_AGE]
        contents = store.files.read("", recent)
    except OSError as error:
        raise StorageError(f"cannot read leases from {store.url}: {error}") from error
    found = (Lease.from_bytes(one.tobytes()) for one in contents if one is not None)
    return [one for one in found if one is not None and not one.of and one.is_held(now)]


# ------------------------------------------------------------------- whom states serve


class _Known:
    """States of one kind: keys by step."""

    def __init__(self, states: Iterable[tuple[str, Step]]) -> None:
        self.keys: dict[Step, set[str]] = defaultdict(set)
        for key, step in states:
            self.keys[step].add(key)
        self.steps = sorted(self.keys)

    def on(self, node: Node) -> Iterator[str]:
        """Yield the keys of those that lie on a node."""
        if node.parent is None:
            return
        first, last = bisect_right(self.steps, node.start), bisect_right(self.steps, node.stop)
        chain, at = node.parent.chain_at(node.start), node.start
        for step in self.steps[first:last]:
            chain, at = chain.advance(node.sequences, at, step), step
            if chain.key in self.keys[step]:
                yield chain.key


def _owners(
    database: Database, rows: Mapping[str, CheckpointRow], unrecorded: Mapping[str, Step]
) -> tuple[dict[str, dict[str, tuple[int, ...]]], dict[str, int]]:
    """Return whom each state serves, by key, and how many trials each study has.

    Of states without a row the root is not known: they may be on any study's way.
    """
    by_root: dict[str, list[tuple[str, Step]]] = defaultdict(list)
    for row in rows.values():
        by_root[row.root].append((row.key, row.step))
    known = {root: _Known(states) for root, states in by_root.items()}
    others = _Known(unrecorded.items())
    owners: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    trials: dict[str, int] = {}
    roots: dict[str, set[str]] = defaultdict(set)
    for study in database.studies():
        plan, trials[study.name] = _plan_of(study, database.trials(study.id))
        for key, numbers in _uses(plan, known, others).items():
            owners[key][study.name] = tuple(numbers)
        for root in (plan.root_key, *map(plan.root_key_of, plan.roots)):
            roots[root].add(study.name)
    for key, row in rows.items():
        if key not in owners:
            owners[key] = dict.fromkeys(sorted(roots[row.root]), ())
    return owners, trials


def _plan_of(study: StudyRow, rows: Iterable[TrialRow]) -> tuple[SearchPlan, int]:
    """Return a plan with a study's trials as far as they were asked to go, and their number."""
    count = 0
    plan = SearchPlan(
        study.root, merge=bool(study.spec.get("merge")), seeded_key=seeded_key_of(study)
    )
    for row in rows:
        count += 1
        trial = TrialRecord.from_json(
            row.record, number=row.number, state=row.state, steps=row.steps
        )
        until = max(trial.steps, trial.until or 0)
        if until and trial.was_trained_here:
            plan.register(trial.number, trial.sequences, until, trial.seed)
    return plan, count


def _uses(plan: SearchPlan, known: Mapping[str, _Known], others: _Known) -> dict[str, list[int]]:
    """Return the trials on whose way each known state lies, by its key."""
    on = {node: list(others.on(node)) for node in plan}
    for node, keys in on.items():
        root = plan.root_key_of(node)
        if root in known:
            keys += known[root].on(node)
    found: dict[str, list[int]] = defaultdict(list)
    for number in sorted(plan.paths):
        for node in plan.nodes_of(number):
            for key in on.get(node, ()):
                found[key].append(number)
    return found
