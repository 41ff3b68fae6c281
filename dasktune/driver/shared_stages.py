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
from typing import assert_never

from dasktune.driver.lease_messages import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    SavesRequested,
)
from dasktune.driver.leases import Leasing
from dasktune.driver.recorder import Recorder
from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.graph.events import (
    Event,
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
from dasktune.sequences import sequence_from_json
from dasktune.storage.checkpoints import Commit
from dasktune.storage.leases import Lease, LeaseMark, LeaseName, SaveRequest
from dasktune.types import Sequences, Step

logger = logging.getLogger(__name__)

Following = Event | RunStage | SavePoint
"""What follows from a message: events for the engine, stages and save-points for workers."""


class NoSharing:
    """Shares nothing: each stage is sent to its worker at once."""

    def start(self, order: RunStage) -> list[Following]:
        """Return the stage."""
        return [order]

    def reached(self, attempt: str, step: Step) -> None:
        """Do nothing."""

    def saved(self, attempt: str, step: Step) -> None:
        """Do nothing."""

    def want(self, trials: Iterable[TrialRecord]) -> None:
        """Do nothing."""

    def turn(self) -> None:
        """Do nothing."""

    def receive(self, message: LeaseMessage) -> list[Following]:
        """Return nothing."""
        return []

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
    """A stage that another driver trains, and the steps whose states were found."""

    order: RunStage
    lease: Lease
    steps: set[Step] = field(default_factory=set)


@dataclass(slots=True)
class _Passed:
    """The leases of drivers that are past the steps from a start, and how far they are.

    Those steps are trained again; the lease of such a stage is on the first step after them.
    """

    step: Step
    leases: set[LeaseMark | LeaseName] = field(default_factory=set)


class SharedStages:
    """Stands between a run's stages and the leases in its store.

    Parameters
    ----------
    view
        The run as the engine has it.
    leasing
        The leases of this run.
    recorder
        Records the states that other drivers made.
    """

    def __init__(self, view: RunView, leasing: Leasing, recorder: Recorder) -> None:
        self._view = view
        self._leasing = leasing
        self._recorder = recorder
        self._asked: dict[str, RunStage] = {}
        self._asked_at: dict[str, float] = {}
        self._running: dict[str, RunStage] = {}
        self._behind: dict[str, tuple[RunStage, Lease | None]] = {}
        self._waiting: dict[str, _Wait] = {}
        self._refused: set[str] = set()
        self._heeded: dict[str, set[LeaseMark | LeaseName]] = {}
        self._passed: dict[str, _Passed] = {}
        self._steps: dict[str, Step] = {}
        self._requested = RequestedSaves()
        self._elsewhere = TrainedPaths()
        self._wanted: dict[int, Step] = {}

    def start(self, order: RunStage) -> list[Following]:
        """Return a stage that needs no lease; any other follows once its steps are leased."""
        passed = self._passed.get(_first_key(order), _Passed(order.start))
        is_stuck = bool(passed.leases) and passed.step == order.start
        if passed.step >= order.stop or is_stuck:
            return self._settle(order, None)  # it trains nothing, or what others did not save
        lease = self._leasing.lease(
            key=order.node.key_at(passed.step + 1),
            root=self._root_of(order),
            sequences=order.node.sequences,
            start=order.start,
            stop=order.stop,
            saves=order.saves,
        )
        if self._leasing.grant(order.attempt, lease):
            return self._settle(order, None)
        self._asked[order.attempt] = order
        self._asked_at[order.attempt] = time.monotonic()
        heeded = self._heeded.get(_first_key(order), set())
        self._leasing.ask(order.attempt, lease, heeded=heeded | passed.leases)
        return []

    def reached(self, attempt: str, step: Step) -> None:
        """Record how far an attempt has come."""
        self._steps[attempt] = step
        self._leasing.reached(attempt, step)

    def saved(self, attempt: str, step: Step) -> None:
        """Show other drivers a state, if the attempt is leased."""
        order = self._running.get(attempt)
        if order is not None:
            is_last = step >= order.stop
            following = None if is_last else order.node.key_at(step + 1)
            self._leasing.saved(attempt, step, following)

    def want(self, trials: Iterable[TrialRecord]) -> None:
        """Ask other drivers for the states that trials will need, once for each end."""
        paths: dict[str, list[SaveRequest]] = {}
        for trial in trials:
            until = trial.until or trial.max_steps
            if trial.state.is_finished or self._wanted.get(trial.number, -1) >= until:
                continue
            self._wanted[trial.number] = until
            nodes = self._view.plan.nodes_of(trial.number)
            if nodes:
                path = SaveRequest(sequences=trial.keyed_sequences, ends=(until, trial.max_steps))
                paths.setdefault(self._view.plan.root_key_of(nodes[0]), []).append(path)
        for root, requests in paths.items():
            self._leasing.want(root, requests)

    def turn(self) -> None:
        """Release the leases of attempts that have ended."""
        self._leasing.beat()
        attempts = self._view.attempts
        for attempt in [each for each in self._running if each not in attempts]:
            self._release(attempt)

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
        return sorted({(lease.holder, lease.of or lease.key) for lease in leases})

    def unanswered(self) -> float | None:
        """Return the age in seconds of the oldest lease request without answer, or None."""
        since = next(iter(self._asked_at.values()), None)
        return None if since is None else time.monotonic() - since

    def close(self) -> None:
        """Release all leases."""
        for attempt in list(self._running):
            self._release(attempt)
        self._leasing.close()

    def _release(self, attempt: str) -> None:
        order = self._running.pop(attempt)
        self._leasing.release(attempt, self._steps.pop(attempt, order.start))

    # ------------------------------------------------------------ messages

    def receive(self, message: LeaseMessage) -> list[Following]:
        """Return the events, stages and save-points that follow from a message of the leases."""
        match message:
            case LeaseAnswered():
                return self._answered(message.attempt, message.other)
            case LeaseChanged():
                self._changed(message.attempt, message.lease)
                return []
            case CommitsFound():
                return self._looked_up(message.attempt, message.commits)
            case SavesRequested():
                return self._saves_requested(message.paths)
            case _:
                assert_never(message)

    def _answered(self, attempt: str, other: Lease | None) -> list[Following]:
        """Return the stage that may run now, or the event that it may not."""
        order = self._asked.pop(attempt)
        self._asked_at.pop(attempt)
        return self._settle(order, other)

    def _settle(self, order: RunStage, other: Lease | None) -> list[Following]:
        """Decide on a stage, once the stage before it on the same worker is decided on.

        Answers come in any order: a worker that is sent the second stage only would wait for
        the first one for ever.
        """
        if order.after in self._asked:
            self._behind[order.after] = order, other
            return []
        following = self._decide(order, other)
        behind = self._behind.pop(order.attempt, None)
        return following if behind is None else [*following, *self._settle(*behind)]

    def _decide(self, order: RunStage, other: Lease | None) -> list[Following]:
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
        """Return a stage that may run, after what is known of it to be trained elsewhere."""
        root, sequences = self._root_of(order), order.node.sequences
        step = self._elsewhere.reach(root, sequences, order.stop)
        known = [TrainedElsewhere(node=order.node, step=step)] if step > order.start else []
        return [*known, order]

    def _wait(self, order: RunStage, other: Lease) -> list[Following]:
        """Leave a stage to the driver that trains it, as long as it does."""
        self._refused.add(order.attempt)
        is_over = self._leasing.is_over(other)
        # Also where a clock is set back until the look-up: what is over is watched by nobody.
        self._waiting[order.attempt] = _Wait(order, replace(other, is_done=is_over))
        if not is_over:
            logger.info("steps %d-%d are trained by another driver", order.start, order.stop)
            self._leasing.watch(order.attempt, other)
        self._look_up(order.attempt)
        return [Taken(attempt=order.attempt)]

    def _changed(self, attempt: str, lease: Lease | None) -> None:
        """Look up what the holder of a lease has made since; if the lease is gone, it ended."""
        waiting = self._waiting.get(attempt)
        if waiting is not None:
            waiting.lease = lease or replace(waiting.lease, is_done=True)
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
        self._leasing.look_up(attempt, keys)

    def _looked_up(self, attempt: str, commits: Mapping[Step, Commit]) -> list[Following]:
        """Return the states of other drivers, and the end of the attempt if no more will come."""
        waiting = self._waiting.get(attempt)
        if waiting is None or attempt not in self._view.attempts:
            self._waiting.pop(attempt, None)
            return []
        order, lease = waiting.order, waiting.lease
        self._note_trained(order, lease)
        waiting.steps.update(commits)
        following: list[Following] = []
        for step in sorted(commits):
            commit = commits[step]
            self._recorder.found(order.node, commit)
            following.append(Progress(attempt=attempt, step=step))
            following.append(Found(node=order.node, step=step, reports=commit.reports))
        shared = self._shared(order, lease)
        # States come in the order of steps: where it has saved further on, no more will come.
        is_over = self._leasing.is_over(lease)
        # A stage that another one begins in goes on from there: if its state is still there.
        is_ahead = lease.start > order.start
        if is_over or is_ahead or shared < max(lease.saved, default=0) or lease.misses(order.stop):
            del self._waiting[attempt]
            self._leasing.ignore(attempt)
            # The lease's own key is another one if only a part of it was in the way.
            first, name = _first_key(order), (lease.holder, lease.key)
            if is_over or is_ahead:
                heeded = self._heeded.setdefault(first, set())
                heeded.add(lease.mark if is_over else name)
            else:
                passed = self._passed.setdefault(first, _Passed(order.start))
                passed.step = max(passed.step, shared)
                passed.leases.add(name)
            following.append(Progress(attempt=attempt, step=shared))
            following.append(TrainingEnded(attempt=attempt, step=order.start, status="lost"))
        return following

    def _note_trained(self, order: RunStage, lease: Lease) -> None:
        """Remember how far another driver has trained: stages that come later may repeat it."""
        within = self._longest
        with suppress(ConfigurationError, LookupError, RecursionError, TypeError, ValueError):
            sequences = {name: sequence_from_json(text) for name, text in lease.sequences.items()}
            # A lease may be taken while the steps before it are still to be trained.
            if lease.step > lease.start:
                self._elsewhere.add(self._root_of(order), sequences, min(lease.step, within))

    def _shared(self, order: RunStage, lease: Lease) -> Step:
        """Return the step up to which another driver has trained a stage."""
        try:
            sequences = {name: sequence_from_json(text) for name, text in lease.sequences.items()}
            limit = min(lease.step, order.stop) if lease.step > lease.start else order.start
            return shared_until(order.node.sequences, sequences, order.start, limit)
        except (ConfigurationError, LookupError, RecursionError, TypeError, ValueError):
            return order.start  # anyone may have written it

    @property
    def _longest(self) -> Step:
        """The last step of any trial: nothing is computed beyond it."""
        paths = self._view.plan.paths.values()
        return max((path.leaf.stop for path in paths), default=0)

    def _saves_requested(self, requests: Iterable[tuple[str, SaveRequest]]) -> list[Following]:
        """Return the save-points that running stages need for the requests of other drivers."""
        within = self._longest
        attempts: dict[str, None] = {}
        for root, request in requests if within else ():
            with suppress(ConfigurationError):  # a path that cannot be trained needs no state
                self._requested.add(root, request.sequences, request.ends, within=within)
                until = min(within, max(request.ends))
                attempts |= dict.fromkeys(self._view.along(root, request.sequences, until))
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
        steps = self._requested.on_way(
            self._root_of(order), order.node.sequences, order.start, order.stop
        )
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


class RequestedSaves:
    """The states that other drivers ask for: their paths, merged by value as in a plan.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> requested = RequestedSaves()
    >>> requested.add("a1f0", {"lr": MultiStep(0.1, [30], gamma=0.1)}, ends=[60])
    >>> requested.on_way("a1f0", {"lr": Constant(0.1)}, 0, 100)
    (30,)
    """

    def __init__(self) -> None:
        self._plans: dict[str, SearchPlan] = {}
        self._count = 0

    def add(
        self, root: str, sequences: Sequences, ends: Collection[Step], *, within: Step | None = None
    ) -> None:
        """Add a request for the states at `ends` of a configuration.

        Parameters
        ----------
        root
            The state key before any step.
        sequences
            By name.
        ends
            Steps.
        within
            The last step of the paths given to `on_way`: nothing is computed beyond it.

        Raises
        ------
        ConfigurationError
            If a sequence ends, or overflows, before the last of them.
        """
        steps = sorted({end if within is None else min(end, within) for end in ends}, reverse=True)
        for sequence in sequences.values():
            sequence(steps[0] - 1)  # a last value that is finite speaks for all
        plan = self._plans.get(root)
        if plan is None:
            plan = self._plans[root] = SearchPlan(root)
        for step in steps:
            plan.register(self._count, sequences, step)
        self._count += 1

    def on_way(self, root: str, sequences: Sequences, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the steps between `start` and `stop` at which other drivers need the state.

        They need one where they ask for it, and where the last of them leaves this path.
        """
        plan = self._plans.get(root)
        steps = [] if plan is None else steps_along(plan, sequences, stop)
        return tuple(step for step in steps if start < step < stop)


class TrainedPaths:
    """The steps that other drivers have trained, merged by value as in a plan.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> trained = TrainedPaths()
    >>> trained.add("a1f0", {"lr": MultiStep(0.1, [30], gamma=0.1)}, 80)
    >>> trained.reach("a1f0", {"lr": Constant(0.1)}, 100)
    30
    """

    def __init__(self) -> None:
        self._plans: dict[str, SearchPlan] = {}
        self._count = 0

    def add(self, root: str, sequences: Sequences, until: Step) -> None:
        """Add the steps of a configuration up to one.

        Raises
        ------
        ConfigurationError
            If a sequence ends, or overflows, before it.
        """
        if until < 1 or self.reach(root, sequences, until) >= until:
            return
        for sequence in sequences.values():
            sequence(until - 1)  # a last value that is finite speaks for all
        plan = self._plans.setdefault(root, SearchPlan(root))
        plan.register(self._count, sequences, until)
        self._count += 1

    def reach(self, root: str, sequences: Sequences, stop: Step) -> Step:
        """Return the last step up to `stop` to which others have trained a configuration."""
        plan = self._plans.get(root)
        return 0 if plan is None else max(steps_along(plan, sequences, stop), default=0)


def steps_along(plan: SearchPlan, sequences: Sequences, stop: Step) -> list[Step]:
    """Return the steps at which nodes of a plan end on a path, or at which they leave it."""
    return [step for root in plan.roots[:1] for _, step in nodes_along(root, sequences, stop)]
