"""The invariants after every event: the model's own books, and the comparison with them."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune._engine.engine import Engine
from dasktune._engine.outcome import Outcome
from dasktune._engine.tuner_records import NewRecord, ReportTold
from dasktune.graph.attempts import QUEUE_LENGTH
from dasktune.graph.events import (
    Event,
    Evicted,
    Failed,
    Found,
    Omitted,
    Progress,
    RunStage,
    Saved,
    SaveMissed,
    StatesRead,
    Taken,
    TrainedElsewhere,
    TrainingEnded,
    WorkerLost,
)
from dasktune.graph.plan import Node
from dasktune.graph.view import RunView
from dasktune.types import Step, TrialState
from tests.torture.fleet import Fleet
from tests.torture.placements import Placements
from tests.torture.ways import State, Way, Ways, metrics_of


class ViolationError(Exception):
    """Something that must always hold does not."""


def check(holds: bool, problem: str) -> None:
    """Raise unless something holds.

    Raises
    ------
    ViolationError
        If it does not.
    """
    if not holds:
        raise ViolationError(problem)


class Told:
    """The durable reports of a study over all its drivers; the set only grows."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], Step] = {}

    def take(self, records: Iterable[NewRecord]) -> None:
        """Record that events are durable now."""
        for record in records:
            if isinstance(record.cause, ReportTold):
                trial, step = (record.place, record.cause.trial), record.cause.step
                before = self._steps.get(trial, 0)
                check(before < step, f"trial {trial[1]} is told step {step} after step {before}")
                self._steps[trial] = step

    def compare(self, engine: Engine) -> None:
        """Check that a driver that goes on has all of it."""
        steps = {(one.tuner, one.local): one.steps for one in engine.trials.values()}
        for trial, step in self._steps.items():
            check(steps.get(trial, 0) >= step, f"step {step} of trial {trial[1]} was told, is lost")


