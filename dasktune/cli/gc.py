"""Making room in a store by hand: what goes, what stays, and why, one line each."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial

from dasktune._driver.history import record_of
from dasktune._driver.retention.listing import StoreListing, list_store, remove_orphan
from dasktune._driver.retention.value import ENOUGH, StateValues, StoreValues, mark
from dasktune._engine.timeouts import STALE_SECONDS
from dasktune._engine.trials import TrialRecord
from dasktune._results.keep import keep_of, kept_keys
from dasktune._results.rows import alone_key_of, objective_of, register, seeded_roots_of
from dasktune._study.emptied_store import forget_missing_states
from dasktune._words import counted
from dasktune.cli.ls import Places
from dasktune.errors import ConfigurationError, StorageError, refuse
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.report.formats import duration, percent, printable
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.leases import Leases
from dasktune.storage.redaction import redacted
from dasktune.storage.retention import (
    GRACE,
    Keep,
    State,
    bytes_of,
    evictions,
    retention_problems,
    size_text,
)
from dasktune.trainer.fingerprint.fingerprint import is_outdated
from dasktune.types import Step

OTHER_RULE = "its fingerprint was taken by another rule, so nothing is trained from it"
"""Reason for a state that only reads, exports and reports of its study use."""

THREADS = 8
"""Removals at a time."""

_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of one garbage collection of a store; without `removes` it only looks."""

    store: str
    database: str | None
    """Without one, states are told apart by their age alone."""
    budget: int | None = None
    """Bytes; None keeps all checkpoints."""
    keep: Keep | None = None
    """The states that every study keeps; None leaves the choice to each study."""
    grace: float = GRACE
    """Seconds for which new checkpoints, uploads and leases stay."""
    removes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GcChoice:
    """The decision to remove or keep one part of a store, and its reason."""

    goes: bool
    kind: str
    """``checkpoint``, ``upload`` (without a commit), ``commit`` (without data), ``lease``, or
    ``file`` (of a dead process)."""
    name: str
    """Key of the state, or path of the file."""
    attempt: str | None = None
    study: str | None = None
    trial: int | None = None
    step: Step = -1
    nbytes: int = 0
    seconds: float | None = None
    """Seconds that it takes to train it again."""
    reason: str

    def __str__(self) -> str:
        where = "" if self.study is None else f" {self.study}/{self.trial}"
        step = "" if self.step < 0 else f" step {self.step:,}"
        cost = "" if self.seconds is None else f", {duration(self.seconds)} to train again"
        verdict = "goes " if self.goes else "stays"
        amount = f" {size_text(self.nbytes)}" if self.nbytes else ""
        what = f"{self.kind} {self.name}{where}{step}{amount}{cost}"
        return printable(f"{verdict} {what}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The result of a garbage collection: the choices of what goes come first, in order."""

    request: Request
    choices: tuple[GcChoice, ...]
    failures: tuple[str, ...] = ()
    """The errors of failed removals, in words."""

    @property
    def before(self) -> int:
        """Bytes in the store before."""
        return sum(choice.nbytes for choice in self.choices)

    @property
    def freed(self) -> int:
        """Bytes that go."""
        return sum(choice.nbytes for choice in self.choices if choice.goes)

    @property
    def excess(self) -> int:
        """Bytes by which what stays is over the budget; 0 if it is not."""
        if self.request.budget is None:
            return 0
        return max(0, self.before - self.freed - self.request.budget)

    @property
    def is_done(self) -> bool:
        """Whether the store is under its budget, and nothing failed."""
        return not self.failures and not self.excess

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return {
            "store": redacted(self.request.store),
            "budget": self.request.budget,
            "dry_run": not self.request.removes,
            "nbytes_before": self.before,
            "nbytes_freed": self.freed,
            "nbytes_over_budget": self.excess,
            "choices": [asdict(choice) for choice in self.choices],
            "failures": list(self.failures),
        }

    def __str__(self) -> str:
        shown = [choice for choice in self.choices if choice.goes or not self.request.removes]
        gone = sum(choice.goes for choice in self.choices)
        verb = "freed" if self.request.removes else "would free"
        stay = size_text(self.before - self.freed)
        parts = f"{size_text(self.before)} in {len(self.choices):,} parts"
        freed = f"{verb} {size_text(self.freed)} in {gone:,}, {stay} stay"
        lines = [
            *map(str, shown),
            *self.failures,
            f"{redacted(self.request.store)}: {parts}; {freed}",
        ]
        if unused := [choice for choice in self.choices if choice.reason == OTHER_RULE]:
            amount = size_text(sum(choice.nbytes for choice in unused))
            lines.append(
                f"{len(unused):,} checkpoints ({amount}) are of studies whose fingerprints were "
                "taken by another rule: no run uses them; give a budget to remove them"
            )
        if self.request.database is None:
            lines.append("no database: what studies want and keep is not known, only ages are")
        if self.excess:
            over, budget = size_text(self.excess), size_text(self.request.budget or 0)
            lines.append(
                f"that is {over} over the budget of {budget}: all that stays is in use or young"
            )
        return "\n".join(lines)


def seconds_of(text: str) -> float:
    """Return the seconds of a time span such as ``90s``, ``30m``, ``1.5h`` or ``2d``.

    Examples
    --------
    >>> seconds_of("1.5h"), seconds_of("0s"), seconds_of("0")
    (5400.0, 0.0, 0.0)
    """
    if text.strip() == "0":
        return 0.0
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"grace must be a time such as 90s, 30m, 1h or 2d, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def request_of(
    places: Places, *, budget: str | None, keep: str | None, grace: str, removes: bool
) -> Request:
    """Return the options that a command line gives; all their problems are raised at once."""
    problems = retention_problems(budget, "none" if keep is None else keep)
    try:
        seconds = seconds_of(grace)
    except ConfigurationError as error:
        problems += error.problems
    refuse(problems)
    return Request(
        store=places.store,
        database=places.database,
        budget=None if budget is None else bytes_of(budget),
        keep=None if keep is None else Keep.parse(keep),
        grace=seconds,
        removes=removes,
    )


