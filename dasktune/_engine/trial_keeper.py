"""The trials of a study: how reports, failures and decisions change them."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from dasktune._engine.event_log import report_of
from dasktune._engine.session import Session
from dasktune._engine.trials import Alone, TrialRecord
from dasktune._engine.tuner_records import (
    Cause,
    ClockNoted,
    DevicesChosen,
    FailureTold,
    PredictionTold,
    PriorityTold,
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
from dasktune.errors import InternalError
from dasktune.types import (
    Assess,
    Decision,
    Extend,
    Finish,
    Objective,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
    TrialState,
    ended_at,
)


class TrialKeeper:
    """Keeps the trials of a study, and those of them whose rows are to be written."""

    def __init__(self, trials: dict[int, TrialRecord], objective: Objective) -> None:
        self.trials = trials
        self._objective = objective
        self._changed: dict[int, None] = {}

    def of(self, session: Session, local: int) -> TrialRecord:
        """Return the trial that a tuner knows by a number of its own."""
        return self.trials[session.numbers[local]]

    def change(self, trial: TrialRecord) -> None:
        """Note that the row of a trial is to be written."""
        self._changed[trial.number] = None

    def take_changed(self) -> tuple[TrialRecord, ...]:
        """Return the trials that have changed since this was last asked."""
        changed, self._changed = self._changed, {}
        return tuple(self.trials[number] for number in changed)

    def register(self, session: Session, decision: Register, *, alone: Alone | None) -> TrialRecord:
        """Return the new trial of a decision."""
        number = len(self.trials)
        session.numbers[decision.trial] = number
        trial = self.trials[number] = TrialRecord(
            number=number,
            tuner=session.place,
            local=decision.trial,
            params=decision.params,
            sequences=decision.sequences,
            max_steps=decision.max_steps,
            point=decision.point,
            domains=decision.domains,
            seed=decision.seed,
            alone=alone,
            needs=decision.needs,
            model_rank=decision.model_rank,
            problem=decision.problem,
        )
        self.change(trial)
        return trial

    def report(self, session: Session, trial: TrialRecord, report: Report) -> None:
        """Give a trial the values of a report that its tuner is told."""
        trial.steps, trial.values = report.step, self._objective.values(report.metrics)
        trial.ended_at = ended_at(report.metrics)
        if trial.until is None or report.step >= trial.until:
            trial.until = None
            session.requests.pop(trial.local, None)
            done = report.step >= trial.max_steps
            trial.state = TrialState.COMPLETE if done else TrialState.PAUSED
        self.change(trial)

    def fail(self, session: Session, trial: TrialRecord, message: str, traceback: str) -> None:
        """End a trial as a failure."""
        session.requests.pop(trial.local, None)
        session.questions.discard(trial.local)
        trial.state, trial.until = TrialState.FAIL, None
        trial.message, trial.traceback = message, traceback
        self.change(trial)

    def retry(self, session: Session, trial: TrialRecord) -> None:
        """Open the tuner again, and a trial that had failed."""
        self.reopen(session)
        trial.state, trial.message, trial.traceback = TrialState.PAUSED, "", ""
        self.change(trial)

    def retrain(self, session: Session, trial: TrialRecord) -> None:
        """Train a trial again to the step of its last report."""
        session.retrained.add(trial.local)
        trial.state, trial.until = TrialState.RUNNING, trial.steps
        self.change(trial)

    def end_retraining(self, session: Session, trial: TrialRecord, report: Report | None) -> None:
        """Give a trial its new values; without a report it failed, and keeps its old ones."""
        session.retrained.discard(trial.local)
        trial.state, trial.until = session.state_of(trial), None
        if report is not None:
            trial.values = self._objective.values(report.metrics)
            trial.ended_at = ended_at(report.metrics)
            trial.alone = replace(trial.alone or Alone(), told=0)
        self.change(trial)

    def reopen(self, session: Session) -> None:
        """Open the tuner again, and the trials that it had not stopped itself."""
        session.finished, session.ending = False, ""
        for local, number in session.numbers.items():
            trial = self.trials[number]
            if trial.state is TrialState.PRUNED and local not in session.stopped:
                trial.state = TrialState.PAUSED
                self.change(trial)

    def lengthen(self, session: Session, before: Step) -> list[TrialRecord]:
        """Raise `max_steps` of the trials if their tuner's has grown; return those trials."""
        longest = session.tuner.max_steps
        trials = [self.trials[number] for number in session.numbers.values()]
        longer = [trial for trial in trials if before == trial.max_steps < longest]
        for trial in longer:
            trial.max_steps = longest
            if trial.state is TrialState.COMPLETE:
                trial.state = TrialState.PAUSED
            self.change(trial)
        return longer

    def decide(self, session: Session, decision: Decision) -> None:
        """Keep what a decision means for its trial."""
        match decision:
            case Extend():
                trial = self.of(session, decision.trial)
                trial.state, trial.until = TrialState.RUNNING, decision.until
                session.requests[decision.trial] = decision
                # Its next report is of a trial by itself, too.
                session.retrained.discard(decision.trial)
                self.change(trial)
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
                self._prune(session, self.of(session, decision.trial))
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
            self.change(trial)

    def replay(self, session: Session, cause: Cause) -> None:
        """Change trials as a recorded cause did."""
        match cause:
            case ReportTold(trial=local, step=step, metrics=metrics):
                report = report_of(local, step, metrics, self._objective)
                self.report(session, self.of(session, local), report)
            case FailureTold(trial=local, message=message, traceback=traceback):
                self.fail(session, self.of(session, local), message, traceback)
            case PredictionTold(trial=local):
                session.questions.discard(local)
            case PriorityTold(model=model):
                session.assessed.discard(model)
            case TrialRetried(trial=local):
                self.retry(session, self.of(session, local))
            case RetrainingBegun(trial=local):
                self.retrain(session, self.of(session, local))
            case RetrainingEnded(trial=local, step=step, metrics=metrics):
                last = None if metrics is None else report_of(local, step, metrics, self._objective)
                self.end_retraining(session, self.of(session, local), last)
            case TunerWidened():
                self.reopen(session)
            case SnapshotTaken(state=state):
                session.restore(state)
            case TunerBegun() | WorkAsked() | TimeTold() | ClockNoted() | DevicesChosen():
                pass  # these change no trial
            case _:
                assert_never(cause)
