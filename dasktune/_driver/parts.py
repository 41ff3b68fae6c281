"""The parts of a run: the driver's loop gives them its messages, and each has its turn.

To add a part: a class with `receive`, `turn` or both, and a line in one of three groups of
`DaskRunner`: `_always` has its turn while the loop waits, too; `_at_end` has it after the messages;
`_others` only receives, and the loop calls the `turn` of each by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dasktune._driver import attempts as attempting
from dasktune._driver.attempts import LineageRefused, Reached, StateDurable, StateRecorded
from dasktune._driver.lease_messages import LeaseMessage
from dasktune._driver.reuse import CommitsRead
from dasktune._worker.messages import LeaveAnnounced, PredictionAnswer, StageMessage
from dasktune.algos.curves.curve import Prediction
from dasktune.algos.forest.priority import Priority
from dasktune.graph.events import RunStage, SavePoint, StagesHeld
from dasktune.types import Assess

Subject = int | Assess
"""The subject of a question: the number of a trial, or a model."""

Answer = Prediction | Priority
"""The answer to a question: the prediction of a trial, or the priority of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A stage was sent to its worker."""

    order: RunStage


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The run ends: what runs is saved, and nothing begins any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A request from outside of this process that the run ends; `by` names its author."""

    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion:
    """A question to be sent to a worker."""

    worker: str
    number: int
    question: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer to a question of the tuner; None where it cannot be computed."""

    subject: Subject
    answer: Answer | None


News = (
    StageMessage
    | LeaveAnnounced
    | PredictionAnswer
    | LeaseMessage
    | CommitsRead
    | Reached
    | StateDurable
    | StateRecorded
    | LineageRefused
    | Launched
    | Draining
)
"""All that parts may receive: messages of the loop, and facts that followed from them."""

Following = (
    attempting.Following
    | RunStage
    | SavePoint
    | StagesHeld
    | AskedQuestion
    | Answered
    | StopRequested
)
"""All that may follow: events for the engine, instructions, and facts for other parts."""


class Part:
    """One concern of a run. By default nothing follows from anything."""

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Return the consequences of a message or a fact, in order."""
        return ()

    def turn(self, now: float) -> Iterable[Following]:
        """Return the consequences that are due in this turn of the loop, in order."""
        return ()


class RunCheck(Part):
    """The check of the trainer beside a run. By default there is none.

    Attributes
    ----------
    files_known
        Version of the list of files that the trainer reads: 0 if none is known yet, 1 without a
        check or after its first step, and one more after its end.
    """

    files_known = 1

    def use(self, wake: Callable[[], None]) -> None:
        """Have a function called when the check has ended: it begins a turn of the loop."""
