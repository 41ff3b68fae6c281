"""Stages shared with other drivers: a stage that another one trains is not trained here.

A stage is leased before it is sent to its worker. Where another driver holds the lease, the
engine receives that the stage is `Taken`: it stays in the plan as one that runs, until the
other driver's states are `Found` or its lease ends. States that other drivers ask for are saved
on the way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dasktune._driver.attempts import Reached, StateDurable
from dasktune._driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    SavesRequested,
)
from dasktune._driver.leases import Leasing
from dasktune._driver.parts import Following, News, Part
from dasktune._driver.recorder import Recorder
from dasktune._engine.trials import TrialRecord
from dasktune.graph.events import (
    Found,
    Progress,
    RunStage,
    SavePoint,
    Taken,
    TrainedElsewhere,
    TrainingEnded,
)
from dasktune.graph.plan import SearchPlan, nodes_along, shared_until
from dasktune.graph.view import RunView
from dasktune.storage.checkpoints import Commit
from dasktune.storage.leases import INVALID, Lease, LeaseMark, SaveRequest
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)


class NoSharing(Part):
    """Shares nothing: each stage is sent to its worker at once."""

    def start(self, order: RunStage) -> list[Following]:
        """Return the stage."""
        return [order]

    def want(self, trials: Iterable[TrialRecord]) -> None:
        """Do nothing."""

    def holders(self) -> list[str]:
        """Return no driver."""
        return []

    @property
    def holder(self) -> str:
        """The name under which the run holds leases: empty."""
        return ""

    def awaited(self) -> list[tuple[str, str]]:
        """Return no stage."""
        return []

    def unanswered(self) -> float | None:
        """Return None: no lease is asked for."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Wait:
    """A stage that another driver trains: the steps whose states were found, and open look-ups."""

    order: RunStage
    lease: Lease
    steps: set[Step] = field(default_factory=set)
    unanswered: int = 0


@dataclass(slots=True)
class _Passed:
    """The leases of drivers that have trained steps without saving them, and the last such step.

    This driver trains these steps again: its lease is on the first step after them.
    """

    step: Step
    leases: set[LeaseMark] = field(default_factory=set)


