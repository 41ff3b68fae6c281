"""The engine of a study: a tuner and a dispatcher, from events to instructions and records.

It is pure: a runner feeds it events and carries out what it says, first making its
records durable. The Dask runner and the simulated one drive this same machine.

Every call of the tuner is a record: its cause and the decisions it gave. Replaying the
records of a tuner gives the tuner and its trials as they were.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, InternalError, unknown
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    Event,
    FailTrial,
    Instruction,
    RunStage,
    SavePoint,
    StopStage,
)
from dasktune.trials import TrialRecord
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Metrics,
    Objective,
    Rank,
    Register,
    Report,
    Step,
    Stop,
    TrialState,
)

Order = RunStage | StopStage | SavePoint
"""What a runner carries out."""

Record = Mapping[str, object]
"""One entry of the event log; JSON."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine wants done: `records` and `trials` made durable, then `orders`."""

    orders: tuple[Order, ...]
    records: tuple[Record, ...]
    trials: tuple[TrialRecord, ...]


@dataclass(slots=True)
class _Session:
    """A tuner at work: its place in the study and the numbers of its trials."""

    tuner: Tuner
    place: int
    numbers: dict[int, int] = field(default_factory=dict)
    priorities: dict[int, float] = field(default_factory=dict)
    finished: bool = False