def collect(request: Request, now: float | None = None) -> Collected:
    """Make room in a store, or say what would go; `now` is the time by all clocks, if given."""
    store = CheckpointStore(request.store)
    store.name()  # of no other folder, and of no later version, anything is removed
    store_now = _time_of(store, request) if now is None else now
    now = time.time() if now is None else now
    database = None if request.database is None else Database(request.database, create=False)
    try:
        times = {"now": now, "store_now": store_now, "grace": request.grace}
        listing = list_store(store, database, own=(), **times)
        if listing.dangling:
            # A listing takes a while: one that runs during a save may show the commit without data.
            again = list_store(store, database, own=(), **times)
            listing = replace(listing, dangling=listing.dangling & again.dangling)
        choices = [
            *_checkpoint_choices(listing, database, request, now),
            *_upload_choices(listing),
            *_lease_choices(store, request, store_now),
        ]
        choices.sort(key=lambda choice: not choice.goes)
        going = [choice for choice in choices if choice.goes]
        failures = _remove(store, database, going) if request.removes else []
    finally:
        if database is not None:
            database.close()
    return Collected(request=request, choices=tuple(choices), failures=tuple(failures))


def forget(places: Places) -> str:
    """Forget the listed checkpoints that a store lacks; return in words how many these are."""
    if places.database is None:
        raise ConfigurationError(
            "--emptied needs the database that lists the checkpoints, got only a store; type "
            "'dasktune gc DATABASE --storage STORE --emptied'"
        )
    database = Database(places.database, create=False)
    try:
        count = forget_missing_states(CheckpointStore(places.store), database)
    finally:
        database.close()
    forgotten = f"{counted(count, 'checkpoint')} missing here"
    return f"{redacted(places.store)}: the database has forgotten {forgotten}"


