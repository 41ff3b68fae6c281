"""The tables of the database, and one value class per kind of row.

All tables begin with ``dasktune_``: Optuna, which may share the database, owns ``trials``,
``studies`` and ``alembic_version``. A column has the name of its row's field. What a row has
in its JSON and is searched by has a column of its own beside it (`DERIVED`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dasktune.errors import CorruptRecordError
from dasktune.storage.metrics import metrics_from_json, metrics_to_text
from dasktune.types import Metrics, Step

REVISIONS = ("0001", "0002", "0003", "0004")
"""Revisions of the tables, oldest first; `dasktune.storage.migrations` leads to the last."""

META_VERSION = 3
"""What ``dasktune_meta`` says since there are revisions: older releases refuse it."""

metadata = sa.MetaData()
"""All tables."""

revision = sa.Table(
    "dasktune_alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="dasktune_alembic_version_pkc"),
)
"""Alembic's own table, as it would make it."""

_LANDMARKS = ("tuner", "snapshot", "widen")

DERIVED = {"events": ("kind", "place"), "trials": ("finite_value",)}
"""Columns that repeat something of their row, to be searched by; tables without prefix."""

to_text = json.JSONEncoder(separators=(",", ":")).encode
"""Writes JSON as it is stored, NaN and infinities included."""


class Encoded(str):
    """JSON that is text already, to be written as it is."""

    __slots__ = ()


class JsonText(sa.types.TypeDecorator[Any]):
    """JSON as text, NaN and infinities included, so that every float comes back exactly."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        """Return the text of a value."""
        return to_text(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        """Return the value of a text."""
        return _loaded(value)

    def values_of(self, texts: Iterable[str]) -> list[Any]:
        """Return the values of many texts."""
        many = list(texts)
        found: list[Any] = _loaded(f"[{','.join(many)}]")
        if len(found) != len(many):
            raise CorruptRecordError("the database holds what is no JSON of ours: several values")
        return found


def _loaded(text: str) -> Any:
    """Return what JSON says; whoever may write to the database may have written it."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise CorruptRecordError(f"the database holds what is no JSON of ours: {error}") from error


