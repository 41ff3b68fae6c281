"""The records of a tuner in the event log: one frozen type for each kind, and its JSON.

A record is one cause with the decisions that followed. A cause is a call to a method of the tuner,
a change of a trial or a clock that the tuner is not told of, or a snapshot of the tuner. The kinds
``begun`` and ``added`` are about no tuner and have no type: `History` and `Recorder` write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, assert_never, get_args

from dasktune.algos.curves.curve import Prediction
from dasktune.algos.forest.priority import Priority
from dasktune.errors import ConfigurationError, CorruptRecordError
from dasktune.graph.devices import Periods
from dasktune.types import Decision, Metrics, Now, Step

Document = Mapping[str, Any]
"""A JSON object, as it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerBegun:
    """The tuner begins: the first record of each."""

    kind: ClassVar[str] = "tuner"
    identity: Document
    inputs: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAsked:
    """The tuner is asked for work, for `capacity` workers."""

    kind: ClassVar[str] = "ask"
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTold:
    """The tuner is told the report of a trial; a timed tuner also the time."""

    kind: ClassVar[str] = "tell"
    trial: int
    step: Step
    metrics: Metrics
    now: Now | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTold:
    """The tuner is told that a trial has failed."""

    kind: ClassVar[str] = "fail"
    trial: int
    message: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRetried:
    """The tuner takes a failed trial back, at the step of its last report."""

    kind: ClassVar[str] = "retry"
    trial: int
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerWidened:
    """The tuner is given more trials: so many in all."""

    kind: ClassVar[str] = "widen"
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTold:
    """The tuner is told the prediction that it asked for, or None."""

    kind: ClassVar[str] = "predicted"
    trial: int
    prediction: Prediction | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityTold:
    """The tuner is told the priority of a model, or None."""

    kind: ClassVar[str] = "assessed"
    model: int
    priority: Priority | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTold:
    """The tuner is told how long it has run."""

    kind: ClassVar[str] = "time"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockNoted:
    """A run of a timed tuner has ended; the tuner has run so long in all its runs."""

    kind: ClassVar[str] = "clock"
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The state of the tuner's session, from which a later run goes on."""

    kind: ClassVar[str] = "snapshot"
    state: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingBegun:
    """A trial is trained again, alone, to the step of its last report.

    The tuner has decided by that report, and is not told the metrics of the new one.
    """

    kind: ClassVar[str] = "retrain"
    trial: int
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainingEnded:
    """A trial was trained again, with these metrics; None if it failed."""

    kind: ClassVar[str] = "retrained"
    trial: int
    step: Step
    metrics: Metrics | None = None
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesChosen:
    """The number of devices of a trial was changed: pairs of a first step and a number.

    A replay ignores this record, because the row of the trial holds the same pairs.
    """

    kind: ClassVar[str] = "devices"
    trial: int
    devices: Periods


Call = (
    TunerBegun
    | WorkAsked
    | ReportTold
    | FailureTold
    | TrialRetried
    | TunerWidened
    | PredictionTold
    | PriorityTold
    | TimeTold
)
"""A cause that is a call of the tuner."""

Change = ClockNoted | SnapshotTaken | RetrainingBegun | RetrainingEnded | DevicesChosen
"""A cause that is no call: the tuner decides nothing."""

Cause = Call | Change

OfTrial = (
    ReportTold
    | FailureTold
    | TrialRetried
    | PredictionTold
    | RetrainingBegun
    | RetrainingEnded
    | DevicesChosen
)
"""A cause that is about one trial."""

KINDS: tuple[str, ...] = tuple(kind.kind for kind in get_args(Cause))
"""The kinds of causes, as they are stored."""

Decided = TypeVar("Decided", bound=Decision | Document, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Generic[Decided]):
    """One entry of the event log: a cause, and what the tuner of a place decided.

    The records that an engine returns have `Decision` objects: `describe` makes a document of each
    when it is written, so that those of 100,000 trials never exist at once. The records that are
    read have the documents.
    """

    cause: Cause
    place: int
    decisions: tuple[Decided, ...] = ()
    proposals: Sequence[Any] = ()
    """The proposals of the tuner's sampler, as JSON."""


NewRecord = Record[Decision]
LoggedRecord = Record[Document]


def read_record(document: Document) -> LoggedRecord:
    """Return the record of a stored document.

    Raises
    ------
    CorruptRecordError
        If its kind is unknown, or a field is missing.
    """
    try:
        return Record(
            cause=_read_cause(document),
            place=document["place"],
            decisions=tuple(document["decisions"]),
            proposals=document.get("proposals", ()),
        )
    except (ConfigurationError, LookupError, TypeError, ValueError) as error:
        raise CorruptRecordError(f"a record of the event log cannot be read: {error!r}") from error