def _time_of(store: CheckpointStore, request: Request) -> float:
    """Return the time by the store's clock; who may not write only looks, by this machine's."""
    try:
        return store.time()
    except StorageError:
        if request.removes:
            raise
        return time.time()


# -------------------------------------------------------------------------- checkpoints


class _Appraisal:
    """The values of a store's states to all studies of a database, and why states stay."""

    def __init__(self, listing: StoreListing, request: Request, now: float) -> None:
        self._stored = listing.checkpoints
        self._request = request
        self._values = StoreValues(self._stored, now=now, grace=request.grace)
        self.users: dict[str, tuple[str, int]] = {}
        """A study, and its first trial that has the state on its way, by key."""
        self.reasons: dict[str, str] = {}
        """Reasons why states stay, by key."""
        self.unused: set[str] = set()
        """Keys of studies whose fingerprints were taken by another rule."""
        self._now = now

    def add_studies(self, database: Database) -> None:
        """Add what the studies of a database want and keep."""
        steps = {key: state.step for key, state in self._stored.items()}
        for row in database.studies():
            trials = {trial.number: record_of(trial) for trial in database.trials(row.id)}
            view = _view_of(row, trials.values(), database)
            places = mark(view.plan, steps)
            first: dict[Node, int] = {}
            for number in sorted(view.plan.paths):
                for node in view.plan.nodes_of(number):
                    first.setdefault(node, number)
            for key, (node, _) in places.items():
                self.users.setdefault(key, (row.name, first[node]))
            if is_outdated(row.spec):
                self.unused.update(places)
            else:
                values = StateValues(view, trials, objective_of(row.spec))
                for state in self._values.add(values, places):
                    if state.chance >= ENOUGH:
                        self._hold(state.key, f"{row.name} goes on from it")
            keep = keep_of(database, row.id) if self._request.keep is None else self._request.keep
            for key in kept_keys(database, row, keep):
                self._hold(key, f"{row.name} keeps {keep}")

    def states(self) -> dict[str, State]:
        """Return all states with their values, by key."""
        for key, stored in self._stored.items():
            if self._now - stored.used < self._request.grace:
                self._hold(key, f"younger than {duration(self._request.grace)}")
        self._values.hold(self.reasons)
        return {state.key: state for state in self._values.states()}

    def _hold(self, key: str, reason: str) -> None:
        if key in self._stored:
            self.reasons.setdefault(key, reason)


def _view_of(row: StudyRow, trials: Iterable[TrialRecord], database: Database) -> RunView:
    """Return the view of a study at rest, with its trials and the measured time of its steps."""
    options = DispatchOptions(merge=bool(row.spec.get("merge")))
    dispatcher = Dispatcher(
        row.root, options, seeded=seeded_roots_of(row), alone_key=alone_key_of(row)
    )
    for trial in trials:
        if trial.was_trained_here:
            register(dispatcher.plan, trial, trial.max_steps)
    steps, seconds = 0, 0.0
    for stage in database.stages(row.id):
        if stage.ended is not None and stage.started:
            steps += stage.steps
            seconds += stage.ended - stage.started
    first = next(iter(dispatcher.plan.paths), None)
    if first is not None and steps and seconds > 0:
        dispatcher.measure(first, 1, steps=steps, seconds=seconds)
    return RunView(dispatcher)


def _checkpoint_choices(
    listing: StoreListing, database: Database | None, request: Request, now: float
) -> Iterator[GcChoice]:
    """Yield a choice for each checkpoint; those that go in their order."""
    appraisal = _Appraisal(listing, request, now)
    if database is not None:
        appraisal.add_studies(database)
    states = appraisal.states()
    total = sum(state.nbytes for state in states.values()) + sum(listing.unfinished.values())
    excess = 0 if request.budget is None else total - request.budget
    going = {state.key: state for state in evictions(states.values(), excess)}
    for key in [*going, *sorted(states.keys() - going.keys())]:
        state, stored = going.get(key, states[key]), listing.checkpoints[key]
        study, trial = appraisal.users.get(key, (None, None))
        reason = f"{percent(state.chance, 1)} likely to be asked for"
        if key in appraisal.unused:
            reason = OTHER_RULE
        elif study is None:
            reason += f": of no study here, used {duration(max(0.0, now - stored.used))} ago"
        yield GcChoice(
            goes=key in going,
            kind="checkpoint",
            name=key,
            attempt=stored.attempt,
            study=study,
            trial=trial,
            step=stored.step,
            nbytes=stored.nbytes,
            seconds=state.seconds,
            reason=appraisal.reasons.get(key) or reason,
        )


