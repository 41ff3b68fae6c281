"""The engine of a study: a tuner and a dispatcher, from events to instructions and records.

It is pure: a runner feeds it events and carries out what it says, first making its
records durable. The Dask runner, the simulated one and a user's own loop drive this same
machine.

Every call of the tuner is a record (`dasktune._engine.tuner_records`). A tuner that was interrupted
is made again from its last snapshot and the records since.

The engine has four parts: `TunerLog` gathers the records, `TrialKeeper` holds the trials,
`TrialTraining` asks the dispatcher for their steps, and `TrialDevices` chooses their devices.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from dasktune._engine.absent_metric import absent_start, absent_text
from dasktune._engine.event_log import report_of
from dasktune._engine.outcome import Order, Outcome, RunAssessment, RunPrediction
from dasktune._engine.scaling import Scale
from dasktune._engine.session import Session, after_last_snapshot
from dasktune._engine.trial_devices import DevicesOf, TrialDevices
from dasktune._engine.trial_keeper import TrialKeeper
from dasktune._engine.trial_training import NeedsOf, TrialTraining
from dasktune._engine.trials import Alone, TrialRecord
from dasktune._engine.tuner_log import SNAPSHOT_EVERY, TunerLog, replay_record
from dasktune._engine.tuner_records import (
    ClockNoted,
    FailureTold,
    LoggedRecord,
    PredictionTold,
    PriorityTold,
    ReportTold,
    RetrainingBegun,
    RetrainingEnded,
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
from dasktune.errors import ConfigurationError, InternalError
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
from dasktune.needs import NumericClass
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
    Step,
    Stop,
    TrialState,
)


class Engine:
    """Runs one tuner at a time over a dispatcher.

    New trials are added to `trials`. With `fails_on_nan`, a value that is NaN or infinite ends its
    trial as a failure. `TunerLog`, `TrialTraining` and `TrialDevices` explain the other options.
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
        self._log = TunerLog(snapshot_every)
        self._keeper = TrialKeeper(trials, objective)
        self._training = TrialTraining(
            dispatcher,
            self._keeper,
            needs_of=needs_of,
            trains_alone=trains_alone,
            lone_lineages=lone_lineages,
        )
        self.devices = TrialDevices(
            *(dispatcher, self._keeper, self._training, self._log),
            devices_of=devices_of,
            scale=scale,
        )
        self._session: Session | None = None
        self._clock_before = 0.0
        self._orders: list[Order] = []
        self._reports: list[Report] = []
        self._warnings: list[str] = []
        self._refusal = ""
        self._is_held = False
        """Whether a warning of this run says that values beyond the bounds count as the bound."""
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
        """The number of workers without which no stage of now can be trained."""
        return self.devices.least_workers

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
        self._session = session = Session(tuner, place)
        self._clock_before = -now
        self.devices.expect(capacity)
        inputs = dict(inputs or {})
        if tuner.timed:
            inputs["directions"] = [direction.value for direction in self.objective.directions]
        tuner.prepare(inputs)
        # As the database gives it back, so that it is known again in this process, too.
        identity = json.loads(json.dumps(tuner.identity()))
        self._log.note(session, TunerBegun(identity=identity, inputs=inputs))
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

        `tuner` is a new one of the recorded identity. It is given `widen` trials in all from now
        on, takes back the failed trials `retry`, and has the trials `retrain` trained again, alone,
        to the step of their last report; these are its own numbers of trials. Left out of `retrain`
        are trials that the tuner waits for, and those that have failed or never reported.

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
            replay_record(session, self._keeper, record, self.objective)
        self._clock_before = session.seconds - now
        # Rows say this already; written again, they could undo what another driver added.
        self._keeper.take_changed()
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
        if self._session is not None and not is_asked:
            self._todo.extend(self.devices.give_more(self._session, now))
        return self._settle(now)

    def handle(self, event: Event, now: float) -> Outcome:
        """Handle one event of the runner."""
        self._todo.extend(self._dispatcher.handle(event, now))
        self._work(now)
        if self._session is not None:
            self._todo.extend(self.devices.follow(self._session, now))
        return self._settle(now)

    def predicted(
        self, subject: int | Assess, answer: Prediction | Priority | None, now: float
    ) -> Outcome:
        """Handle the answer of a `RunPrediction` or `RunAssessment`; None if it failed."""
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

        The plan takes the last states that became durable; no tuner is told of them.
        """
        if saved:
            self._dispatcher.drain()  # or they would start stages
        for event in saved:
            self._dispatcher.handle(event, now)
        self._dispatcher.dismiss()

    def meet(self, plain: NumericClass, present: Collection[NumericClass]) -> None:
        """Handle the numeric classes of the first workers, before any of them has a stage.

        No keys name the class `plain`; `present` are those of the workers.
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
            self._log.note(session, ClockNoted(seconds=self._clock(now)))

    def mute(self, now: float) -> None:
        """Tell the tuner nothing more: it cannot go on as it was asked to."""
        # What a call had begun when it was broken off must not be written by halves.
        self._log.drop()
        self._keeper.take_changed()
        self._reports = []
        self._todo.clear()
        session = self._session
        if session is not None and session.tuner.timed and not session.finished:
            self._log.add(session, ClockNoted(seconds=self._clock(now)))
        self._session = None

    # ------------------------------------------------------------- tuner and records

    def _ask(self, capacity: int, now: float) -> bool:
        """Ask the tuner once; return whether it decided anything."""
        session = self._session
        if session is None or session.finished:
            return False
        decisions = session.tuner.ask(capacity)
        if decisions:
            self._log.note(session, WorkAsked(capacity=capacity), decisions)
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
        metrics = dict(report.metrics)
        if is_retrained:
            self._keeper.end_retraining(session, trial, scored)
            ended = RetrainingEnded(trial=trial.local, step=trial.steps, metrics=metrics)
            self._log.note(session, ended)
            return
        if self._fails_on_nan and math.inf in scored.losses:
            self._fail_on_nan(report, now)
            return
        self._keeper.report(session, trial, scored)
        decisions = session.tuner.tell(scored)
        self._warn_of_bounds(session, trial, scored)
        cause = ReportTold(trial=trial.local, step=report.step, metrics=metrics, now=clock)
        self._log.note(session, cause, decisions)
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
        cause = PredictionTold(trial=local, prediction=prediction, seconds=seconds)
        self._log.note(session, cause, decisions)
        self._apply(session, decisions, now)

    def _tell_priority(
        self, session: Session, model: int, priority: Priority | None, now: float
    ) -> None:
        if model not in session.assessed:
            return  # the tuner has ended, or is another one
        session.assessed.discard(model)
        decisions = session.tuner.tell_priority(model, priority)
        self._log.note(session, PriorityTold(model=model, priority=priority), decisions)
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
        self._log.note(session, TimeTold(seconds=seconds), decisions)
        self._apply(session, decisions, now)
        self._work(now)

    def _fail_on_nan(self, report: Report, now: float) -> None:
        values = zip(self.objective.metrics, self.objective.values(report.metrics), strict=True)
        name, value = next(pair for pair in values if not math.isfinite(pair[1]))
        self._todo.extend(self._dispatcher.stop(report.trial, now))
        message = f"{name} must be finite (on_nan='fail'), got {value} at step {report.step}"
        self._fail(FailTrial(trial=report.trial, step=report.step, message=message), now)

    def _miss_metric(self, metric: str, report: Report, now: float) -> None:
        """Handle a report that lacks a metric: its trial fails.

        If a second trial lacks the metric and no trial has reported it, the run ends: the trainer
        probably never reports it. The event log has both failures, so the next run continues with
        the other trials.
        """
        known = self._dispatcher.metrics_between(
            report.trial, 0, self.trials[report.trial].max_steps + 1
        )
        message = absent_text(metric, report, known)
        trials, start = self.trials.values(), absent_start(metric)
        is_second = any(trial.message.startswith(start) for trial in trials)
        if is_second and all(trial.value is None for trial in trials):
            self._refusal = (
                f"{message}; no trial has reported it at a step at which its tuner asked, so the "
                "run ends"
            )
        self._todo.extend(self._dispatcher.stop(report.trial, now))
        self._fail(FailTrial(trial=report.trial, step=report.step, message=message), now)

    def _fail(self, failure: FailTrial, now: float) -> None:
        session, trial = self._session, self.trials[failure.trial]
        if session is None or trial.tuner != session.place or trial.state.is_finished:
            return
        local, message, traceback = trial.local, failure.message, failure.traceback
        if local in session.retrained:
            self._keeper.end_retraining(session, trial, None)
            ended = RetrainingEnded(
                trial=local, step=trial.steps, message=message, traceback=traceback
            )
            self._log.note(session, ended)
            return
        self._keeper.fail(session, trial, message, traceback)
        decisions = session.tuner.tell_failure(local)
        cause = FailureTold(trial=local, message=message, traceback=traceback)
        self._log.note(session, cause, decisions)
        self._apply(session, decisions, now)

    def _retry(self, session: Session, local: int, now: float) -> None:
        trial = self._keeper.of(session, local)
        self._dispatcher.forgive(trial.number)
        self._keeper.retry(session, trial)
        decisions = session.tuner.tell_retry(local, trial.steps)
        self._log.note(session, TrialRetried(trial=local, step=trial.steps), decisions)
        self._apply(session, decisions, now)

    def _retrain(self, session: Session, local: int, now: float) -> None:
        trial = self._keeper.of(session, local)
        is_waited_for = local in session.requests or local in session.retrained
        if is_waited_for or trial.state is TrialState.FAIL or not trial.steps:
            return
        self._dispatcher.forgive(trial.number)
        self._keeper.retrain(session, trial)
        self._log.note(session, RetrainingBegun(trial=local, step=trial.steps))
        self._todo.extend(self._training.train_again(trial, now))

    def _widen(self, session: Session, trials: int, now: float) -> None:
        self._keeper.reopen(session)
        before = session.tuner.max_steps
        decisions = session.tuner.widen(trials)
        for trial in self._keeper.lengthen(session, before):
            self._make_known(session, trial)
        self._log.note(session, TunerWidened(trials=trials), decisions)
        self._apply(session, decisions, now)

    def _ask_again(self, session: Session, now: float) -> None:
        """Make the trials known to the dispatcher, and ask for what they still wait for."""
        for number in sorted(session.numbers.values()):
            self._make_known(session, self.trials[number])
        for local, request in sorted(session.requests.items()):
            self._todo.extend(self._training.go_on(self._keeper.of(session, local), request, now))
        for local in sorted(session.retrained):
            self._todo.extend(self._training.train_again(self._keeper.of(session, local), now))
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
        asked = {each.trial: each for each in decisions if isinstance(each, Extend)}
        for decision in decisions:
            session.check(decision, self.trials)
            if isinstance(decision, Register):
                self._register(session, decision)
            else:
                self._keeper.decide(session, decision)
                if isinstance(decision, Extend):
                    self._todo.extend(self.devices.choose(session, decision, asked))
                self._todo.extend(self._carry_out(session, decision, now))

    def _register(self, session: Session, decision: Register) -> None:
        is_alone = self._training.is_alone(decision.sequences, decision.seed)
        alone = Alone() if is_alone else None
        self._make_known(session, self._keeper.register(session, decision, alone=alone))

    def _make_known(self, session: Session, trial: TrialRecord) -> None:
        """Make a trial known to the dispatcher, with the needs and the devices that it has now."""
        needs = None
        if not (problem := trial.problem):
            needs = self._training.needs(trial, session.tuner.searched_space)
            problem = self.devices.fit(trial, needs)
        if problem:
            self._training.refuse(trial, problem)
        self._todo.extend(self._training.enter(trial, needs))

    def _carry_out(self, session: Session, decision: Decision, now: float) -> list[Instruction]:
        """Pass a decision on to the dispatcher."""
        dispatcher = self._dispatcher
        match decision:
            case Extend():
                trial = self._keeper.of(session, decision.trial)
                return self._training.extend(trial, decision, now)
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
                self._training.bind(self.trials[instruction.trial], instruction.numerics)
            else:
                self._orders.append(instruction)

    def _settle(self, now: float) -> Outcome:
        """Return the outcome of all decisions and instructions since the last one."""
        self._work(now)
        self._tell_time(now)
        outcome = Outcome(
            tuple(self._orders),
            self._log.take(self._session),
            self._keeper.take_changed(),
            tuple(self._reports),
            tuple(self._warnings),
            self._refusal,
        )
        self._orders, self._reports, self._warnings, self._refusal = [], [], [], ""
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