def _read_cause(document: Document) -> Cause:
    match document["kind"]:
        case ReportTold.kind:
            return ReportTold(
                trial=document["trial"],
                step=document["step"],
                metrics=document["metrics"],
                now=Now.from_json(document["now"]) if "now" in document else None,
            )
        case WorkAsked.kind:
            return WorkAsked(capacity=document["capacity"])
        case FailureTold.kind:
            return FailureTold(
                trial=document["trial"],
                message=document["message"],
                traceback=document["traceback"],
            )
        case PredictionTold.kind:
            prediction = document["prediction"]
            return PredictionTold(
                trial=document["trial"],
                prediction=None if prediction is None else Prediction.from_json(prediction),
                seconds=document["seconds"],
            )
        case PriorityTold.kind:
            priority = document["priority"]
            return PriorityTold(
                model=document["model"],
                priority=None if priority is None else Priority.from_json(priority),
            )
        case TimeTold.kind:
            return TimeTold(seconds=document["seconds"])
        case DevicesChosen.kind:
            devices = tuple((step, number) for step, number in document["devices"])
            return DevicesChosen(trial=document["trial"], devices=devices)
        case TrialRetried.kind:
            return TrialRetried(trial=document["trial"], step=document["step"])
        case RetrainingBegun.kind:
            return RetrainingBegun(trial=document["trial"], step=document["step"])
        case RetrainingEnded.kind:
            return RetrainingEnded(
                trial=document["trial"],
                step=document["step"],
                metrics=document.get("metrics"),
                message=document.get("message", ""),
                traceback=document.get("traceback", ""),
            )
        case TunerBegun.kind:
            return TunerBegun(identity=document["identity"], inputs=document["inputs"])
        case TunerWidened.kind:
            return TunerWidened(trials=document["trials"])
        case SnapshotTaken.kind:
            return SnapshotTaken(state=document["state"])
        case ClockNoted.kind:
            return ClockNoted(seconds=document["seconds"])
        case kind:
            known = ", ".join(KINDS)
            raise CorruptRecordError(f"a record must be of a kind among {known}, got {kind!r}")


def document_of(record: Record[Decided]) -> dict[str, object]:
    """Return the document of a record, in the order of its text; decisions stay as they are."""
    document: dict[str, object] = {"kind": record.cause.kind}
    if isinstance(record.cause, SnapshotTaken):  # its place comes first in all logs so far
        document |= {"place": record.place, "state": record.cause.state}
    else:
        document |= {**_fields(record.cause), "place": record.place}
    document["decisions"] = record.decisions
    return {**document, "proposals": record.proposals} if record.proposals else document


def _fields(cause: Cause) -> Document:
    """Return the fields of a cause as JSON."""
    match cause:
        case ReportTold(trial=trial, step=step, metrics=metrics, now=now):
            document = {"trial": trial, "step": step, "metrics": metrics}
            return document if now is None else {**document, "now": now.to_json()}
        case WorkAsked(capacity=capacity):
            return {"capacity": capacity}
        case FailureTold(trial=trial, message=message, traceback=traceback):
            return {"trial": trial, "message": message, "traceback": traceback}
        case PredictionTold(trial=trial, prediction=prediction, seconds=seconds):
            answer = None if prediction is None else prediction.to_json()
            return {"trial": trial, "prediction": answer, "seconds": seconds}
        case PriorityTold(model=model, priority=priority):
            return {"model": model, "priority": None if priority is None else priority.to_json()}
        case TimeTold(seconds=seconds) | ClockNoted(seconds=seconds):
            return {"seconds": seconds}
        case DevicesChosen(trial=trial, devices=devices):
            return {"trial": trial, "devices": [*map(list, devices)]}
        case TrialRetried(trial=trial, step=step) | RetrainingBegun(trial=trial, step=step):
            return {"trial": trial, "step": step}
        case RetrainingEnded(trial=trial, step=step, metrics=None):
            reason = {"message": cause.message, "traceback": cause.traceback}
            return {"trial": trial, "step": step, **reason}
        case RetrainingEnded(trial=trial, step=step, metrics=metrics):
            return {"trial": trial, "step": step, "metrics": metrics}
        case TunerBegun(identity=identity, inputs=inputs):
            return {"identity": identity, "inputs": inputs}
        case TunerWidened(trials=trials):
            return {"trials": trials}
        case SnapshotTaken(state=state):
            return {"state": state}
        case _:
            assert_never(cause)
