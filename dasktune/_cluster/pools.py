"""Pools of workers: a cluster starts and ends their workers by itself, as many as can be used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dasktune._words import counted
from dasktune.needs import Needs, Offer

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """A pool at one moment, for people."""

    name: str
    """The name of the pool in words."""
    workers: int = 0
    most: int = 0
    """Number of its workers, and the most that it may have."""
    wanted: int = 0
    """Number of workers that the run can use."""
    queued: int = 0
    running: int = 0
    """Number of its jobs in the queue, and of those that have begun."""
    reason: str = ""
    """Why it has no worker; empty if it has one."""
    is_refused: bool = False
    """Whether it gets no workers now: its jobs are refused, or end at once."""

    def __str__(self) -> str:
        jobs = f"{self.running:,} running and {self.queued:,} queued jobs"
        text = f"{self.name}: {counted(self.workers, 'worker')} of at most {self.most:,}, {jobs}"
        return f"{text}; {self.reason}" if self.reason else text

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> PoolStatus | None:
        """Return the status in a document; None if the document is malformed."""
        if not isinstance(document, Mapping) or not isinstance(document.get("name"), str):
            return None
        texts = {"name", "reason"}
        given = {each.name: document.get(each.name, each.default) for each in fields(cls)}
        is_valid = all(isinstance(given[name], str if name in texts else int) for name in given)
        return cls(**given) if is_valid else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """A pool of workers that are alike."""

    name: str
    """Its name among the pools of its cluster; empty if there is no other."""
    offer: Offer
    """The offer of its workers, as far as the pool knows their tags."""
    workers: frozenset[str] = frozenset()
    """The addresses of its workers."""
    sharers: int = 1
    """Number of its workers that share one device, of which only as many train as that pays."""
    room: int = 0
    """The most workers that it can have now: fewer than its maximum while more are refused."""
    is_tried: bool = False
    """Whether one worker more may be asked of it, although the last one was refused."""
    is_known: bool = True
    """Whether `offer` has the amounts of its workers; else only their arrival shows them."""
    status: PoolStatus = field(default_factory=lambda: PoolStatus(name=""))
    """What people see of it."""

    def may_fit(self, needs: Needs) -> bool:
        """Whether its workers may meet needs, as far as their offer is known."""
        return not self.is_known or needs.may_fit(self.offer)


@runtime_checkable
class ElasticCluster(Protocol):
    """A Dask cluster that starts and ends its workers itself, as many as can be used.

    They may come late: a run waits for them as long as there is no `trouble`.
    """

    def use(
        self, wanted: Mapping[str, int], idle: Collection[str], step_seconds: Mapping[str, float]
    ) -> None:
        """Record the usable workers and the slowest step by pool, and the idle workers."""

    def trouble(self) -> str | None:
        """Return why no worker that can be used comes; None while one may come."""

    def waiting(self) -> str:
        """Return the reason of waiting, in words."""

    def pools(self) -> Sequence[WorkerPool]:
        """Return the pools; a stage is for the first one that it fits and that has room."""


def worker_bounds(workers: object) -> tuple[int, int] | None:
    """Return the least and the most workers of a number or a range; None for an invalid one.

    Examples
    --------
    >>> worker_bounds(4), worker_bounds("4"), worker_bounds("0-16")
    ((4, 4), (4, 4), (0, 16))
    >>> worker_bounds("4-2"), worker_bounds("0-0"), worker_bounds(0)
    (None, None, None)
    """
    if type(workers) is int:
        return (workers, workers) if workers >= 1 else None
    texts = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", str(workers))
    if texts is None or not isinstance(workers, str):
        return None
    least, most = int(texts[1]), int(texts[2] or texts[1])
    return (least, most) if most >= max(1, least) else None


def scaling_problems(client: Client) -> Iterator[str]:
    """Yield why a study cannot ask the cluster of a client for more or fewer workers."""
    cluster, name = client.cluster, type(client.cluster).__name__
    if cluster is None:
        yield (
            "workers must come with a client that knows its cluster, this client has only the "
            "address of a scheduler: write Client(cluster) with the cluster itself"
        )
    elif isinstance(cluster, ElasticCluster):
        yield "workers must be given to dasktune.slurm_client, where this client comes from"
    elif not callable(getattr(cluster, "scale", None)) or not _supports_scaling(cluster):
        yield f"workers must come with a cluster that can scale, and {name} has a fixed size"


def is_starting(client: Client) -> bool:
    """Whether the cluster of a client is known to start workers by itself."""
    return bool(getattr(client.cluster, "worker_spec", None))


def fixed_size_text(client: Client) -> str:
    """Return the reason in words why a cluster without workers may stay so."""
    if any(scaling_problems(client)):
        return (
            "start some; if the cluster scales by adapt(), it starts none for a study: with "
            "optimize(..., client=Client(cluster), workers='0-4') the study asks for them"
        )
    return (
        f"{type(client.cluster).__name__} was asked for none, or scales by adapt(), which starts "
        "none for a study: with optimize(..., workers='0-4') the study asks for them"
    )


def _supports_scaling(cluster: object) -> bool:
    """Whether a cluster of Dask can start more workers."""
    return bool(getattr(cluster, "_supports_scaling", True))


def elastic_of(client: Client) -> ElasticCluster | None:
    """Return the cluster of a client if it starts its workers itself; None for a fixed set."""
    return client.cluster if isinstance(client.cluster, ElasticCluster) else None
