"""The status of a run: one value for the database row, Prometheus and the terminal.

The driver takes it every few seconds (`dasktune._driver.heartbeat`). `to_row` stores it as a
heartbeat, `to_figures` gives the numbers for Prometheus, and ``dasktune status`` puts what
`from_row` reads into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from dasktune._cluster.pools import PoolStatus
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.graph.packing import PackedModel
from dasktune.storage.database.rows import RunRow
from dasktune.storage.redaction import redacted
from dasktune.types import Step

CLASSES = "classes"
"""The part of a row's ``workers`` that holds their number by compute class."""

MODELS = "models"
"""The part of a row's ``workers`` that holds the models of a forest."""

PACKING = "packing"
"""The part of a row's ``workers`` that holds how many trials train together."""

POOLS = "pools"
"""The part of a row's ``workers`` that holds the pools that start them."""

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that a run waits for."""

    kind: str
    """``scheduler``, ``workers``, ``resources``, ``pool``, ``aside``, ``worker``, ``store``,
    ``driver`` or ``stages``."""
    text: str
    """A sentence, without the time."""
    since: float | None = None
    """When it began (epoch seconds); None if it is not known."""

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document, without secrets."""
        return {"kind": self.kind, "text": redacted(self.text), "since": self.since}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """Counts that only the driver has."""

    steps: Step
    repeated: Step
    """Steps that this run trained, and those of them that had been trained before."""
    stages: Mapping[str, int]
    """Ended stages, by how they ended."""
    nbytes: int
    """Bytes of checkpoints saved."""
    worker_seconds: float
    """Seconds that workers had stages that have ended."""
    trials: Mapping[str, int]
    """Trials by state."""
    best: float | None
    """The value of the best trial; None if there is none, or several objectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run at one moment."""

    seen: float
    """The moment (epoch seconds)."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """Numbers of workers that are ``usable``, ``busy``, and put ``aside`` because stage after stage
    raised on them, and of ``stages_waiting``; empty before the first look."""
    classes: Mapping[str, int] = field(default_factory=dict)
    """Number of workers by compute class; after the end, when there were most."""
    pools: tuple[PoolStatus, ...] = ()
    """The pools that start workers."""
    waits: tuple[Wait, ...] = ()
    """Reasons for waiting, the gravest first."""
    positions: Mapping[str, Step] = field(default_factory=dict)
    """Steps that the running attempts have reached, by attempt."""
    seconds_left: float | None = None
    """Estimated time for all requests; None if nothing is known."""
    counts: RunCounts | None = None
    """Counts of the driver; None where the status was read from the database."""
    models: tuple[ModelWeight, ...] = ()
    """The models of the tuner's forest with their weights; empty without a forest."""
    packing: tuple[PackedModel, ...] = ()
    """How many trials of each model train together on shared devices; empty without any."""

    def to_row(self, row: RunRow) -> RunRow:
        """Return a run's row with this status."""
        return replace(
            row,
            seen=self.seen,
            seconds_left=self.seconds_left,
            waits=[wait.to_json() for wait in self.waits],
            workers={**self.workers, **self._groups()},
            positions=dict(self.positions),
        )

    @classmethod
    def from_row(cls, row: RunRow) -> RunStatus:
        """Return the status in a row; parts of waits and models that are malformed are left out."""
        parts = (CLASSES, MODELS, PACKING, POOLS)
        return cls(
            seen=row.seen,
            workers={name: count for name, count in row.workers.items() if name not in parts},
            classes=_counts_of(row.workers.get(CLASSES)),
            models=tuple(_models_of(row.workers.get(MODELS), ModelWeight.from_json)),
            packing=tuple(_models_of(row.workers.get(PACKING), PackedModel.from_json)),
            pools=_pools_of(row.workers.get(POOLS)),
            waits=tuple(_wait_of(wait) for wait in row.waits if isinstance(wait, Mapping)),
            positions=row.positions,
            seconds_left=row.seconds_left,
        )

    def _groups(self) -> dict[str, object]:
        """Return the documents on classes, models, packing and pools, where there are any."""
        groups = {
            CLASSES: dict(self.classes),
            MODELS: [asdict(model) for model in self.models],
            PACKING: [asdict(model) for model in self.packing],
            POOLS: [pool.to_json() for pool in self.pools],
        }
        return {name: group for name, group in groups.items() if group}

    def to_figures(self) -> dict[str, Any]:
        """Return the figures for `dasktune._driver.prometheus.FAMILIES`."""
        counts = self.counts
        figures: dict[str, Any] = {
            "slots": self.workers.get("usable", 0),
            "busy": self.workers.get("busy", 0),
            "aside": self.workers.get("aside", 0),
            "waiting": self.workers.get("stages_waiting", 0),
        }
        if counts is not None:
            figures |= {
                "steps": counts.steps,
                "repeated": counts.repeated,
                "stages": dict(counts.stages),
                "failures": counts.stages.get("failed", 0),
                "bytes": counts.nbytes,
                "worker_seconds": counts.worker_seconds,
                "trials": dict(counts.trials),
            }
            figures |= {} if counts.best is None else {"best": counts.best}
        return figures


def _counts_of(document: object) -> dict[str, int]:
    """Return the counts of a document of a row; those that are malformed are left out."""
    pairs = document.items() if isinstance(document, Mapping) else ()
    return {str(name): count for name, count in pairs if isinstance(count, int)}


def _models_of(documents: object, read: Callable[[Any], Model]) -> Iterator[Model]:
    """Yield the models of a list of documents; those that are malformed are left out."""
    for document in documents if isinstance(documents, list) else ():
        with suppress(LookupError, TypeError, ValueError):
            yield read(document)


def _pools_of(document: object) -> tuple[PoolStatus, ...]:
    """Return the pools of a document of a row; those that are malformed are left out."""
    pools = map(PoolStatus.from_json, document if isinstance(document, list) else ())
    return tuple(pool for pool in pools if pool is not None)


def _wait_of(document: Mapping[str, Any]) -> Wait:
    since = document.get("since")
    return Wait(
        kind=str(document.get("kind", "")),
        text=str(document.get("text", "")),
        since=float(since) if isinstance(since, int | float) else None,
    )