class Books:
    """An independent count of the messages to one driver.

    Parameters
    ----------
    view
        What is checked.
    ways
        What training gives.
    committed
        States that were committed to the store at any time.
    fleet
        The workers of the study.
    """

    def __init__(self, view: RunView, ways: Ways, committed: set[State], fleet: Fleet) -> None:
        self._placements = Placements(fleet, check)
        self.durable: set[State] = set()
        self.executed = self.repeated = 0
        self._view = view
        self._ways = ways
        self._committed = committed
        self._evicted: set[State] = set()
        self._ever_evicted: set[State] = set()
        self._gone: set[State] = set()
        self._measured: set[State] = set()
        self._trained: set[State] = set()
        self._seen: dict[str, Step] = {}
        self._saves: dict[str, Step] = {}
        self._again: dict[str, int] = {}
        self._orders: dict[str, tuple[RunStage, Way]] = {}
        self._open: dict[str, set[str]] = {}

    def note_new(self, node: Node) -> None:
        """Record the known checkpoints and metrics of a new plan node."""
        if not node.checkpoints and not node.metrics:
            return
        way = self._ways.of(node)
        for step in node.checkpoints:
            self.durable.add(way.state(step))
        for step, metrics in node.metrics.items():
            state = way.state(step)
            self._measured.add(state)
            check(metrics == metrics_of(state), f"wrong metrics were found at {node}, step {step}")
        last = max((*node.checkpoints, *node.metrics))
        self._trained.update(way.states(node.start, last))

    def compare_with_store(self, stored: set[State]) -> None:
        """Check, at the start, that all states are known that the store has for the plan."""
        for node in self._view.plan:
            way = self._ways.of(node)
            there = stored.intersection(way.states(node.start, node.stop))
            known = {way.state(step) for step in node.checkpoints}
            check(there == known, f"{node} knows {len(known)} states, the store has {len(there)}")

    # ---------------------------------------------------------------------- events

    def expect(self, event: Event) -> None:
        """Count what the dispatcher is about to be told."""
        self._placements.expect(event)
        match event:
            case Progress() | SaveMissed():
                self._advance(event.attempt, event.step)
            case Saved() | Omitted():
                self._saved(event)
            case TrainingEnded() | Failed():
                self._ended(event)
            case Found():
                self._trained.update(self._ways.of(event.node).states(0, event.step))
                self._found(event)
            case StatesRead():
                for state in event.states:
                    way = self._ways.of(state.node)
                    self._trained.update(way.states(0, state.step))
                    self._found(state)
            case Evicted():
                state = self._ways.of(event.node).state(event.step)
                self.durable.discard(state)
                self._evicted.add(state)
                if state in self._ever_evicted:
                    # It was trained again while its removal was under way, which took it again.
                    self._gone.add(state)
                self._ever_evicted.add(state)
            case Taken():
                self._close(event.attempt)
            case TrainedElsewhere():
                way = self._ways.of(event.node)
                self._trained.update(way.states(0, min(event.step, event.node.stop)))
            case WorkerLost():
                for attempt in list(self._open.pop(event.worker, ())):
                    self._close(attempt)
            case _:
                pass

    def _found(self, event: Found) -> None:
        way = self._ways.of(event.node)
        self._arrived(way.state(event.step))
        self._measured.update(way.state(step) for step, _ in event.reports)

    def _is_known(self, attempt: str) -> bool:
        return attempt in self._view.attempts

    def _advance(self, attempt: str, step: Step) -> None:
        if not self._is_known(attempt):
            return
        low = self._seen[attempt]
        if step > low:
            made = self._orders[attempt][1].states(low, step)
            if attempt in self._again:  # what is heard after its end does not count
                self._again[attempt] += sum(state in self._trained for state in made)
            self._trained.update(made)
            self._seen[attempt] = step

    def _saved(self, event: Saved | Omitted) -> None:
        if self._is_known(event.attempt):
            self._advance(event.attempt, event.step)
            way = self._orders[event.attempt][1]
            state = way.state(event.step)
            if isinstance(event, Saved):
                check(
                    state in self._committed, f"{event} tells of a state that was never committed"
                )
                self._arrived(state)
            self._measured.update(way.state(step) for step, _ in event.reports)
            self._saves[event.attempt] = max(self._saves.get(event.attempt, -1), event.step)

    def _arrived(self, state: State) -> None:
        self.durable.add(state)
        self._evicted.discard(state)

    def _ended(self, event: TrainingEnded | Failed) -> None:
        if not self._is_known(event.attempt):
            return
        self._advance(event.attempt, event.step)
        if isinstance(event, TrainingEnded) and event.status == "missing":
            order, way = self._orders[event.attempt]
            state = way.state(order.start)
            was_evicted = state in self._evicted and state not in self._gone
            check(not was_evicted, f"the start of {order} was evicted")
            may_miss = state not in self.durable or state in self._gone | self._ever_evicted
            check(may_miss, f"the start of {order} is missing, and was not told to be evicted")
            attempt = self._view.attempts[event.attempt]
            if not attempt.ended and not attempt.uprooted:
                self.durable.discard(state)
        self._close(event.attempt)

    def _close(self, attempt: str) -> None:
        if attempt in self._again:
            order = self._orders[attempt][0]
            self.executed += self._seen[attempt] - order.start
            self.repeated += self._again.pop(attempt)
            self._open.get(order.worker, set()).discard(attempt)
            self._placements.close(attempt)

    def lost(self, state: State) -> None:
        """Record that a state is gone from the store, and the driver does not know."""
        self._gone.add(state)

    def is_lost(self, event: Evicted) -> bool:
        """Whether the state of an eviction was gone before."""
        return self._ways.of(event.node).state(event.step) in self._gone

    def dismissed(self) -> None:
        """Record that the driver gave up all running attempts."""
        for attempt in list(self._again):
            self._close(attempt)
        self._placements.dismiss()

    # ---------------------------------------------------------------------- outcomes

    def launched(self, order: RunStage) -> None:
        """Check a stage before it runs: its states are not durable, and its slot has room."""
        way = self._ways.of(order.node)
        self._orders[order.attempt] = order, way
        self._seen[order.attempt], self._again[order.attempt] = order.start, 0
        made = way.states(order.start, order.stop)
        if not self.durable.isdisjoint(made):
            check(False, f"{order} trains what is durable")
        if order.start == order.stop:
            state = way.state(order.stop)
            check(state in self.durable, f"{order} measures what is not there")
            check(state not in self._measured, f"{order} measures what was measured")
        self._placements.launched(order)
        there = self._open.setdefault(order.worker, set())
        there.add(order.attempt)
        check(len(there) <= QUEUE_LENGTH, f"{order.worker} has {len(there)} stages at once")

    def compare(self, engine: Engine, outcome: Outcome) -> None:
        """Check what follows from an event, and the engine after it."""
        view = self._view
        for problem in view.violations():
            check(False, problem)
        mine = self.executed, self.repeated
        theirs = view.steps_executed, view.steps_repeated
        if mine != theirs:
            check(False, f"(executed, repeated) are {mine} steps, counted are {theirs}")
        for report in outcome.reports:
            path = view.plan.paths[report.trial]
            state = self._ways.of(path.leaf).state(report.step)
            if report.metrics != metrics_of(state) or state not in self._measured:
                check(False, f"{report} is not what was measured, {metrics_of(state)}")
        for name, attempt in view.attempts.items():
            if attempt.saved != self._saves.get(name, -1):
                check(False, f"the last state of {name} is not that at step {attempt.saved}")
        aside = sum(1 for _ in view.aside)
        check(not aside or aside < len(view.slots), "all workers are put aside")
        wanted = view.wanted
        running = TrialState.RUNNING
        live = [number for number, trial in engine.trials.items() if trial.state is running]
        # One that waits for the last state of a stage, to go on with other devices, asks later.
        moving = engine.devices.moving
        live = [number for number in live if number in wanted or number not in moving]
        if len(live) != len(wanted) or not all(number in wanted for number in live):
            check(False, f"trials {live} are on their way, and {list(wanted)} are asked for")

    def compare_all(self) -> None:
        """Check, at rest, every state and metric that the plan knows."""
        for node in self._view.plan:
            way = self._ways.of(node)
            for step in node.checkpoints:
                check(way.state(step) in self.durable, f"{node} has no state at step {step}")
            for step, metrics in node.metrics.items():
                check(metrics == metrics_of(way.state(step)), f"{node}, step {step}: {metrics}")
        known = sum(len(node.checkpoints) for node in self._view.plan)
        check(known == len(self.durable), f"{len(self.durable)} states are durable, not {known}")
