"""The engine of a study: a tuner and a dispatcher, from events to instructions and records.

It is pure: a runner feeds it events and carries out what it says, first making its
records durable. The Dask runner, the simulated one and a user's own loop drive this same
machine.

Every call of the tuner is a record (`dasktune._engine.tuner_records`). A tuner that was interrupted
is made again from its last snapshot and the records since.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from dasktune._engine.event_log import call, difference_of, report_of, seconds_of
from dasktune._engine.outcome import Order, Outcome, RunAssessment, RunPrediction
from dasktune._engine.scaling import DeviceChoices, Scale, count_living, one_device_text
from dasktune._engine.session import Session, after_last_snapshot
from dasktune._engine.trials import Alone, TrialRecord, lineage_of
from dasktune._engine.tuner_records import (
    Cause,
    ClockNoted,
    DevicesChosen,
    FailureTold,
    LoggedRecord,
    NewRecord,
    PredictionTold,
    PriorityTold,
    Record,
    ReportTold,
    RetrainingBegun,
    RetrainingEnded,
    SnapshotTaken,
    TimeTold,
    TrialRetried,
    TunerBegun,
    TunerWidened,
    WorkAsked,
)
from dasktune.algos.base import Inputs, Tuner
from dasktune.algos.curves.curve import Prediction
from dasktune.algos.forest.priority import Priority
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.algos.stopping import beyond_bounds
from dasktune.errors import ConfigurationError, InternalError, unknown
from dasktune.graph.devices import Periods, before, devices_text
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Bound,
    Deliver,
    Event,
    Evicted,
    FailTrial,
    Instruction,
    Saved,
)
from dasktune.graph.kept_speeds import KeptMeasurements
from dasktune.graph.view import RunView
from dasktune.needs import Needs, NumericClass
from dasktune.space import with_branches
from dasktune.types import (
    Assess,
    Decision,
    Direction,
    Extend,
    Finish,
    Metrics,
    Now,
    Objective,
    Predict,
    Rank,
    Register,
    Report,
    Sequences,
    Step,
    Stop,
    TrialState,
    Value,
    ended_at,
)

SNAPSHOT_EVERY = 1000
"""Records of a tuner between two snapshots of it, unless told otherwise."""

MOST_LIVING = 4
"""With more living trials for each worker, every trial is trained on one device."""

NeedsOf = Callable[[Mapping[str, Value]], Needs]
"""Returns the needs of a configuration from its values at step 0; raises `ConfigurationError`."""

DevicesOf = Callable[[Needs | None], int]
"""Returns how many devices train a trial together, from its own needs if it has any.

