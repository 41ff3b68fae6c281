"""The rows of the database, apart from its tables: workers know them without SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dasktune.errors import CorruptRecordError
from dasktune.types import Metrics, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A study: its name, the state key at step 0 (`root`), and its description (`spec`)."""

    id: int
    name: str
    root: str
    spec: Any
    created: float

    def __post_init__(self) -> None:
        if not isinstance(self.spec, dict):
            raise CorruptRecordError(
                f"the description of study {self.name!r} in the database must be a JSON object"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableStudy:
    """A study that cannot be shown, because the database holds invalid values for it."""

    study: str
    problem: str
    id: int = -1

    def to_json(self) -> dict[str, object]:
        """Return its name and the problem as a JSON document."""
        return {"study": self.study, "error": self.problem}

    def __str__(self) -> str:
        return f"study {self.study!r} cannot be read: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of a study's log; numbers count from 0, each is used once."""

    study_id: int
    number: int
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRow:
    """A remark about a study on which no decision depends, in the order of writing."""

    study_id: int
    number: int
    payload: Any

    @property
    def kind(self) -> object:
        """The kind of the note; None if another program wrote it."""
        return self.payload.get("kind") if isinstance(self.payload, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """The present state of a trial; a later row of the same number replaces it.

    It is trained for `steps` steps; `until` is the step up to which training is requested,
    None without a request.
    """

    study_id: int
    number: int
    state: str
    steps: Step
    value: float | None
    record: Any
    until: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The metrics of the state of one key; the first row of a key stands.

    `seconds` is the mean time of a step since the last row, evaluation included; None if it was
    not measured. `kind` is the compute class of the worker that measured it; None if unknown.
    """

    key: str
    root: str
    step: Step
    values: Metrics
    seconds: float | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A committed checkpoint; a later row of the same key replaces it.

    `seconds` is the training time of its steps. `created` and `used` (epoch seconds) are the
    times of writing and of the last use (0: never or unknown). `study_id` is the study that
    wrote it. `hold_up` is the time that training waited for saving, and `latency` the time
    until the checkpoint was durable, both in seconds; None if they were not measured.
    """

    key: str
    root: str
    step: Step
    attempt: str
    digest: str
    nbytes: int
    seconds: float
    created: float = 0.0
    used: float = 0.0
    study_id: int | None = None
    hold_up: float | None = None
    latency: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One attempt to train the steps from `start` to `stop`; a later row replaces it.

    `run` is the run of the driver that sent it, `trials` are some of the trials that requested
    it, and `message` is the reason of a failure. `start_seconds` is the time of building or
    loading the trainer: 0 if the worker held it already, None if the attempt ended before. When
    a trial was paused, `suspend_seconds` is the time from the order to stop, or from the end of
    its last step, until its state of `snapshot_bytes` was durable. `kind` is the compute class of
    `worker`; empty if unknown. `workers` is the number of those that trained it together.
    """

    study_id: int
    attempt: str
    key: str
    start: Step
    stop: Step
    worker: str
    status: str
    started: float
    ended: float | None
    steps: int
    repeated: int
    run: str = ""
    trials: list[int] = field(default_factory=list)
    message: str = ""
    start_seconds: float | None = None
    suspend_seconds: float | None = None
    snapshot_bytes: int | None = None
    kind: str = ""
    workers: int = 1

    @property
    def worker_seconds(self) -> float:
        """The time that its workers have spent on it; 0 if it has not ended."""
        return self.workers * (self.ended - self.started) if self.started and self.ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """The last lines that an attempt printed; a later row replaces an earlier one.

    An attempt that printed nothing has no row.
    """

    attempt: str
    study_id: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of a driver at its last heartbeat; a later row replaces it.

    Parameters
    ----------
    host, pid, version
        Where the driver runs, and its version of dasktune.
    began, seen, ended
        Times of its start, last heartbeat and end (epoch seconds).
    how
        ``running``, ``ended``, ``limit``, ``interrupted`` or ``failed``.
    message
        The limit that ended it, its tuner's reason to finish, or the failure.
    seconds_left
        Estimated time for all requests; None if nothing is known.
    waits
        Reasons for waiting: objects with ``kind``, ``text`` and ``since`` (epoch seconds).
    workers
        Numbers of workers, of busy workers, and of stages that wait for one; and ``classes``,
        the number of workers by compute class; and ``models``, those of the tuner's forest.
    positions
        Steps that the running attempts have reached, by attempt.
    """

    run: str
    study_id: int
    host: str
    pid: int
    version: str
    began: float
    seen: float
    ended: float | None = None
    how: str = "running"
    message: str = ""
    seconds_left: float | None = None
    waits: list[Any] = field(default_factory=list)
    workers: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, Step] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The verdict of a resume check on the trainers of one fingerprint.

    Parameters
    ----------
    fingerprint
        Of code, config and data.
    rule
        Version of the check that found it.
    device
        Kind of device, such as ``cpu`` or ``cuda``.
    versions
        Versions of Python and the libraries by name; ``found_by`` if an audit found it.
    ok
        Whether the trainer resumes exactly, as far as the check reached.
    splits
        Steps before each resumption.
    steps
        Number of steps that the check trained.
    found
        Time of the check (epoch seconds).
    files
        The files that the trainer's code opened in the check, by path: the digests of their
        contents.
    """

    fingerprint: str
    rule: int
    device: str
    versions: dict[str, Any]
    ok: bool
    text: str
    splits: list[Step]
    steps: Step
    found: float
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """How fast a model trains on a class; a later row of the same `key` replaces it.

    Parameters
    ----------
    fingerprint
        Of code, config and data: which trainer it is.
    key
        A hash of model and class: labels may be too long for an index.
    model
        The hyper-parameters that are not floats, by name.
    seconds, steps
        Time and number of the measured steps; older ones count for a part only.
    measured
        Time of the last measurement (epoch seconds).
    """

    fingerprint: str
    key: str
    model: Any
    kind: str
    seconds: float
    steps: float
    measured: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorRow:
    """How many stages of a model train together on a device; a later row replaces it.

    Parameters
    ----------
    fingerprint, key, model, kind, measured
        As of `SpeedRow`.
    together
        The number.
    most
        The largest number that may be tried: one stage more did not pay. None if that is open.
    fits
        The largest number that has not run out of memory; None if none has.
    rates
        Pairs of a number of stages that trained together, and the steps a second of each.
    nbytes
        The most memory that a worker's process has held; 0 if unknown.
    """

    fingerprint: str
    key: str
    model: Any
    kind: str
    together: int
    most: int | None
    fits: int | None
    rates: list[Any]
    nbytes: int
    measured: float
