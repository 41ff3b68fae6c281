"""The messages from workers to the driver: frozen values here, plain data on the wire.

Messages travel in events of Dask, on a topic to which anyone in the cluster may write. So
`from_wire` checks each field, and refuses in one place what is not a message of this version.
They travel as bytes: what Dask cannot look into, it neither measures nor copies item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

import msgpack

from dasktune.types import Metrics, Step

StepMetrics = tuple[Step, str, Metrics]
"""The metrics at a step: (step, state key, metrics)."""

StageStatus = Literal["trained", "stopped", "skipped", "superseded", "missing", "lost", "failed"]
"""How a stage ended; see `dasktune.graph.events.TrainingEnded`. ``failed``: the trainer raised."""


class MessageError(ValueError):
    """A message is malformed: its sender has another version, or is no worker of dasktune."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted:
    """A worker began an attempt at a time (epoch seconds)."""

    attempt: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRefused:
    """The trainer of an attempt is not the one that saved the state it has loaded."""

    attempt: str
    step: Step
    at: float
    """Epoch seconds."""
    message: str
    traceback: str
    """What differs, in words; the traceback is empty unless the trainer raised."""
    paths: tuple[str, ...]
    """The parts that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """An attempt has trained up to `step`, and measured metrics that are not durable yet."""

    attempt: str
    step: Step
    reports: tuple[StepMetrics, ...]
    seconds: float = 0.0
    """Time spent in training steps and their evaluation since its start; 0 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSaved:
    """The state of an attempt at `step` is durable, and so are its metrics since the last one."""

    attempt: str
    step: Step
    key: str
    by: str
    """The attempt whose commit stands: another one, if that was first."""
    digest: str
    nbytes: int
    """Those of the commit that stands."""
    seconds: float
    """Training time since the last state."""
    reported: tuple[Step, ...] = ()
    """The steps whose metrics are durable now."""
    replaced: tuple[StepMetrics, ...] = ()
    """The winner's metrics at these steps, if its state differs."""
    paces: tuple[float, ...] = ()
    """What one step took on average up to each of the steps in `reported`, in seconds."""
    differs: bool = False
    """Whether the winner's state is another one than this attempt's."""
    hold_up: float | None = None
    latency: float | None = None
    """Seconds for which training waited, and until the state was durable; None if unknown."""
    suspend_seconds: float | None = None
    """Seconds from the order to stop, or from the last step, until the state was durable; None if
    training goes on."""
    snapshot_bytes: int | None = None
    """Bytes of the whole snapshot; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOmitted:
    """An attempt has come to its end, and its state there is not stored; the states before are."""

    attempt: str
    step: Step
    key: str
    reported: tuple[Step, ...] = ()
    """The steps whose metrics were measured since the last state."""
    paces: tuple[float, ...] = ()
    """As for `StateSaved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMeasured:
    """An attempt without steps has measured a state that was durable already."""

    attempt: str
    step: Step
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded:
    """Training of an attempt ended at `step`; also the receipt that Dask keeps of a stage."""

    attempt: str
    step: Step
    status: StageStatus
    """The attempt, and where and how it ended."""
    at: float
    """Epoch seconds."""
    seconds: float = 0.0
    evaluate_seconds: float = 0.0
    """Time spent in training steps, and in their evaluation."""
    start_seconds: float | None = None
    """Time until the trainer was built or loaded; None if it never was."""
    loaded_at: Step | None = None
    """The step at which the trainer was built or loaded: earlier than the start of the attempt if
    it was in memory. None if it never was."""
    peak_bytes: int | None = None
    """The most memory of its device that the process of the worker has held; None if that is
    unknown, or the device is its own."""
    is_omitted: bool = False
    """Whether its last state is not stored; a `StateOmitted` says so once those before are."""
    proof_seconds: float = 0.0
    """Time that the proofs of its resume and of its states have taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """The trainer of an attempt raised in the step after `step`, at a time (epoch seconds)."""

    attempt: str
    step: Step
    at: float
    """The attempt, and where and when it raised."""
    message: str
    traceback: str
    """The error in words."""
    is_out_of_memory: bool = False
    """Whether memory was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrinted:
    """The log of an attempt so far: the last lines that its trainer printed."""

    attempt: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed:
    """A worker could not store a state of an attempt."""

    attempt: str
    message: str


StageMessage = (
    StageStarted
    | StageProgress
    | StateSaved
    | StateOmitted
    | StateMeasured
    | StageEnded
    | StageFailed
    | ResumeRefused
    | StagePrinted
    | StoreFailed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMessages:
    """Messages about stages on one worker, in the order in which things happened."""

    worker: str
    messages: tuple[StageMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAnnounced:
    """A worker will be gone soon, and takes no more stages."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionAnswer:
    """The answer of a worker to a question about a learning curve, or about a model."""

    worker: str
    number: int
    """The number of the question."""
    answer: Mapping[str, Any] | str | None
    """The prediction, or the priority, as JSON; a text says why there is none; None: the worker did
    not take the question."""


AuditStatus = Literal[
    "identical", "differs", "incomparable", "missing", "elsewhere", "dropped", "failed"
]
"""How an audit ended. ``incomparable``: something differs, though a resume changes nothing on this
worker; ``missing``: its first state is not in the store; ``elsewhere``: states were made in another
environment; ``dropped``: it was told to end; ``failed``: the trainer raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEnded:
    """The receipt of an audit."""

    audit: str
    step: Step
    status: AuditStatus
    """How the audit ended at `step`."""
    steps: int = 0
    """Number of steps that it trained, those of both ways included."""
    seconds: float = 0.0
    """Time that it took its worker, with that of loading anew the trainer that was in memory."""
    compared: int = 0
    """Number of steps whose metrics or states were compared."""
    differences: tuple[tuple[str, str], ...] = ()
    """The path and the reason of each difference."""
    message: str = ""
    """Why it failed; empty if it did not."""


WorkerMessage = StageMessages | LeaveAnnounced | PredictionAnswer
"""All that workers send to the driver."""

_MESSAGES: Mapping[str, type] = {kind.__name__: kind for kind in get_args(WorkerMessage)}
_STAGE_MESSAGES: Mapping[str, type] = {kind.__name__: kind for kind in get_args(StageMessage)}


def to_wire(message: WorkerMessage | StageMessage | AuditEnded) -> dict[str, Any]:
    """Return a message as plain data."""
    kind: type[Any] = type(message)
    content: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS[kind]}
    if isinstance(message, StageMessages):
        content["messages"] = [to_wire(stage_message) for stage_message in message.messages]
    content["kind"] = kind.__name__
    return content


def from_wire(content: object) -> WorkerMessage:
    """Return the message of a worker that plain data describe, or raise a `MessageError`."""
    return cast(WorkerMessage, _read(content, _MESSAGES))


def packed(content: Mapping[str, Any]) -> bytes:
    """Return plain data as bytes."""
    return cast(bytes, msgpack.packb(content))


def unpacked(content: object) -> object:
    """Return the plain data in bytes; lists have become tuples.

    Raises a `MessageError` if the bytes hold none.
    """
    if type(content) is not bytes:
        raise MessageError(f"a message must be bytes, got {_short(content)}")
    try:
        return msgpack.unpackb(content, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageError(f"a message must be msgpack, got {_short(content)}: {error}") from error


def receipt_from_wire(content: object) -> StageEnded:
    """Return the receipt of a stage that plain data describe, or raise a `MessageError`."""
    return cast(StageEnded, _read(content, {"StageEnded": StageEnded}))


def audit_from_wire(content: object) -> AuditEnded:
    """Return the receipt of an audit that plain data describe, or raise a `MessageError`."""
    return cast(AuditEnded, _read(content, {"AuditEnded": AuditEnded}))


def _read(content: object, known: Mapping[str, type]) -> object:
    if type(content) is not dict and not isinstance(content, Mapping):
        raise MessageError(f"a message must be a mapping, got {_short(content)}")
    kind = known.get(content["kind"]) if isinstance(content.get("kind"), str) else None
    if kind is None:
        names = ", ".join(sorted(known))
        raise MessageError(f"a message must be one of {names}, got {_short(content.get('kind'))}")
    readers = _FIELDS[kind]
    if content.keys() != _NAMES[kind]:
        names = ", ".join(readers)
        raise MessageError(f"{kind.__name__} must have {names}, got {_short(list(content))}")
    values = {}
    for name, read in readers.items():
        try:
            values[name] = read(content[name])
        except (TypeError, ValueError) as error:
            raise MessageError(f"{kind.__name__}.{name} must be {error}") from error
    return kind(**values)


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"a text, got {_short(value)}")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a whole number >= 0, got {_short(value)}")
    return value


def _number(value: object) -> float:
    if type(value) is not float and type(value) is not int:
        raise ValueError(f"a number, got {_short(value)}")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"true or false, got {_short(value)}")
    return value


def _status(value: object) -> str:
    if value not in get_args(StageStatus):
        raise ValueError(f"one of {', '.join(get_args(StageStatus))}, got {_short(value)}")
    return cast(str, value)


def _audit_status(value: object) -> str:
    if value not in get_args(AuditStatus):
        raise ValueError(f"one of {', '.join(get_args(AuditStatus))}, got {_short(value)}")
    return cast(str, value)


def _difference(value: object) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"a path and a reason, got {_short(value)}")
    return _text(value[0]), _text(value[1])


def _metrics(value: object) -> StepMetrics:
    if not isinstance(value, list | tuple) or len(value) != 3 or not isinstance(value[2], Mapping):
        raise ValueError(f"a step, a key and metrics, got {_short(value)}")
    step, key, metrics = value
    return _count(step), _text(key), {_text(name): _number(at) for name, at in metrics.items()}


def _answer(value: object) -> Mapping[str, Any] | str | None:
    if value is not None and not isinstance(value, str | Mapping):
        raise ValueError(f"a mapping, a text or nothing, got {_short(value)}")
    return value


def _each(
    read: Callable[[Any], Any], are_right: Callable[[Any], bool] | None = None
) -> Callable[[Any], tuple[Any, ...]]:
    """Return the reader of a list.

    A call for each item would be slow where there are many: then `are_right` looks at all of
    them, and `read` is left with the problem that must be named.
    """

    def read_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"a list, got {_short(value)}")
        if are_right is not None and are_right(value):
            return tuple(value)
        return tuple(map(read, value))

    return read_all


def _are_counts(values: Sequence[Any]) -> bool:
    return {*map(type, values)} <= {int} and min(values, default=0) >= 0


def _are_numbers(values: Sequence[Any]) -> bool:
    return {*map(type, values)} <= {int, float}


def _are_metrics(values: Sequence[Any]) -> bool:
    for value in values:
        if type(value) is not tuple or len(value) != 3:
            return False
        step, key, metrics = value
        if type(step) is not int or step < 0 or type(key) is not str or type(metrics) is not dict:
            return False
        for name, number in metrics.items():
            if type(name) is not str or (type(number) is not float and type(number) is not int):
                return False
    return True


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _short(value: object) -> str:
    return repr(value)[:80]


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": _count,
    "Step": _count,
    "float": _number,
    "bool": _flag,
    "StageStatus": _status,
    "AuditStatus": _audit_status,
    "int | None": _or_none(_count),
    "Step | None": _or_none(_count),
    "float | None": _or_none(_number),
    "tuple[str, ...]": _each(_text),
    "tuple[Step, ...]": _each(_count, _are_counts),
    "tuple[float, ...]": _each(_number, _are_numbers),
    "tuple[StepMetrics, ...]": _each(_metrics, _are_metrics),
    "tuple[tuple[str, str], ...]": _each(_difference),
    "tuple[StageMessage, ...]": _each(lambda value: _read(value, _STAGE_MESSAGES)),
    "Mapping[str, Any] | str | None": _answer,
}
"""What reads the value of a field, by the field's type as it is written above."""

_FIELDS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    kind: {field.name: _READERS[str(field.type)] for field in fields(kind)}
    for kind in (*get_args(WorkerMessage), *get_args(StageMessage), AuditEnded)
}
"""What reads each field of a message, by its class."""

_NAMES: Mapping[type, frozenset[str]] = {
    kind: frozenset((*readers, "kind")) for kind, readers in _FIELDS.items()
}
"""The names in a message on the wire, by its class."""
