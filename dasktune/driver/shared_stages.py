"""What a run does with leases: stages that others train are waited for, not trained again.

A stage is leased before it is sent to its worker. Where another driver holds the lease, the
dispatcher is told that the stage is `Taken`: it stays in the plan as one that runs, until the
other's states are `Found` or its lease ends. What others will want is saved on the way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import assert_never

from dasktune.driver.leases import (
    CommitsFound,
    LeaseAnswered,
    LeaseChanged,
    LeaseMessage,
    Leasing,
    SavesRequested,
)
from dasktune.driver.recorder import Recorder
from dasktune.driver.save_requests import Wishes
from dasktune.engine.trials import TrialRecord
from dasktune.errors import ConfigurationError
from dasktune.graph.events import Ended, Event, Found, Progress, RunStage, Taken
from dasktune.graph.plan import shared_until
from dasktune.graph.view import RunView
from dasktune.sequences import sequence_from_json
from dasktune.storage.checkpoints import Commit
from dasktune.storage.leases import Lease, SaveRequest
from dasktune.types import Step

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wait:
    """A stage that another driver trains, and the steps whose states are known of."""

    order: RunStage
    lease: Lease
    found: set[Step] = field(default_factory=set)


class Sharing:
    """Between a run's dispatcher and the leases in its store.

    Parameters
    ----------
    view
        What runs.
    leasing
        Asks and watches.
    recorder
        Takes note of what others made.
    submit
        Sends a stage to its worker.
    tell
        Tells the engine.
    save_at
        Lets a running attempt also save at a step: (worker, attempt, step).
    """

    def __init__(
        self,
        view: RunView,
        leasing: Leasing,
        recorder: Recorder,
        *,
        submit: Callable[[RunStage], None],
        tell: Callable[[Event], None],
        save_at: Callable[[str, str, Step], None],
    ) -> None:
        self._view = view
        self._leasing = leasing
        self._recorder = recorder
        self._submit = submit
        self._tell = tell
        self._save_at = save_at
        self._asked: dict[str, RunStage] = {}
        self._asked_at: dict[str, float] = {}
        self._running: dict[str, RunStage] = {}
        self._waiting: dict[str, _Wait] = {}
        self._refused: set[str] = set()
        self._heeded: set[str] = set()
        self._passed: set[str] = set()
        self._steps: dict[str, Step] = {}
        self._wishes = Wishes()
        self._told: dict[int, Step] = {}

    def start(self, order: RunStage) -> None:
        """Send a stage to its worker, once its steps are leased."""
        key = order.node.key_at(min(order.start + 1, order.stop))
        if order.start == order.stop or key in self._passed:
            self._submit(order)  # it trains nothing, or what another did not save
            return
        lease = self._leasing.lease(
            key=key,
            root=self._root_of(order),
            sequences=order.node.sequences,
            start=order.start,
            stop=order.stop,
        )
        self._asked[order.attempt] = order
        self._asked_at[order.attempt] = time.monotonic()
        self._leasing.ask(order.attempt, lease, heed_saved=lease.key not in self._heeded)

    def heard(self, attempt: str, step: Step) -> None:
        """Take note of how far an attempt has come."""
        self._steps[attempt] = step

    def saved(self, attempt: str, step: Step) -> None:
        """Tell others of a state, if the attempt is leased."""
        order = self._running.get(attempt)
        if order is not None:
            is_last = step >= order.stop
            following = None if is_last else order.node.key_at(step + 1)
            self._leasing.saved(attempt, step, following)

    def want(self, trials: Iterable[TrialRecord]) -> None:
        """Tell others what trials will want, once for each end."""
        paths: dict[str, list[SaveRequest]] = {}
        for trial in trials:
            until = trial.until or trial.max_steps
            if trial.state.is_finished or self._told.get(trial.number, -1) >= until:
                continue
            self._told[trial.number] = until
            nodes = self._view.plan.nodes_of(trial.number)
            if nodes:
                path = SaveRequest(sequences=trial.sequences, ends=(until, trial.max_steps))
                paths.setdefault(self._view.plan.root_key_of(nodes[0]), []).append(path)
        for root, found in paths.items():
            self._leasing.want(root, found)

    def turn(self) -> None:
        """Let go of what has ended."""
        self._leasing.beat()
        attempts = self._view.attempts
        for attempt in [one for one in self._running if one not in attempts]:
            self._let_go(attempt)

    def holders(self) -> list[str]:
        """Return the driver of each stage that another one trains."""
        attempts = self._view.attempts
        return [one.lease.holder for name, one in self._waiting.items() if name in attempts]

    def unanswered(self) -> float | None:
        """Return for how many seconds a lease has been asked for; None if none is."""
        since = next(iter(self._asked_at.values()), None)
        return None if since is None else time.monotonic() - since

    def close(self) -> None:
        """Let go of all."""
        for attempt in list(self._running):
            self._let_go(attempt)
        self._leasing.close()

    def _let_go(self, attempt: str) -> None:
        order = self._running.pop(attempt)
        self._leasing.release(attempt, self._steps.pop(attempt, order.start))

    # ------------------------------------------------------------ messages

    def receive(self, message: LeaseMessage) -> None:
        """Take in one message of the leases."""
        match message:
            case LeaseAnswered():
                self._answered(message.attempt, message.other)
            case LeaseChanged():
                self._changed(message.attempt, message.lease)
            case CommitsFound():
                self._looked_up(message.attempt, message.commits)
            case SavesRequested():
                self._wished(message.paths)
            case _:
                assert_never(message)

    def _answered(self, attempt: str, other: Lease | None) -> None:
        """Take in whether a lease was taken."""
        order = self._asked.pop(attempt)
        self._asked_at.pop(attempt)
        if attempt not in self._view.attempts:
            self._leasing.release(attempt, order.start)  # its worker is gone
        elif order.after in self._refused:
            self._leasing.release(attempt, order.start)
            self._refused.add(attempt)
            self._tell(Ended(attempt=attempt, step=order.start, status="skipped"))
        elif other is None:
            order = self._with_wishes(order)
            self._running[attempt] = order
            self._submit(order)
        else:
            self._wait(order, other)

    def _wait(self, order: RunStage, other: Lease) -> None:
        """Let a stage be, as long as another driver trains it."""
        self._refused.add(order.attempt)
        self._waiting[order.attempt] = _Wait(order, other)
        self._tell(Taken(attempt=order.attempt))
        if not self._leasing.is_over(other):
            logger.info("steps %d-%d are trained by another driver", order.start, order.stop)
            self._leasing.watch(order.attempt, other)
        self._look_up(order.attempt)

    def _changed(self, attempt: str, lease: Lease | None) -> None:
        """Take in what has become of a lease that is waited for; it has ended if it is gone."""
        waiting = self._waiting.get(attempt)
        if waiting is not None:
            waiting.lease = lease or replace(waiting.lease, is_done=True)
            self._look_up(attempt)

    def _look_up(self, attempt: str) -> None:
        """Ask the store for the states that another has made on the way of an attempt.

        At the stage's end there may be one of someone else still.
        """
        waiting = self._waiting[attempt]
        order, saved = waiting.order, waiting.lease.saved
        steps = {step for step in (*saved, order.stop) if order.start < step <= order.stop}
        keys = {step: order.node.key_at(step) for step in sorted(steps - waiting.found)}
        self._leasing.look_up(attempt, keys)

    def _looked_up(self, attempt: str, commits: Mapping[Step, Commit]) -> None:
        """Take in states of others; let the dispatcher go on from there when that is all."""
        waiting = self._waiting.get(attempt)
        if waiting is None or attempt not in self._view.attempts:
            self._waiting.pop(attempt, None)
            return
        order, lease = waiting.order, waiting.lease
        waiting.found.update(commits)
        for step in sorted(commits):
            self._tell(Progress(attempt=attempt, step=step))
            self._found(order, step, commits[step])
        shared = self._shared(order, lease)
        # States come in the order of steps: where it has saved further on, no more will come.
        is_over = self._leasing.is_over(lease)
        if is_over or shared < max(lease.saved, default=0):
            del self._waiting[attempt]
            self._leasing.ignore(attempt)
            # The lease's own key is another one if only a part of it was in the way.
            known = self._heeded if is_over else self._passed
            known.add(order.node.key_at(order.start + 1))
            self._tell(Progress(attempt=attempt, step=shared))
            self._tell(Ended(attempt=attempt, step=order.start, status="lost"))

    def _found(self, order: RunStage, step: Step, commit: Commit) -> None:
        self._recorder.found(order.node, commit)
        self._tell(Found(node=order.node, step=step, reports=commit.reports))

    def _shared(self, order: RunStage, lease: Lease) -> Step:
        """Return up to where another has trained the steps of a stage."""
        try:
            theirs = {name: sequence_from_json(one) for name, one in lease.sequences.items()}
            limit = min(lease.step, order.stop)
            return shared_until(order.node.sequences, theirs, order.start, limit)
        except (ConfigurationError, LookupError, RecursionError, TypeError, ValueError):
            return order.start  # anyone may have written it

    def _wished(self, wishes: Iterable[tuple[str, SaveRequest]]) -> None:
        """Take in what others want, also of what runs already."""
        paths = self._view.plan.paths.values()
        within = max((path.leaf.stop for path in paths), default=0)
        for root, path in wishes if within else ():
            with suppress(ConfigurationError):  # what cannot be trained is nobody's wish
                self._wishes.add(root, path.sequences, path.ends, within=within)
        for attempt, order in self._running.items():
            wished = self._with_wishes(order)
            for step in set(wished.saves) - set(order.saves):
                self._save_at(order.worker, attempt, step)
            self._running[attempt] = wished

    def _with_wishes(self, order: RunStage) -> RunStage:
        """Return a stage that is also saved where others need it."""
        steps = self._wishes.on_way(
            self._root_of(order), order.node.sequences, order.start, order.stop
        )
        return replace(order, saves=tuple(sorted({*order.saves, *steps}))) if steps else order

    def _root_of(self, order: RunStage) -> str:
        return self._view.plan.root_key_of(order.node)