class MetricsText(JsonText):
    """Metrics as strict JSON text."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        """Return the text of metrics."""
        return metrics_to_text(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> dict[str, float]:
        """Return the metrics of a text."""
        return metrics_from_json(super().process_result_value(value, dialect))

    def values_of(self, texts: Iterable[str]) -> list[Any]:
        """Return the metrics of many texts."""
        return list(map(metrics_from_json, super().values_of(texts)))


class ExactFloat(sa.types.TypeDecorator[float]):
    """A float as its shortest spelling: SQLite turns NaN into NULL and -0.0 into 0.0."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: sa.Dialect) -> str | None:
        """Return the spelling of a float."""
        return None if value is None else repr(float(value))

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> float | None:
        """Return the float of a spelling."""
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A study: its name, what it studies (`root`: the key at step 0) and its description."""

    id: int
    name: str
    root: str
    spec: Any
    created: float

    def __post_init__(self) -> None:
        if not isinstance(self.spec, dict):
            raise CorruptRecordError(
                f"study {self.name!r} is not described in the database as ours are"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event of a study's log; numbers count from 0, and are never used twice."""

    study_id: int
    number: int
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRow:
    """Something about a study that no decision rests on, in the order of being noted."""

    study_id: int
    number: int
    payload: Any

    @property
    def kind(self) -> object:
        """What it is about; None if it is no note of ours."""
        return self.payload.get("kind") if isinstance(self.payload, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """The present state of a trial; a later row of the same number replaces it.

    It has `steps`, and is trained to `until`, if it is.
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

    `seconds` is what a step took since the last one that was measured, evaluation included: the
    mean of several. None if nobody measured it.
    """

    key: str
    root: str
    step: Step
    values: Metrics
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint that was committed; a later row of the same key replaces it.

    `seconds` is what its steps took to train, `created` and `used` (epoch seconds) when it
    was written and last found again (0: never, or not known), `study_id` who wrote it.
    `hold_up` is what saving it held training up, and `latency` what it took until it was
    durable, both in seconds; None if nobody measured it.
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

    `run` is the driver's that sent it, `trials` are some of those that want it, and `message`
    says why it failed. `start_seconds` is what it took to build or load its trainer: 0 if the
    worker held it already, None if it did not come to that. Where it left a trial for now,
    `suspend_seconds` is the time from the order to stop, or from the end of its last step,
    until its state of `snapshot_bytes` was durable.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of a driver, as it stood at its last sign of life; a later row replaces it.

    Parameters
    ----------
    run
        Its unique name.
    host, pid, version
        Where the driver runs, and its version of dasktune.
    began, seen, ended
        When it began, was last heard of, and ended (epoch seconds).
    how
        ``running``, ``ended``, ``limit``, ``interrupted`` or ``failed``.
    message
        Which limit ended it, why its tuner did, or why it failed.
    seconds_left
        Estimate for what is asked for; None if nothing is known.
    waits
        What it waits for: objects with ``kind``, ``text`` and ``since`` (epoch seconds).
    workers
        How many there are, are busy, and how many stages wait for one.
    positions
        How far attempts have come that run, by attempt.
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


meta = sa.Table(
    "dasktune_meta",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
)

studies = sa.Table(
    "dasktune_studies",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("spec", JsonText, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)

events = sa.Table(
    "dasktune_events",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("payload", JsonText, nullable=False),
    sa.Column("kind", sa.String(32)),
    sa.Column("place", sa.Integer),
)

LANDMARKS = sa.or_(*(events.c.kind == sa.literal_column(f"'{kind}'") for kind in _LANDMARKS))
"""What holds of the entries of a log that a tuner is found by: so few that they are indexed."""

sa.Index(
    "dasktune_events_landmarks",
    *(events.c.study_id, events.c.kind, events.c.number, events.c.place),
    sqlite_where=LANDMARKS,
    postgresql_where=LANDMARKS,
)

notes = sa.Table(
    "dasktune_notes",
    metadata,
    sa.Column(
        "number",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(),
        primary_key=True,
    ),
    sa.Column("study_id", sa.Integer, nullable=False),
    sa.Column("payload", JsonText, nullable=False),
    sa.Index("dasktune_notes_study", "study_id", "number"),
)

trials = sa.Table(
    "dasktune_trials",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("value", ExactFloat),
    sa.Column("record", JsonText, nullable=False),
    sa.Column("until", sa.BigInteger),
    sa.Column("finite_value", sa.Double),
)

metrics = sa.Table(
    "dasktune_metrics",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("values", MetricsText, nullable=False),
    sa.Column("seconds", sa.Double),
    sa.Index("dasktune_metrics_root", "root", "key"),
)

checkpoints = sa.Table(
    "dasktune_checkpoints",
    metadata,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("root", sa.String(128), nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.String(128), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("nbytes", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("created", sa.Double, nullable=False, server_default="0"),
    sa.Column("used", sa.Double, nullable=False, server_default="0"),
    sa.Column("study_id", sa.Integer),
    sa.Column("hold_up", sa.Double),
    sa.Column("latency", sa.Double),
    sa.Index("dasktune_checkpoints_root", "root", "key"),
)

stages = sa.Table(
    "dasktune_stages",
    metadata,
    sa.Column("study_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.String(128), primary_key=True),
    sa.Column("key", sa.String(128), nullable=False),
    sa.Column("start", sa.BigInteger, nullable=False),
    sa.Column("stop", sa.BigInteger, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("repeated", sa.BigInteger, nullable=False),
    sa.Column("run", sa.Text, nullable=False, server_default=""),
    sa.Column("trials", JsonText, nullable=False, server_default="[]"),
    sa.Column("message", sa.Text, nullable=False, server_default=""),
    sa.Column("start_seconds", sa.Double),
    sa.Column("suspend_seconds", sa.Double),
    sa.Column("snapshot_bytes", sa.BigInteger),
)

runs = sa.Table(
    "dasktune_runs",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("study_id", sa.Integer, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("began", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("how", sa.String(16), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("seconds_left", sa.Double),
    sa.Column("waits", JsonText, nullable=False),
    sa.Column("workers", JsonText, nullable=False),
    sa.Column("positions", JsonText, nullable=False),
    sa.Index("dasktune_runs_study", "study_id", "began"),
)


def kind_and_place(payload: Any) -> tuple[str | None, int | None]:
    """Return what an event is searched by: its kind, and the tuner it is about."""
    if not isinstance(payload, Mapping):
        return None, None
    return payload.get("kind"), payload.get("place")


def finite(value: float | None) -> float | None:
    """Return what trials are sorted by: their value, None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None