class SharedStages(Part):
    """Stands between a run's stages and the leases in its store."""

    def __init__(self, view: RunView, leasing: Leasing, recorder: Recorder) -> None:
        self._view = view
        self._leasing = leasing
        self._recorder = recorder
        self._asked: dict[str, tuple[RunStage, float]] = {}
        self._running: dict[str, RunStage] = {}
        self._waiting: dict[str, _Wait] = {}
        self._refused: set[str] = set()
        self._heeded: dict[str, set[LeaseMark]] = {}
        self._passed: dict[str, _Passed] = {}
        self._steps: dict[str, Step] = {}
        self._requested = MergedPaths()
        self._elsewhere = MergedPaths()
        self._wanted: dict[int, Step] = {}

    def start(self, order: RunStage) -> list[Following]:
        """Return the instructions for a stage; if its lease must be asked for, they come later.

        Leases are answered in the order of the stages: a worker that has only the second stage of a
        path would wait for the first stage for ever.
        """
        lease, heeded = self._lease_of(order)
        answer = None if self._asked else self._leasing.take(order.attempt, lease, heeded)
        if answer is not None:
            return self._decide(order, answer.other)
        self._asked[order.attempt] = order, time.monotonic()
        self._leasing.ask(order.attempt, lease, heeded)
        return []

    def _lease_of(self, order: RunStage) -> tuple[Lease, set[LeaseMark]]:
        """Return the lease that a stage needs, and the leases of others that do not stop it."""
        node, first = order.node, _first_key(order)
        passed = self._passed.get(first, _Passed(order.start))
        # No lease for a stage without steps, or with only such as others have trained, not saved.
        is_stuck = bool(passed.leases) and passed.step == order.start
        needs_none = passed.step >= order.stop or is_stuck
        lease = self._leasing.lease(
            key=node.key_at(min(passed.step + 1, order.stop)),
            first=node.lineage.key_at(min(1, order.stop)),
            sequences=node.sequences,
            start=order.start,
            stop=order.start if needs_none else order.stop,
            saves=order.saves,
        )
        return lease, self._heeded.get(first, set()) | passed.leases

    def reached(self, attempt: str, step: Step) -> None:
        """Record how far an attempt has come."""
        self._steps[attempt] = step
        self._leasing.reached(attempt, step)

    def saved(self, attempt: str, step: Step) -> None:
        """Show other drivers a state, if the attempt is leased."""
        if attempt in self._running:
            self._leasing.saved(attempt, step)

    def want(self, trials: Iterable[TrialRecord]) -> None:
        """Ask other drivers for the states that trials will need, once for each end."""
        requests: list[SaveRequest] = []
        for trial in trials:
            until = trial.until or trial.max_steps
            if trial.state.is_finished or self._wanted.get(trial.number, -1) >= until:
                continue
            self._wanted[trial.number] = until
            nodes = self._view.plan.nodes_of(trial.number)
            if nodes:
                root, ends = self._view.plan.root_key_of(nodes[0]), (until, trial.max_steps)
                sequences = trial.keyed_sequences
                requests.append(SaveRequest(root=root, sequences=sequences, ends=ends))
        self._leasing.want(requests)

    def turn(self, now: float) -> list[Following]:
        """Release the leases of attempts that have ended."""
        self._leasing.beat()
        attempts = self._view.attempts
        for attempt in [each for each in self._running if each not in attempts]:
            self._release(attempt)
        return []

    def holders(self) -> list[str]:
        """Return the driver of each stage that another one trains."""
        attempts = self._view.attempts
        return [
            waiting.lease.holder
            for attempt, waiting in self._waiting.items()
            if attempt in attempts
        ]

    @property
    def holder(self) -> str:
        """The name under which the run holds leases."""
        return self._leasing.holder

    def awaited(self) -> list[tuple[str, str]]:
        """Return the stages that other drivers train: who holds the lease, and its key."""
        attempts = self._view.attempts
        leases = (each.lease for name, each in self._waiting.items() if name in attempts)
        return sorted({(lease.holder, lease.key) for lease in leases})

    def unanswered(self) -> float | None:
        """Return the age in seconds of the oldest lease request without answer, or None."""
        oldest = next(iter(self._asked.values()), None)
        return None if oldest is None else time.monotonic() - oldest[1]

    def close(self) -> None:
        """Release all leases."""
        for attempt in list(self._running):
            self._release(attempt)
        self._leasing.close()

    def _release(self, attempt: str) -> None:
        order = self._running.pop(attempt)
        self._leasing.release(attempt, self._steps.pop(attempt, order.start))

    # ------------------------------------------------------------ messages

    def receive(self, news: News, now: float) -> list[Following]:
        """Return the events, stages and save-points that follow from a message of the leases.

        How far attempts have come, and which states they have saved, is shown to other drivers.
        """
        match news:
            case Reached():
                self.reached(news.attempt, news.step)
            case StateDurable():
                self.saved(news.attempt, news.commit.step)
            case LeaseAnswered():
                order, _ = self._asked.pop(news.attempt)
                return self._decide(order, news.other)
            case LeaseChanged():
                self._changed(news.attempt, news.lease)
            case CommitsFound():
                return self._looked_up(news.attempt, news.commits)
            case SavesRequested():
                return self._saves_requested(news.requests)
            case _:
                pass
        return []

    def _decide(self, order: RunStage, other: Lease | None) -> list[Following]:
        """Return the stage that may run now, or the event that it may not."""
        attempt = order.attempt
        if attempt not in self._view.attempts:
            self._leasing.release(attempt, order.start)  # its worker is gone
            return []
        if order.after in self._refused:
            self._leasing.release(attempt, order.start)
            self._refused.add(attempt)
            return [TrainingEnded(attempt=attempt, step=order.start, status="skipped")]
        if other is None:
            self._running[attempt] = order
            return self._begin(self._saving_for_others(attempt))
        return self._wait(order, other)

    def _begin(self, order: RunStage) -> list[Following]:
        """Return a stage that may run; before it the event that others have trained steps of it."""
        root, sequences = self._root_of(order), order.node.sequences
        step = max(self._elsewhere.steps(root, sequences, order.stop), default=0)
        known = [TrainedElsewhere(node=order.node, step=step)] if step > order.start else []
        return [*known, order]

    def _wait(self, order: RunStage, other: Lease) -> list[Following]:
        """Leave a stage to another driver for as long as that driver trains it."""
        self._refused.add(order.attempt)
        is_over = self._leasing.is_over(other)
        # It stays so if a clock is set back before the look-up: nobody watches an ended lease.
        self._waiting[order.attempt] = _Wait(order, replace(other, is_done=is_over))
        if not is_over:
            logger.info("steps %d-%d are trained by another driver", order.start, order.stop)
            self._leasing.watch(order.attempt, other)
        self._look_up(order.attempt)
        return [Taken(attempt=order.attempt)]

    def _changed(self, attempt: str, lease: Lease) -> None:
        """Look up the states that the holder of a lease has saved since."""
        waiting = self._waiting.get(attempt)
        if waiting is not None:
            waiting.lease = lease
            self._look_up(attempt)

    def _look_up(self, attempt: str) -> None:
        """Ask the store for the states that another driver has made on the way of an attempt.

        At the stage's end there may be a state of a third driver.
        """
        waiting = self._waiting[attempt]
        order, saved = waiting.order, waiting.lease.saved
        there = (waiting.lease.start, *saved, order.stop)
        steps = {step for step in there if order.start < step <= order.stop}
        keys = {step: order.node.key_at(step) for step in sorted(steps - waiting.steps)}
        waiting.unanswered += 1
        self._leasing.look_up(attempt, keys)

    def _looked_up(self, attempt: str, commits: Mapping[Step, Commit]) -> list[Following]:
        """Return the states of other drivers, and the end of the attempt if no more will come."""
        waiting = self._waiting.get(attempt)
        if waiting is None or attempt not in self._view.attempts:
            self._waiting.pop(attempt, None)
            return []
        order, lease = waiting.order, waiting.lease
        self._note_trained(order, lease)
        waiting.unanswered -= 1
        waiting.steps.update(commits)
        following: list[Following] = []
        for step in sorted(commits):
            commit = commits[step]
            self._recorder.found(order.node, commit)
            following.append(Progress(attempt=attempt, step=step))
            following.append(Found(node=order.node, step=step, reports=commit.reports))
        shared = self._shared(order, lease)
        # Its last states may be in the answer to a later question.
        is_over = lease.is_done and not waiting.unanswered
        # The other driver saves in the order of steps: once it has saved further on, no more
        # states come here. If it begins within this stage, this stage goes on from the state
        # there, as long as the store has it.
        is_ahead = lease.start > order.start
        if is_over or is_ahead or shared < max(lease.saved, default=0) or lease.misses(order.stop):
            del self._waiting[attempt]
            self._leasing.ignore(attempt)
            first = _first_key(order)
            if is_over or is_ahead:
                heeded = self._heeded.setdefault(first, set())
                heeded.add(lease.ended().mark if is_over else lease.name)
            else:
                passed = self._passed.setdefault(first, _Passed(order.start))
                passed.step = max(passed.step, shared)
                passed.leases.add(lease.name)
            following.append(Progress(attempt=attempt, step=shared))
            following.append(TrainingEnded(attempt=attempt, step=order.start, status="lost"))
        return following

    def _note_trained(self, order: RunStage, lease: Lease) -> None:
        """Remember how far another driver has trained: later stages may train these steps again."""
        # A lease may be taken while the steps before it are still to be trained.
        root, until = self._root_of(order), min(lease.step, self._longest)
        if lease.step > lease.start and until:
            with suppress(*INVALID):
                if until not in self._elsewhere.steps(root, lease.sequences, until):
                    self._elsewhere.add(root, lease.sequences, [until])

    def _shared(self, order: RunStage, lease: Lease) -> Step:
        """Return the step up to which another driver has trained a stage."""
        limit = min(lease.step, order.stop) if lease.step > lease.start else order.start
        with suppress(*INVALID):
            return shared_until(order.node.sequences, lease.sequences, order.start, limit)
        return order.start  # the lease is invalid: any program may have written it

    @property
    def _longest(self) -> Step:
        """The last step of any trial: nothing is computed beyond it."""
        paths = self._view.plan.paths.values()
        return max((path.leaf.stop for path in paths), default=0)

    def _saves_requested(self, requests: Iterable[SaveRequest]) -> list[Following]:
        """Return the save-points that running stages need for the requests of other drivers."""
        within = self._longest
        attempts: dict[str, None] = {}
        for request in requests if within else ():
            root, sequences = request.root, request.sequences
            ends = {min(within, end) for end in request.ends}
            with suppress(*INVALID):  # a path that cannot be trained needs no state
                self._requested.add(root, sequences, ends)
                attempts |= dict.fromkeys(self._view.along(root, sequences, max(ends)))
        following: list[Following] = []
        for attempt in attempts.keys() & self._running.keys():
            order = self._running[attempt]
            changed = self._saving_for_others(attempt)
            following += (
                SavePoint(attempt=attempt, worker=order.worker, step=step)
                for step in set(changed.saves) - set(order.saves)
            )
        return following

    def _saving_for_others(self, attempt: str) -> RunStage:
        """Return a stage that runs, now saved also where other drivers need it."""
        order = self._running[attempt]
        path = self._requested.steps(self._root_of(order), order.node.sequences, order.stop)
        steps = [step for step in path if order.start < step < order.stop]
        if not set(steps) <= set(order.saves):
            order = replace(order, saves=tuple(sorted({*order.saves, *steps})))
            self._running[attempt] = order
            self._leasing.plan_saves(attempt, order.saves)
        if order.is_last and self._leasing.is_shared:
            order = self._running[attempt] = replace(order, is_last=False)  # others may go on there
        return order

    def _root_of(self, order: RunStage) -> str:
        return self._view.plan.root_key_of(order.node)