class Engine:
    """Runs one tuner at a time over a dispatcher.

    Parameters
    ----------
    dispatcher
        Holds the plan that all tuners of the study share.
    objective
        What the study optimises.
    trials
        The study's trials so far; new ones are added to it.
    """

    def __init__(
        self, dispatcher: Dispatcher, *, objective: Objective, trials: dict[int, TrialRecord]
    ) -> None:
        self.dispatcher = dispatcher
        self.objective = objective
        self.trials = trials
        self.reports_told = 0
        self._session: _Session | None = None
        self._orders: list[Order] = []
        self._records: list[Record] = []
        self._changed: dict[int, None] = {}
        self._todo: deque[Instruction] = deque()

    @property
    def finished(self) -> bool:
        """Whether the tuner has ended."""
        return self._session is None or self._session.finished

    def begin(self, tuner: Tuner, *, place: int, capacity: int, now: float) -> Outcome:
        """Start a tuner that the study has not seen; `place` counts the study's tuners."""
        self._session = _Session(tuner, place)
        self._note({"kind": "tuner", "identity": tuner.identity()}, ())
        self._ask(capacity, now)
        return self._settle(now)

    def resume(self, tuner: Tuner, *, place: int, records: Iterable[Record], now: float) -> Outcome:
        """Go on with a tuner whose records are in the log.

        Raises
        ------
        ConfigurationError
            If the tuner decides otherwise than it did when the records were made.
        """
        self._session = session = _Session(tuner, place)
        for trial in self.trials.values():
            if trial.tuner == place:
                session.numbers[trial.local] = trial.number
        for record in records:
            self._replay(session, record)
        # Rows say this already; written again, they could undo what another driver added.
        self._changed.clear()
        for number in sorted(session.numbers.values()):
            trial = self.trials[number]
            self.dispatcher.register(number, trial.sequences, trial.max_steps)
        for number in sorted(session.numbers.values()):
            trial = self.trials[number]
            if trial.until is not None:
                priority = session.priorities[trial.local]
                self._todo.extend(self.dispatcher.extend(number, trial.until, priority, now))
        return self._settle(now)

    def ask(self, capacity: int, now: float) -> Outcome:
        """Ask the tuner for more work; `capacity` counts the workers that have none."""
        self._ask(capacity, now)
        return self._settle(now)

    def handle(self, event: Event, now: float) -> Outcome:
        """Take in one event of the runner."""
        self._todo.extend(self.dispatcher.handle(event, now))
        return self._settle(now)

    def drain(self, now: float) -> Outcome:
        """Let every stage end at its next step, without ending the tuner: it can go on."""
        self._todo.extend(self.dispatcher.drain())
        return self._settle(now)

    def mute(self) -> None:
        """Tell the tuner nothing more: it cannot go on as it was asked to."""
        self._session = None
        self._todo.clear()

    # ------------------------------------------------------------- tuner and records

    def _ask(self, capacity: int, now: float) -> None:
        session = self._session
        if session is None or session.finished:
            return
        decisions = session.tuner.ask(capacity)
        if decisions:
            self._note({"kind": "ask", "capacity": capacity}, decisions)
            self._apply(session, decisions, now)

    def _tell(self, report: Report, now: float) -> None:
        session, trial = self._session, self.trials[report.trial]
        if session is None or trial.tuner != session.place or trial.state.is_finished:
            return
        missing = [name for name in self.objective.metrics if name not in report.metrics]
        if missing:
            self._miss_metric(missing[0], report, now)
            return
        told = self._report_of(trial.local, report.step, report.metrics)
        self._take_report(trial, told)
        self.reports_told += 1
        decisions = session.tuner.tell(told)
        self._note(
            {
                "kind": "tell",
                "trial": trial.local,
                "step": report.step,
                "metrics": dict(report.metrics),
            },
            decisions,
        )
        self._apply(session, decisions, now)

    def _miss_metric(self, metric: str, report: Report, now: float) -> None:
        """Take in a report without a metric of the study: the trial's fault, if others have it.

        Raises
        ------
        ConfigurationError
            If no trial has had it yet: the name must be wrong.
        """
        message = unknown("metric", metric, report.metrics)
        if all(trial.value is None for trial in self.trials.values()):
            raise ConfigurationError(message)
        self._fail(FailTrial(trial=report.trial, step=report.step, message=message), now)

    def _fail(self, failure: FailTrial, now: float) -> None:
        session, trial = self._session, self.trials[failure.trial]
        if session is None or trial.tuner != session.place or trial.state.is_finished:
            return
        self._take_failure(trial, failure.message, failure.traceback)
        decisions = session.tuner.tell_failure(trial.local)
        cause = {"kind": "fail", "trial": trial.local, "message": failure.message}
        self._note({**cause, "traceback": failure.traceback}, decisions)
        self._apply(session, decisions, now)

    def _take_report(self, trial: TrialRecord, report: Report) -> None:
        trial.steps, trial.values = report.step, self.objective.values(report.metrics)
        trial.until = None
        done = report.step >= trial.max_steps
        trial.state = TrialState.COMPLETE if done else TrialState.PAUSED
        self._changed[trial.number] = None

    def _take_failure(self, trial: TrialRecord, message: str, traceback: str) -> None:
        trial.state, trial.until = TrialState.FAIL, None
        trial.message, trial.traceback = message, traceback
        self._changed[trial.number] = None

    def _report_of(self, trial: int, step: Step, metrics: Metrics) -> Report:
        losses = self.objective.losses(metrics)
        return Report(trial=trial, step=step, metrics=metrics, losses=losses)

    def _recorded_report(self, record: Record) -> Report:
        metrics = record["metrics"]
        if not isinstance(metrics, Mapping):
            raise InternalError(f"metrics in the log must be a mapping, got {metrics!r}")
        return self._report_of(_whole(record["trial"]), _whole(record["step"]), metrics)

    def _note(self, cause: Mapping[str, object], decisions: Iterable[Decision]) -> None:
        if self._session is None:
            raise InternalError("a record needs a tuner")
        described = [describe(decision) for decision in decisions]
        self._records.append({**cause, "place": self._session.place, "decisions": described})

    def _replay(self, session: _Session, record: Record) -> None:
        """Give one recorded cause to the tuner and compare what it decides."""
        tuner = session.tuner
        match record["kind"]:
            case "tuner":
                return
            case "ask":
                decisions = tuner.ask(_whole(record["capacity"]))
            case "tell":
                report = self._recorded_report(record)
                self._take_report(self.trials[session.numbers[report.trial]], report)
                decisions = tuner.tell(report)
            case "fail":
                local = _whole(record["trial"])
                trial = self.trials[session.numbers[local]]
                self._take_failure(trial, str(record["message"]), str(record["traceback"]))
                decisions = tuner.tell_failure(local)
            case kind:
                raise InternalError(f"the log holds a record of unknown kind {kind!r}")
        described = [describe(decision) for decision in decisions]
        if described != record["decisions"]:
            raise ConfigurationError(
                f"the tuner must decide as recorded: after {record['kind']!r} it gave "
                f"{described}, the log has {record['decisions']}"
            )
        for decision in decisions:
            self._remember(session, decision)

    # -------------------------------------------------------------------- decisions

    def _apply(self, session: _Session, decisions: Iterable[Decision], now: float) -> None:
        for decision in decisions:
            if isinstance(decision, Register):
                self._register(session, decision)
            else:
                self._remember(session, decision)
                self._todo.extend(self._carry_out(session, decision, now))

    def _register(self, session: _Session, decision: Register) -> None:
        number = len(self.trials)
        session.numbers[decision.trial] = number
        self.trials[number] = TrialRecord(
            number=number,
            tuner=session.place,
            local=decision.trial,
            params=decision.params,
            sequences=decision.sequences,
            max_steps=decision.max_steps,
            point=decision.point,
            domains=decision.domains,
            seed=decision.seed,
        )
        self._changed[number] = None
        self._todo.extend(self.dispatcher.register(number, decision.sequences, decision.max_steps))

    def _carry_out(self, session: _Session, decision: Decision, now: float) -> list[Instruction]:
        """Pass a decision on to the dispatcher."""
        dispatcher = self.dispatcher
        match decision:
            case Extend():
                number = session.numbers[decision.trial]
                return dispatcher.extend(number, decision.until, decision.priority, now)
            case Stop():
                return dispatcher.stop(session.numbers[decision.trial], now)
            case Rank():
                return dispatcher.rank(session.numbers[decision.trial], decision.priority)
            case Finish():
                live = [n for n in session.numbers.values() if n in dispatcher.wanted]
                return [one for number in live for one in dispatcher.stop(number, now)]
            case _:
                raise InternalError(f"unknown decision {decision!r}")

    def _remember(self, session: _Session, decision: Decision) -> None:
        """Keep what a decision means for its trial."""
        match decision:
            case Extend():
                trial = self.trials[session.numbers[decision.trial]]
                trial.state, trial.until = TrialState.RUNNING, decision.until
                session.priorities[decision.trial] = decision.priority
                self._changed[trial.number] = None
            case Rank():
                session.priorities[decision.trial] = decision.priority
            case Stop():
                self._prune(self.trials[session.numbers[decision.trial]])
            case Finish():
                session.finished = True
                for number in session.numbers.values():
                    self._prune(self.trials[number])
            case _:
                pass

    def _prune(self, trial: TrialRecord) -> None:
        if not trial.state.is_finished:
            trial.state, trial.until = TrialState.PRUNED, None
            self._changed[trial.number] = None

    # ----------------------------------------------------------------------- output

    def _settle(self, now: float) -> Outcome:
        """Work until the tuner and the dispatcher have nothing more to say to each other."""
        while self._todo:
            instruction = self._todo.popleft()
            if isinstance(instruction, Deliver):
                self._tell(instruction.report, now)
            elif isinstance(instruction, FailTrial):
                self._fail(instruction, now)
            else:
                self._orders.append(instruction)
        outcome = Outcome(
            tuple(self._orders),
            tuple(self._records),
            tuple(self.trials[number] for number in self._changed),
        )
        self._orders, self._records, self._changed = [], [], {}
        return outcome


