"""The session of a tuner: its trials' numbers, what it asks for, and whether that can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dasktune._engine.event_log import describe, extend_of
from dasktune._engine.trials import TrialRecord
from dasktune._engine.tuner_records import LoggedRecord, SnapshotTaken
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, InternalError
from dasktune.types import Assess, Decision, Extend, Finish, Register, TrialState


@dataclass(slots=True)
class Session:
    """A tuner at work: its place in the study, its trials' numbers and what it asks for.

    `questions` are the trials whose prediction it waits for. `retrained` are those that are trained
    again to the step of their last report: the tuner does not wait for them. `assessed` are the
    models whose priority it waits for.
    """

    tuner: Tuner
    place: int
    numbers: dict[int, int] = field(default_factory=dict)
    requests: dict[int, Extend] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    questions: set[int] = field(default_factory=set)
    assessed: set[int] = field(default_factory=set)
    retrained: set[int] = field(default_factory=set)
    finished: bool = False
    ending: str = ""
    since_snapshot: int = 0
    seconds: float = 0.0
    """Seconds that the tuner has run, by its records."""

    def snapshot(self) -> dict[str, object]:
        """Return all of it but the numbers, which the trials themselves say, as JSON."""
        timed = {"seconds": self.seconds, "questions": sorted(self.questions)}
        return {
            "tuner": self.tuner.snapshot(),
            "requests": [describe(request) for request in self.requests.values()],
            "stopped": sorted(self.stopped),
            "finished": self.finished,
            **(timed if self.seconds or self.questions else {}),
            **({"ending": self.ending} if self.ending else {}),
            **({"retrained": sorted(self.retrained)} if self.retrained else {}),
            **({"assessed": sorted(self.assessed)} if self.assessed else {}),
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take over what `snapshot` returned."""
        match snapshot:
            case {
                "tuner": dict(tuner),
                "requests": list(requests),
                "stopped": list(stopped),
                "finished": bool(finished),
                **others,
            }:
                self.tuner.restore(tuner)
                self.seconds = others.get("seconds", 0.0)
                self.questions = set(others.get("questions", ()))
                self.requests = {request["trial"]: extend_of(request) for request in requests}
                self.stopped, self.finished = set(stopped), finished
                self.ending = others.get("ending", "")
                self.retrained = set(others.get("retrained", ()))
                self.assessed = set(others.get("assessed", ()))
            case _:
                raise InternalError(f"not a snapshot of a session: {snapshot!r}")

    def state_of(self, trial: TrialRecord) -> TrialState:
        """Return the state of a trial that has reported and waits for no further steps."""
        if trial.steps >= trial.max_steps:
            return TrialState.COMPLETE
        is_pruned = self.finished or trial.local in self.stopped
        return TrialState.PRUNED if is_pruned else TrialState.PAUSED

    def check(self, decision: Decision, trials: Mapping[int, TrialRecord]) -> None:
        """Refuse an impossible decision: it is a defect of the tuner.

        Raises
        ------
        ConfigurationError
            If it is about a trial that was not registered or has ended, or asks for a step
            that the trial has had or cannot get to.
        """
        if isinstance(decision, Finish | Assess):
            return
        known, trial = len(self.numbers), decision.trial
        problem = ""
        if isinstance(decision, Register):
            problem = f"register trial {known} next" if trial != known else ""
        elif trial not in self.numbers:
            problem = f"decide about trials that it registered, 0 to {known - 1}"
        elif isinstance(decision, Extend):
            problem = _problem_of(decision, trials[self.numbers[trial]])
        if problem:
            name = type(self.tuner).__name__
            raise ConfigurationError(f"{name} must {problem}, got {decision!r}")


def _problem_of(extend: Extend, trial: TrialRecord) -> str:
    """Return the condition that a request for a trial breaks; empty if it is valid."""
    if trial.state.is_finished:
        return f"not extend trial {extend.trial}, which is {trial.state.value}"
    steps = (trial.steps, *extend.reports, extend.until, trial.max_steps + 1)
    if all(first < second for first, second in pairwise(steps)):
        return ""
    return (
        f"extend trial {extend.trial} beyond step {trial.steps} and up to {trial.max_steps}, "
        "its reports ascending"
    )


def after_last_snapshot(records: Iterable[LoggedRecord]) -> list[LoggedRecord]:
    """Return the records from the last snapshot on; all of them if there is none."""
    entries = list(records)
    snapshots = (at for at, entry in enumerate(entries) if isinstance(entry.cause, SnapshotTaken))
    return entries[max(snapshots, default=0) :]