Raises `ConfigurationError` if its needs leave that open.
"""


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
    fails_on_nan
        Whether a value that is NaN or infinite ends its trial as a failure.
    trains_alone
        Whether trials are trained alone from now on: their trainer does not resume exactly. Those
        that have ended stay as they are.
    lone_lineages
        If not all are: the lineages whose trials are trained alone from now on.
    snapshot_every
        Records of a tuner between two snapshots of it, or as many as it has trials if those
        are more: so that a snapshot's share of the cost of a record does not grow.
    needs_of
        See `NeedsOf`; None if configurations have no needs of their own.
    devices_of
        See `DevicesOf`; None if each trial is trained on one device.
    scale
        Lets trials be trained on more devices than they need, late in a study.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        objective: Objective,
        trials: dict[int, TrialRecord],
        fails_on_nan: bool = False,
        trains_alone: bool = False,
        lone_lineages: frozenset[str] = frozenset(),
        snapshot_every: int = SNAPSHOT_EVERY,
        needs_of: NeedsOf | None = None,
        devices_of: DevicesOf | None = None,
        scale: Scale | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self.view = RunView(dispatcher)
        """The view of the run for readers outside the engine."""
        self.objective = objective
        self.trials = trials
        self.reports_told = 0
        self.own_workers = 0
        """Number of trials that a loop of the user trains side by side."""
        self._fails_on_nan = fails_on_nan
        self._trains_alone, self._lone_lineages = trains_alone, lone_lineages
        self._snapshot_every = snapshot_every
        self._needs_of = needs_of
        self._devices_of = devices_of
        self._choices = None if scale is None else DeviceChoices(scale, self.view)
        self._without_needs: dict[int, str] = {}
        """Why trials have no known needs, by number: they cannot be trained."""
        self._session: Session | None = None
        self._clock_before = 0.0
        self._orders: list[Order] = []
        self._records: list[NewRecord] = []
        self._reports: list[Report] = []
        self._warnings: list[str] = []
        self._is_held = False
        """Whether a warning of this run says that values beyond the bounds count as the bound."""
        self._changed: dict[int, None] = {}
        self._todo: deque[Instruction] = deque()

    @property
    def finished(self) -> bool:
        """Whether the tuner has ended, and no trial is trained again."""
        session = self._session
        return session is None or (session.finished and not session.retrained)

    @property
    def to_begin(self) -> int | None:
        """Number of trials that the tuner would still begin if it were asked; None if unknown."""
        session = self._session
        return 0 if session is None or session.finished else session.tuner.to_begin

    @property
    def least_workers(self) -> int:
        """The number of workers without which no stage of now can be trained.

        With `scale`, trials that wait for more workers than there are go on with fewer.
        """
        return 1 if self._choices is not None else self.view.least_workers

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models of the tuner's space, with their weights; empty without a forest."""
        return [] if self._session is None else self._session.tuner.model_weights

    @property
    def predicting(self) -> bool:
        """Whether a prediction, or the priority of a model, is waited for."""
        session = self._session
        if session is None or session.finished:
            return False
        return bool(session.questions or session.assessed)

    @property
    def due(self) -> float | None:
        """The time at which the tuner asks for `tell_time`, on the runner's clock, or None."""
        session = self._session
        due = None if session is None or session.finished else session.tuner.due_seconds
        return None if due is None else due - self._clock_before

    def recall(self, kept: KeptMeasurements) -> None:
        """Begin a run with the measurements of earlier runs, before a tuner begins.

        Decisions of the dispatcher rest on them, so they belong into the event log.
        """
        self._dispatcher.recall(kept)

    def begin(
        self,
        tuner: Tuner,
        *,
        place: int,
        capacity: int,
        now: float,
        inputs: Inputs | None = None,
    ) -> Outcome:
        """Start a tuner that the study has not seen; `place` counts the study's tuners.

        Raises
        ------
        ConfigurationError
            If the tuner is for one objective and the study has several.
        """
        refuse_objectives(tuner, self.objective)
        self._session = Session(tuner, place)
        self._clock_before = -now
        if self._choices is not None:
            self._choices.expected = capacity
        inputs = dict(inputs or {})
        if tuner.timed:
            inputs["directions"] = [direction.value for direction in self.objective.directions]
        tuner.prepare(inputs)
        # As the database gives it back, so that it is known again in this process, too.
        identity = json.loads(json.dumps(tuner.identity()))
        self._note(TunerBegun(identity=identity, inputs=inputs), ())
        self._ask(capacity, now)
        return self._settle(now)

    def resume(
        self,
        tuner: Tuner,
        *,
        place: int,
        records: Iterable[LoggedRecord],
        now: float,
        widen: int | None = None,
        retry: Iterable[int] = (),
        retrain: Iterable[int] = (),
    ) -> Outcome:
        """Go on with a tuner whose records are in the log.

        Parameters
        ----------
        tuner
            A new one of the recorded identity.
        place
            Which of the study's tuners it is.
        records
            All of its records.
        now
            Seconds since the run began.
        widen
            Number of trials in all that it is given from now on, if it changes.
        retry
            The failed trials that it takes back, by its own numbers.
        retrain
            The trials that are trained again, alone, to the step of their last report, by its own
            numbers. The tuner is not told: its decisions stay. Left out are trials that it waits
            for, and those that have failed or never reported.

        Raises
        ------
        ConfigurationError
            If the tuner decides otherwise than it did when the records were made.
        """
        self._session = session = Session(tuner, place)
        for trial in self.trials.values():
            if trial.tuner == place:
                session.numbers[trial.local] = trial.number
        for record in after_last_snapshot(records):
            self._replay(session, record)
        self._clock_before = session.seconds - now
        # Rows say this already; written again, they could undo what another driver added.
        self._changed.clear()
        self._ask_again(session, now)
        for local in retry:
            self._retry(session, local, now)
        for local in retrain:
            self._retrain(session, local, now)
        if widen is not None:
            self._widen(session, widen, now)
        return self._settle(now)

    def ask(self, capacity: int, now: float) -> Outcome:
        """Ask the tuner for more work; `capacity` counts the workers that have none.

        It is asked again where all that it asked for was known already: or nothing would be
        under way, and nothing would follow.
        """
        while is_asked := self._ask(capacity, now):
            self._work(now)
            if self.view.is_under_way:
                break
        if self._choices is not None and not is_asked:
            self._give_more_devices(self._choices, now)
        return self._settle(now)

    def handle(self, event: Event, now: float) -> Outcome:
        """Handle one event of the runner."""
        self._todo.extend(self._dispatcher.handle(event, now))
        if self._choices is not None:
            self._work(now)
            self._give_fewer_devices(self._choices, now)
            self._take_devices_back(self._choices, now)
            self._go_on_with_others(self._choices, now)
        return self._settle(now)

    def predicted(
        self, subject: int | Assess, answer: Prediction | Priority | None, now: float
    ) -> Outcome:
        """Handle the answer of a `RunPrediction` or `RunAssessment`; None if it failed.

        Parameters
        ----------
        subject
            Its subject: the number of a trial, or a model.
        answer
            The prediction of that trial, or the priority of that model.
        now
            Seconds since the run began.
        """
        session = self._session
        if session is None:
            return self._settle(now)
        match subject, answer:
            case Assess(), Priority() | None:
                self._tell_priority(session, subject.model, answer, now)
            case int(), Prediction() | None:
                trial = self.trials[subject]
                if trial.tuner == session.place:
                    self._tell_prediction(session, trial.local, answer, now)
            case _:
                raise InternalError(f"{subject!r} has an answer of another kind, {answer!r}")
        return self._settle(now)

    def measured(
        self, number: int, step: Step, metrics: Metrics, now: float, *, seconds: float
    ) -> Outcome:
        """Handle a report of a trial that the user trains in a loop outside the engine.

        `seconds` is how long it was trained since its report before.
        """
        before = self.trials[number].steps
        self._dispatcher.measure(number, step, steps=step - before, seconds=seconds)
        self._todo.extend(self._dispatcher.answer(number, step, metrics))
        return self._settle(now)

    def give_up(self, number: int, message: str, now: float) -> Outcome:
        """Handle the failure of a trial that the user trains in a loop outside the engine."""
        self._todo.extend(self._dispatcher.stop(number, now))
        self._todo.append(FailTrial(trial=number, step=0, message=message))
        return self._settle(now)

    def drain(self, now: float) -> Outcome:
        """Order every stage to end at its next step; the tuner does not end and can go on later."""
        self._todo.extend(self._dispatcher.drain())
        self._note_clock(now)
        return self._settle(now)

    def dismiss(self, saved: Sequence[Saved] = (), now: float = 0.0) -> None:
        """Forget all workers, requests and attempts: nothing more will be heard of them.

        Parameters
        ----------
        saved
            The last states that became durable. The plan takes them; no tuner is told of them.
        now
            Seconds since the run began.
        """
        if saved:
            self._dispatcher.drain()  # or they would start stages
        for event in saved:
            self._dispatcher.handle(event, now)
        self._dispatcher.dismiss()

    def meet(self, plain: NumericClass, present: Collection[NumericClass]) -> None:
        """Handle the numeric classes of the first workers, before any of them has a stage.

        Parameters
        ----------
        plain
            The class that no keys name.
        present
            Those of the workers.
        """
        known = self._dispatcher.plan.paths
        begun = [
            trial.number
            for trial in self.trials.values()
            if trial.steps and not trial.numerics and trial.number in known
        ]
        self._dispatcher.meet(plain, present, begun)

    def evicted(self, events: Iterable[Evicted]) -> None:
        """Forget states that were evicted after the run was dismissed."""
        for event in events:
            self._dispatcher.handle(event, 0.0)

    def next_tick(self, now: float) -> float | None:
        """Return when a `Tick` is due: the next worker is about to run dry."""
        return self._dispatcher.next_tick(now)

    def _note_clock(self, now: float) -> None:
        """Write down how long a timed tuner has run: what it ran since its last call counts."""
        session = self._session
        if session is not None and session.tuner.timed and not session.finished:
            self._note(ClockNoted(seconds=self._clock(now)), ())

    def mute(self, now: float) -> None:
        """Tell the tuner nothing more: it cannot go on as it was asked to."""
        # What a call had begun when it was broken off must not be written by halves.
        self._records, self._reports, self._changed = [], [], {}
        self._todo.clear()
        session = self._session
        if session is not None and session.tuner.timed and not session.finished:
            cause = ClockNoted(seconds=self._clock(now))
            self._records = [Record(cause=cause, place=session.place)]
        self._session = None

    # ------------------------------------------------------------- tuner and records

    def _ask(self, capacity: int, now: float) -> bool:
        """Ask the tuner once; return whether it decided anything."""
        session = self._session
        if session is None or session.finished:
            return False
        decisions = session.tuner.ask(capacity)
        if decisions:
            self._note(WorkAsked(capacity=capacity), decisions)
            self._apply(session, decisions, now)
        return bool(decisions)

    def _tell(self, report: Report, now: float) -> None:
        session, trial = self._session, self.trials[report.trial]
        if session is None or trial.tuner != session.place or trial.state.is_finished:
            return
        is_retrained = trial.local in session.retrained
        request = session.requests.get(trial.local)
        if not is_retrained and not _is_answer(report, request, trial):
            return
        missing = [name for name in self.objective.metrics if name not in report.metrics]
        if missing:
            self._miss_metric(missing[0], report, now)
            return
        clock = self._now_of(session, report, now)
        scored = report_of(trial.local, report.step, report.metrics, self.objective, clock)
        self._reports.append(
            scored if trial.local == trial.number else replace(scored, trial=trial.number)
        )
        self.reports_told += 1
        if is_retrained:
            self._take_retrained(session, trial, scored)
            metrics = dict(report.metrics)
            ended = RetrainingEnded(trial=trial.local, step=trial.steps, metrics=metrics)
            self._note(ended, ())
            return
        if self._fails_on_nan and math.inf in scored.losses:
            self._fail_on_nan(report, now)
            return
        self._take_report(session, trial, scored)
        decisions = session.tuner.tell(scored)
        self._warn_of_bounds(session, trial, scored)
        metrics = dict(report.metrics)
        cause = ReportTold(trial=trial.local, step=report.step, metrics=metrics, now=clock)
        self._note(cause, decisions)
        self._apply(session, decisions, now)

    def _warn_of_bounds(self, session: Session, trial: TrialRecord, report: Report) -> None:
        """Warn once a run of a value beyond the bounds of the tuner."""
        bounds = session.tuner.value_bounds
        if self._is_held or bounds == (None, None):
            return
        sign = -1.0 if self.objective.directions[0] is Direction.MAXIMIZE else 1.0
        for step, loss in report.seen:
            where = f" at step {step} of trial {trial.number}"
            metric = self.objective.metrics[0]
            for problem in beyond_bounds(sign * loss, *bounds, metric=metric, where=where):
                self._is_held = True
                self._warnings.append(f"{problem}; such values count as the bound")
                return

    def _tell_prediction(
        self, session: Session, local: int, prediction: Prediction | None, now: float
    ) -> None:
        if local not in session.questions:
            return  # the tuner waits for it no longer
        session.questions.discard(local)
        decisions = session.tuner.tell_prediction(local, prediction)
        seconds = self._clock(now)
        self._note(PredictionTold(trial=local, prediction=prediction, seconds=seconds), decisions)
        self._apply(session, decisions, now)

    def _tell_priority(
        self, session: Session, model: int, priority: Priority | None, now: float
    ) -> None:
        if model not in session.assessed:
            return  # the tuner has ended, or is another one
        session.assessed.discard(model)
        decisions = session.tuner.tell_priority(model, priority)
        self._note(PriorityTold(model=model, priority=priority), decisions)
        self._apply(session, decisions, now)

    def _now_of(self, session: Session, report: Report, now: float) -> Now | None:
        """Return the state of the run that a timed tuner receives with a report."""
        if not session.tuner.timed:
            return None
        return Now(
            seconds=self._clock(now),
            step_seconds=self._dispatcher.seconds_per_step(report.trial),
            workers=max(1, self.own_workers, len(self._dispatcher.slots)),
            between=tuple(
                (step, self.objective.losses(metrics))
                for step, metrics in self._dispatcher.metrics_between(
                    report.trial, self.trials[report.trial].steps, report.step
                )
                if all(name in metrics for name in self.objective.metrics)
            ),
        )

    def _clock(self, now: float) -> float:
        """Return how long the tuner has run, all its runs together."""
        return self._clock_before + now

    def _tell_time(self, now: float) -> None:
        """Tell the tuner of the time when it has come that it wants to be told of."""
        session, due = self._session, self.due
        if session is None or due is None or now < due:
            return
        seconds = max(self._clock(now), session.tuner.due_seconds or 0.0)
        decisions = session.tuner.tell_time(seconds)
        self._note(TimeTold(seconds=seconds), decisions)
        self._apply(session, decisions, now)
        self._work(now)

    def _fail_on_nan(self, report: Report, now: float) -> None:
        values = zip(self.objective.metrics, self.objective.values(report.metrics), strict=True)
        name, value = next(pair for pair in values if not math.isfinite(pair[1]))
        self._todo.extend(self._dispatcher.stop(report.trial, now))
        message = f"{name} must be finite (on_nan='fail'), got {value} at step {report.step}"
        self._fail(FailTrial(trial=report.trial, step=report.step, message=message), now)

    def _miss_metric(self, metric: str, report: Report, now: float) -> None:
        """Handle a report that lacks a metric: the trial fails if other trials have the metric.

        Raises
        ------
        ConfigurationError
            If no trial has had it yet: the name must be wrong.
        """
        if all(trial.value is None for trial in self.trials.values()):
            raise ConfigurationError(unknown("metric", metric, report.metrics))
        message = (
            f"evaluate must return {metric!r}, got {', '.join(report.metrics) or 'nothing'} at "
            f"step {report.step}"
        )
        self._todo.extend(self._dispatcher.stop(report.trial, now))
        self._fail(FailTrial(trial=report.trial, step=report.step, message=message), now)

    def _fail(self, failure: FailTrial, now: float) -> None:
        session, trial = self._session, self.trials[failure.trial]
        if session is None or trial.tuner != session.place or trial.state.is_finished:
            return
        if trial.local in session.retrained:
            self._take_retrained(session, trial, None)
            ended = RetrainingEnded(
                trial=trial.local,
                step=trial.steps,
                message=failure.message,
                traceback=failure.traceback,
            )
            self._note(ended, ())
            return
        self._take_failure(session, trial, failure.message, failure.traceback)
        decisions = session.tuner.tell_failure(trial.local)
        message, traceback = failure.message, failure.traceback
        cause = FailureTold(trial=trial.local, message=message, traceback=traceback)
        self._note(cause, decisions)
        self._apply(session, decisions, now)

    def _retry(self, session: Session, local: int, now: float) -> None:
        trial = self.trials[session.numbers[local]]
        self._dispatcher.forgive(trial.number)
        self._take_retry(session, trial)
        decisions = session.tuner.tell_retry(local, trial.steps)
        self._note(TrialRetried(trial=local, step=trial.steps), decisions)
        self._apply(session, decisions, now)

    def _retrain(self, session: Session, local: int, now: float) -> None:
        trial = self.trials[session.numbers[local]]
        is_waited_for = local in session.requests or local in session.retrained
        if is_waited_for or trial.state is TrialState.FAIL or not trial.steps:
            return
        self._dispatcher.forgive(trial.number)
        self._take_retrain(session, trial)
        self._note(RetrainingBegun(trial=local, step=trial.steps), ())
        self._train_again(trial, now)

    def _train_again(self, trial: TrialRecord, now: float) -> None:
        """Ask the dispatcher for what a trial has reported, trained by itself."""
        if self._fails_without_needs(trial):
            return
        self._separate(trial)
        self._todo.extend(self._dispatcher.extend(trial.number, trial.steps, 0.0, now))

    def _widen(self, session: Session, trials: int, now: float) -> None:
        self._reopen(session)
        before = session.tuner.max_steps
        decisions = session.tuner.widen(trials)
        for trial in self._lengthened(session, before):
            self._make_known(trial)
        self._note(TunerWidened(trials=trials), decisions)
        self._apply(session, decisions, now)

    def _take_report(self, session: Session, trial: TrialRecord, report: Report) -> None:
        trial.steps, trial.values = report.step, self.objective.values(report.metrics)
        trial.ended_at = ended_at(report.metrics)
        if trial.until is None or report.step >= trial.until:
            trial.until = None
            session.requests.pop(trial.local, None)
            done = report.step >= trial.max_steps
            trial.state = TrialState.COMPLETE if done else TrialState.PAUSED
        self._changed[trial.number] = None

    def _take_failure(
        self, session: Session, trial: TrialRecord, message: str, traceback: str
    ) -> None:
        session.requests.pop(trial.local, None)
        session.questions.discard(trial.local)
        trial.state, trial.until = TrialState.FAIL, None
        trial.message, trial.traceback = message, traceback
        self._changed[trial.number] = None

    def _take_retry(self, session: Session, trial: TrialRecord) -> None:
        """Open the tuner again, and a trial that had failed."""
        self._reopen(session)
        trial.state, trial.message, trial.traceback = TrialState.PAUSED, "", ""
        self._changed[trial.number] = None

    def _take_retrain(self, session: Session, trial: TrialRecord) -> None:
        session.retrained.add(trial.local)
        trial.state, trial.until = TrialState.RUNNING, trial.steps
        self._changed[trial.number] = None

    def _take_retrained(self, session: Session, trial: TrialRecord, report: Report | None) -> None:
        """Give a trial its new values; without a report it failed, and keeps its old ones."""
        session.retrained.discard(trial.local)
        trial.state, trial.until = session.state_of(trial), None
        if report is not None:
            trial.values = self.objective.values(report.metrics)
            trial.ended_at = ended_at(report.metrics)
            trial.alone = replace(trial.alone or Alone(), told=0)
        self._changed[trial.number] = None

    def _reopen(self, session: Session) -> None:
        """Open the tuner again, and what it had not stopped itself."""
        session.finished, session.ending = False, ""
        for local, number in session.numbers.items():
            trial = self.trials[number]
            if trial.state is TrialState.PRUNED and local not in session.stopped:
                trial.state = TrialState.PAUSED
                self._changed[number] = None

    def _lengthened(self, session: Session, before: Step) -> list[TrialRecord]:
        """Raise `max_steps` of the trials if their tuner's has grown; return those trials."""
        longest = session.tuner.max_steps
        trials = [self.trials[number] for number in session.numbers.values()]
        longer = [trial for trial in trials if before == trial.max_steps < longest]
        for trial in longer:
            trial.max_steps = longest
            if trial.state is TrialState.COMPLETE:
                trial.state = TrialState.PAUSED
            self._changed[trial.number] = None
        return longer

    def _note(self, cause: Cause, decisions: Iterable[Decision]) -> None:
        session = self._session
        if session is None:
            raise InternalError("a record needs a tuner")
        self._records.append(
            Record(
                cause=cause,
                place=session.place,
                decisions=tuple(decisions),
                proposals=session.tuner.take_proposals(),
            )
        )
        session.since_snapshot += 1
        session.seconds = max(session.seconds, seconds_of(cause))

    def _take_snapshot(self) -> None:
        """Add a snapshot to the records now and then."""
        session = self._session
        if session is None:
            return
        if session.since_snapshot < max(self._snapshot_every, len(session.numbers)):
            return
        session.since_snapshot = 0
        self._records.append(
            Record(cause=SnapshotTaken(state=session.snapshot()), place=session.place)
        )

    def _replay(self, session: Session, record: LoggedRecord) -> None:
        """Give one recorded cause to the tuner and compare what it decides."""
        cause, objective = record.cause, self.objective
        match cause:
            case ReportTold(trial=local, step=step, metrics=metrics):
                report = report_of(local, step, metrics, objective)
                self._take_report(session, self._trial(session, local), report)
            case FailureTold(trial=local, message=message, traceback=traceback):
                self._take_failure(session, self._trial(session, local), message, traceback)
            case PredictionTold(trial=local):
                session.questions.discard(local)
            case PriorityTold(model=model):
                session.assessed.discard(model)
            case TrialRetried(trial=local):
                self._take_retry(session, self._trial(session, local))
            case RetrainingBegun(trial=local):
                self._take_retrain(session, self._trial(session, local))
            case RetrainingEnded(trial=local, step=step, metrics=metrics):
                last = None if metrics is None else report_of(local, step, metrics, objective)
                self._take_retrained(session, self._trial(session, local), last)
            case TunerWidened():
                self._reopen(session)
            case SnapshotTaken(state=state):
                session.restore(state)
            case TunerBegun() | WorkAsked() | TimeTold() | ClockNoted() | DevicesChosen():
                pass  # these change no trial
            case _:
                assert_never(cause)
        session.seconds = max(session.seconds, seconds_of(cause))
        before = session.tuner.max_steps
        decisions = call(session.tuner, record, objective)
        if isinstance(cause, TunerWidened):
            self._lengthened(session, before)
        session.tuner.take_proposals()
        difference = difference_of(record, decisions)
        if difference is not None:
            raise ConfigurationError(f"the tuner must decide as recorded: {difference}")
        for decision in decisions:
            self._remember(session, decision)
        is_snapshot = isinstance(cause, SnapshotTaken)
        session.since_snapshot = 0 if is_snapshot else session.since_snapshot + 1

    def _trial(self, session: Session, local: int) -> TrialRecord:
        """Return the trial that a tuner knows by a number of its own."""
        return self.trials[session.numbers[local]]

    def _ask_again(self, session: Session, now: float) -> None:
        """Make the trials known to the dispatcher, and ask for what they still wait for."""
        for number in sorted(session.numbers.values()):
            self._make_known(self.trials[number])
        for local, request in sorted(session.requests.items()):
            trial = self.trials[session.numbers[local]]
            ahead = tuple(step for step in request.reports if step > trial.steps)
            self._extend(trial, replace(request, reports=ahead), now)
        for local in sorted(session.retrained):
            self._train_again(self.trials[session.numbers[local]], now)
        for local in sorted(session.questions):
            number = session.numbers[local]
            if self.trials[number].state.is_finished:
                self._tell_prediction(session, local, None, now)  # it has ended without it
            else:
                self._orders.append(self._prediction_of(session, local))
        self._orders += [self._assessment_of(session, model) for model in sorted(session.assessed)]

    def _assessment_of(self, session: Session, model: int) -> RunAssessment:
        return RunAssessment(model=model, question=session.tuner.model_question(model))

    def _prediction_of(self, session: Session, local: int) -> RunPrediction:
        question = session.tuner.question(local)
        return RunPrediction(trial=session.numbers[local], question=question)

    # -------------------------------------------------------------------- decisions

    def _apply(self, session: Session, decisions: Collection[Decision], now: float) -> None:
        asked: dict[int, Extend] = {}
        if self._choices is not None:
            asked = {each.trial: each for each in decisions if isinstance(each, Extend)}
        for decision in decisions:
            session.check(decision, self.trials)
            if isinstance(decision, Register):
                self._register(session, decision)
            else:
                self._remember(session, decision)
                if isinstance(decision, Extend):
                    self._scale(session, decision, asked=asked)
                self._todo.extend(self._carry_out(session, decision, now))

    def _register(self, session: Session, decision: Register) -> None:
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
            alone=Alone() if self._is_alone(decision.sequences, decision.seed) else None,
            needs=decision.needs,
            model_rank=decision.model_rank,
        )
        self._changed[number] = None
        self._make_known(self.trials[number])

    def _make_known(self, trial: TrialRecord) -> None:
        needs = self._needs(trial)
        self._take_devices(trial, needs)
        if self._choices is not None:
            self._choices.take(trial)
        self._enter(trial, needs)

    def _enter(self, trial: TrialRecord, needs: Needs | None) -> None:
        """Make a trial known to the dispatcher, with the devices that it has now."""
        instructions = self._dispatcher.register(
            *(trial.number, trial.keyed_sequences, trial.max_steps, trial.seed),
            is_alone=trial.alone is not None,
            needs=needs,
            model_rank=trial.model_rank,
            numerics=trial.numeric_class,
        )
        self._todo.extend(instructions)

    def _take_devices(self, trial: TrialRecord, needs: Needs | None) -> None:
        """Train a new trial on as many devices as it needs; one that has begun, from now on."""
        if self._devices_of is None or trial.state.is_finished:
            return
        try:
            devices = self._devices_of(needs)
        except ConfigurationError as error:
            self._without_needs[trial.number] = str(error)
            return
        if self._choices is not None:  # they are chosen when it is extended
            if devices > 1:
                self._without_needs[trial.number] = one_device_text(devices)
            return
        if not trial.use_devices(devices):
            return
        self._changed[trial.number] = None
        if trial.number in self._dispatcher.plan.paths:
            # The study has read it as it was; it asks for nothing yet, and is made known anew.
            self._dispatcher.plan.remove(trial.number)

    def _scale(self, session: Session, request: Extend, *, asked: Mapping[int, Extend]) -> None:
        """Choose the devices of a trial for a new request; `asked` are those of this call."""
        trial = self.trials[session.numbers[request.trial]]
        is_alone = trial.alone is not None or self._is_alone(trial.sequences, trial.seed)
        if self._choices is None or is_alone or trial.number in self.view.wanted:
            return  # there is no state to go on from with other devices
        living = self._living(session, request, asked)
        living += session.tuner.to_begin or 0
        self._choices.renew(trial.number)
        periods = self._choices.periods(
            trial, start=trial.steps, until=request.until, living=living
        )
        self._use_devices(session, self._choices, trial, periods)

    def _living(self, session: Session, request: Extend, asked: Mapping[int, Extend]) -> float:
        """Return for how many trials the devices must last while one request is trained."""
        requests = {**session.requests, **asked}
        own = self._seconds_left(session, requests.pop(request.trial, request))
        certain = len(session.retrained)
        if len(requests) > MOST_LIVING * len(self.view.slots):
            return float(certain + len(requests))  # none of them will have several devices
        others = (self._seconds_left(session, each) for each in requests.values())
        return certain + count_living(own, others)

    def _seconds_left(self, session: Session, request: Extend) -> float:
        """Return about how long the rest of a request takes; steps before any was measured."""
        trial = self.trials[session.numbers[request.trial]]
        seconds = self._dispatcher.seconds_per_step(trial.number) or 1.0
        return max(1, request.until - trial.steps) * seconds

    def _give_fewer_devices(self, choices: DeviceChoices, now: float) -> None:
        """Give trials that wait for more devices than are left as many as there are."""
        session = self._session
        if session is None:
            return
        for number, start in list(choices.unmet()):
            trial = self.trials[number]
            request = self._request_of(session, trial)
            # What was reported already must be trained again as it was, once there are workers.
            if request is not None and start >= trial.steps:
                self._todo.extend(self._dispatcher.stop(number, now))
                choices.renew(number)  # it may grow again when workers return
                self._choose_again(session, choices, request, start=start, now=now)

    def _take_devices_back(self, choices: DeviceChoices, now: float) -> None:
        """End the stages of trials whose devices do not pay; those that have ended go on."""
        session = self._session
        if session is None:
            return
        for number in list(choices.wasteful(self.trials)):
            if self._request_of(session, self.trials[number]) is not None:
                self._todo.extend(self._dispatcher.stop(number, now))
                choices.moving[number] = False

    def _give_more_devices(self, choices: DeviceChoices, now: float) -> None:
        """End the stages that idle workers shall join: the tuner has no other work for those."""
        session = self._session
        if session is None or session.finished:
            return

        def living(number: int) -> float:
            request = session.requests[self.trials[number].local]
            return self._living(session, request, {})

        def may_change(number: int) -> bool:
            return self._request_of(session, self.trials[number]) is not None

        for growth in list(choices.growing(self.trials, may_change, living)):
            for number in growth.trials:
                self._todo.extend(self._dispatcher.stop(number, now))
                choices.moving[number] = True

    def _go_on_with_others(self, choices: DeviceChoices, now: float) -> None:
        """Ask for the rest of the trials whose stages were ended for other devices."""
        session = self._session
        if session is None:
            return
        for number in sorted(choices.moving):
            trial = self.trials[number]
            request = self._request_of(session, trial)
            start = self.view.last_state(number, trial.steps)
            if request is None or number in self.view.wanted:
                del choices.moving[number]  # the tuner has decided otherwise meanwhile
            elif start is not None:
                is_grown = choices.moving.pop(number)
                self._choose_again(
                    *(session, choices, request), start=start, now=now, from_idle=is_grown
                )

    def _request_of(self, session: Session, trial: TrialRecord) -> Extend | None:
        """Return the request of a trial that may change its devices, if there is one."""
        if trial.tuner != session.place or trial.alone is not None:
            return None
        return session.requests.get(trial.local)

    def _choose_again(
        self,
        session: Session,
        choices: DeviceChoices,
        request: Extend,
        *,
        start: Step,
        now: float,
        from_idle: bool = False,
    ) -> None:
        """Ask for the rest of a request, on devices that are chosen for it now."""
        trial = self.trials[session.numbers[request.trial]]
        if start < request.until:
            living = self._living(session, request, {})
            if not from_idle:
                living += session.tuner.to_begin or 0
            periods = choices.periods(
                trial, start=start, until=request.until, living=living, from_idle=from_idle
            )
            self._use_devices(session, choices, trial, periods)
        ahead = tuple(step for step in request.reports if step > trial.steps)
        self._extend(trial, replace(request, reports=ahead), now)

    def _use_devices(
        self, session: Session, choices: DeviceChoices, trial: TrialRecord, periods: Periods
    ) -> None:
        """Train a trial on other devices from now on; the log says which were chosen."""
        if periods == trial.devices:
            return
        if before(periods, trial.steps) != before(trial.devices, trial.steps):
            raise InternalError(
                f"trial {trial.number} must keep its devices up to step {trial.steps}, got "
                f"{devices_text(periods)} after {devices_text(trial.devices)}"
            )
        trial.devices = periods
        choices.take(trial)
        self._changed[trial.number] = None
        self._dispatcher.plan.remove(trial.number)
        self._enter(trial, self._needs(trial))
        self._note(DevicesChosen(trial=trial.local, devices=periods), ())

    def _needs(self, trial: TrialRecord) -> Needs | None:
        """Return a trial's own needs: its tuner's, or those of its configuration."""
        if trial.needs is not None:
            return trial.needs
        try:
            return self._needs_of_configuration(trial)
        except ConfigurationError as error:
            self._without_needs[trial.number] = str(error)
            return None

    def _needs_of_configuration(self, trial: TrialRecord) -> Needs | None:
        """Return the needs of a trial by its values; None if it has those of the study alone."""
        needs = study = self.view.needs
        if self._needs_of is not None:
            needs = self._needs_of({name: each(0) for name, each in trial.sequences.items()})
        space = None if self._session is None else self._session.tuner.searched_space
        if space is not None:
            needs = with_branches(needs, space, trial.sequences)
        return None if needs is study else needs

    def _extend(self, trial: TrialRecord, request: Extend, now: float) -> None:
        """Ask the dispatcher for training, of a trial by itself if all are from now on."""
        if self._fails_without_needs(trial):
            return
        if self._is_alone(trial.sequences, trial.seed):
            self._separate(trial)
        instructions = self._dispatcher.extend(
            trial.number, request.until, request.priority, now, request.reports
        )
        self._todo.extend(instructions)

    def _fails_without_needs(self, trial: TrialRecord) -> bool:
        """Fail a trial whose needs are unknown; return whether it has failed."""
        problem = self._without_needs.get(trial.number)
        if problem is not None:
            self._todo.append(FailTrial(trial=trial.number, step=trial.steps, message=problem))
        return problem is not None

    def _is_alone(self, sequences: Sequences, seed: int) -> bool:
        """Return whether trials of a lineage are trained by themselves from now on."""
        lone = self._lone_lineages
        return self._trains_alone or bool(lone and lineage_of(sequences, seed) in lone)

    def _separate(self, trial: TrialRecord) -> None:
        """Train a trial by itself from now on."""
        if trial.alone is None:
            trial.devices = ((0, trial.devices[-1][1]),)
            path = trial.number, trial.keyed_sequences, trial.max_steps, trial.seed
            trial.alone = Alone(told=trial.steps, trained=self._dispatcher.separate(*path))
            trial.numerics = ""
            self._changed[trial.number] = None

    def _bind(self, trial: TrialRecord, numerics: NumericClass) -> None:
        """Note the numeric class that a trial's keys name, before its first stage is sent."""
        if trial.numerics != numerics.name:
            trial.numerics = numerics.name
            self._changed[trial.number] = None

    def _carry_out(self, session: Session, decision: Decision, now: float) -> list[Instruction]:
        """Pass a decision on to the dispatcher."""
        dispatcher = self._dispatcher
        match decision:
            case Extend():
                self._extend(self.trials[session.numbers[decision.trial]], decision, now)
                return []
            case Stop() if decision.trial in session.retrained:
                return []
            case Stop():
                return dispatcher.stop(session.numbers[decision.trial], now)
            case Rank():
                return dispatcher.rank(session.numbers[decision.trial], decision.priority)
            case Predict():
                self._orders.append(self._prediction_of(session, decision.trial))
                return []
            case Assess():
                self._orders.append(self._assessment_of(session, decision.model))
                return []
            case Finish():
                live = [
                    number
                    for local, number in session.numbers.items()
                    if number in dispatcher.wanted and local not in session.retrained
                ]
                return [
                    instruction for number in live for instruction in dispatcher.stop(number, now)
                ]
            case _:
                raise InternalError(f"unknown decision {decision!r}")

    def _remember(self, session: Session, decision: Decision) -> None:
        """Keep what a decision means for its trial."""
        match decision:
            case Extend():
                trial = self.trials[session.numbers[decision.trial]]
                trial.state, trial.until = TrialState.RUNNING, decision.until
                session.requests[decision.trial] = decision
                # Its next report is of a trial by itself, too.
                session.retrained.discard(decision.trial)
                self._changed[trial.number] = None
            case Rank():
                request = session.requests.get(decision.trial)
                if request is not None:
                    ranked = replace(request, priority=decision.priority)
                    session.requests[decision.trial] = ranked
            case Predict():
                session.questions.add(decision.trial)
            case Assess():
                session.assessed.add(decision.model)
            case Stop():
                session.requests.pop(decision.trial, None)
                session.questions.discard(decision.trial)
                session.stopped.add(decision.trial)
                self._prune(session, self.trials[session.numbers[decision.trial]])
            case Finish():
                session.finished, session.ending = True, decision.reason
                session.requests.clear()
                session.questions.clear()
                session.assessed.clear()
                for number in session.numbers.values():
                    self._prune(session, self.trials[number])
            case Register():
                pass  # its trial is known already
            case _:
                raise InternalError(f"unknown decision {decision!r}")

    def _prune(self, session: Session, trial: TrialRecord) -> None:
        # One that is trained again gets its state at the end of that.
        if not trial.state.is_finished and trial.local not in session.retrained:
            trial.state, trial.until = TrialState.PRUNED, None
            self._changed[trial.number] = None

    # ----------------------------------------------------------------------- output

    def _work(self, now: float) -> None:
        """Go on until the tuner and the dispatcher have nothing more to say to each other."""
        while self._todo:
            instruction = self._todo.popleft()
            if isinstance(instruction, Deliver):
                self._tell(instruction.report, now)
            elif isinstance(instruction, FailTrial):
                self._fail(instruction, now)
            elif isinstance(instruction, Bound):
                self._bind(self.trials[instruction.trial], instruction.numerics)
            else:
                self._orders.append(instruction)

    def _settle(self, now: float) -> Outcome:
        """Return the outcome of all decisions and instructions since the last one."""
        self._work(now)
        self._tell_time(now)
        self._take_snapshot()
        outcome = Outcome(
            tuple(self._orders),
            tuple(self._records),
            tuple(self.trials[number] for number in self._changed),
            tuple(self._reports),
            tuple(self._warnings),
        )
        self._orders, self._records, self._reports, self._changed = [], [], [], {}
        self._warnings = []
        return outcome


def refuse_objectives(tuner: Tuner, objective: Objective) -> None:
    """Refuse a tuner for one objective where there are several."""
    if len(objective.metrics) > 1 and not tuner.several_objectives:
        raise ConfigurationError(
            f"{type(tuner).__name__} must have one objective, since it compares trials on "
            f"the way, got {', '.join(objective.metrics)}"
        )


def _is_answer(report: Report, request: Extend | None, trial: TrialRecord) -> bool:
    """Whether a report is the next that a tuner waits for: it may ask anew in the meantime."""
    return (
        request is not None
        and report.step in (*request.reports, request.until)
        and report.step > trial.steps
    )