def _first_key(order: RunStage) -> str:
    """Return the key of the first step of a stage; of its start, if it trains nothing."""
    return order.node.key_at(min(order.start + 1, order.stop))


class MergedPaths:
    """Paths of other drivers, merged by value as in a plan: what they ask for, or have trained.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> paths = MergedPaths()
    >>> paths.add("a1f0", {"lr": MultiStep(0.1, [30], gamma=0.1)}, ends=[20, 60])
    >>> paths.steps("a1f0", {"lr": Constant(0.1)}, 100)
    [20, 30]
    """

    def __init__(self) -> None:
        self._plans: dict[str, SearchPlan] = {}
        self._count = 0

    def add(self, root: str, sequences: Sequences, ends: Collection[Step]) -> None:
        """Add a path from a root to each of these steps.

        Raises a `ConfigurationError` if a sequence ends, or overflows, before the last of them.
        """
        for sequence in sequences.values():
            sequence(max(ends) - 1)  # a last value that is finite speaks for all
        plan = self._plans.setdefault(root, SearchPlan(root))
        for step in sorted(ends, reverse=True):
            plan.register(self._count, sequences, step)
        self._count += 1

    def steps(self, root: str, sequences: Sequences, stop: Step) -> list[Step]:
        """Return the steps at which paths end on this one, or at which the last of them leaves it.

        None of them is beyond `stop`.
        """
        plan = self._plans.get(root)
        roots = () if plan is None else plan.roots[:1]
        return [step for node in roots for _, step in nodes_along(node, sequences, stop)]