def with_save_points(orders: list[Order]) -> list[Order]:
    """Put save-points into the stages that start in the same turn: none can come too late."""
    starting = {order.attempt for order in orders if isinstance(order, RunStage)}
    points: dict[str, set[Step]] = defaultdict(set)
    found: list[Order] = []
    for order in orders:
        if isinstance(order, SavePoint) and order.attempt in starting:
            points[order.attempt].add(order.step)
        else:
            found.append(order)
    return [
        replace(order, saves=tuple(sorted({*order.saves, *points[order.attempt]})))
        if isinstance(order, RunStage) and order.attempt in points
        else order
        for order in found
    ]


def describe(decision: Decision) -> dict[str, object]:
    """Return a decision as a JSON document; a trial's sequences are kept with the trial."""
    match decision:
        case Register():
            return {"do": "register", "trial": decision.trial, "max_steps": decision.max_steps}
        case Extend():
            found = {"do": "extend", "trial": decision.trial, "until": decision.until}
            return {**found, "priority": decision.priority}
        case Stop():
            return {"do": "stop", "trial": decision.trial}
        case Rank():
            return {"do": "rank", "trial": decision.trial, "priority": decision.priority}
        case Finish():
            return {"do": "finish"}


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise InternalError(f"the log must hold a whole number here, got {value!r}")
    return value