# --------------------------------------------------------------------------------- rest


def _upload_choices(listing: StoreListing) -> Iterator[GcChoice]:
    """Yield a choice for each upload or commit alone, and for each file of a dead process."""
    dead = Counter(key for key, _ in listing.orphans)
    for key, attempt in listing.orphans:
        yield GcChoice(
            goes=True,
            kind="upload",
            name=key,
            attempt=attempt,
            nbytes=listing.unfinished.get(key, 0) // dead[key],
            reason="it never came to a commit, and its time is over",
        )
    for path in listing.leftovers:
        yield GcChoice(
            goes=True, kind="file", name=path, reason="a process that died long ago has left it"
        )
    for key in sorted(listing.dangling):
        yield GcChoice(goes=True, kind="commit", name=key, reason="its data are gone")
    for key in sorted(listing.unfinished.keys() - dead.keys()):
        yield GcChoice(
            goes=False,
            kind="upload",
            name=key,
            nbytes=listing.unfinished[key],
            reason="it may be under way",
        )


def _lease_choices(store: CheckpointStore, request: Request, now: float) -> Iterator[GcChoice]:
    """Yield a choice for the leases of each dead driver, and for old files of any driver.

    All their times are by the store's clock, and so is `now`.
    """
    try:
        leases = Leases(store.files)
        drivers = leases.drivers(leases.holders())
        entries = [
            entry
            for folder in (layout.DRIVERS, layout.SAVE_REQUESTS, *layout.EARLIER)
            for entry in store.files.entries(folder)
        ]
    except OSError as error:
        raise StorageError(f"cannot read leases from {store.url}: {error}") from error
    for driver in drivers:
        if now - driver.expires > request.grace:
            path = layout.driver_path(driver.holder)
            yield GcChoice(goes=True, kind="lease", name=path, reason="its driver ended long ago")
    # A driver's file that cannot be read is of another version, or damaged.
    kept = {layout.driver_path(each.holder) for each in drivers}
    kept |= {layout.save_request_path(each.holder) for each in drivers if each.is_live(now)}
    oldest = now - max(request.grace, STALE_SECONDS)
    for entry in entries:
        if 0 < entry.modified < oldest and entry.path not in kept:
            yield GcChoice(goes=True, kind="lease", name=entry.path, reason="it is of an old run")


def _remove(
    store: CheckpointStore, database: Database | None, choices: Sequence[GcChoice]
) -> list[str]:
    """Remove the parts of these choices; return the errors of failed removals, in words."""
    jobs: list[Callable[[], object]] = []
    files: list[str] = []
    commits: list[str] = []
    for choice in choices:
        if choice.kind in ("checkpoint", "commit"):
            jobs.append(partial(store.discard, choice.name, attempt=choice.attempt))
            commits.append(choice.name)
        elif choice.kind == "upload":
            jobs.append(partial(remove_orphan, store, choice.name, str(choice.attempt)))
        else:
            files.append(choice.name)
    if files:
        jobs.append(partial(store.files.remove_files, files))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="dasktune-gc") as pool:
        failures = [text for text in pool.map(_attempted, jobs) if text]
    if database is not None:
        database.forget_checkpoints(commits)
    return failures


def _attempted(work: Callable[[], object]) -> str:
    """Call `work`; return its error in words, empty without an error."""
    try:
        work()
    except (StorageError, OSError) as error:
        return f"could not be removed: {error}"
    return ""
