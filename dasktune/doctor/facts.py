"""Facts on a cluster, a store and a database: collected first, judged later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dasktune._cluster.pools import PoolStatus
from dasktune.needs import NO_NEEDS, Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A process and its host, as the process sees them."""

    host: str
    #: An identifier of the process.
    process: str
    #: Versions by name; None for a missing package.
    packages: Mapping[str, str | None]
    #: The numbers of the cores that it may use.
    cores: tuple[int, ...] = (0,)
    #: The value of OMP_NUM_THREADS.
    threads: str = ""
    #: Free bytes of memory, and of the disk by folder.
    memory_free: int = 2**40
    free: Mapping[str, int] = field(default_factory=dict)
    #: Paths of the driver that this process does not see.
    missing: tuple[str, ...] = ()
    #: The value of CUDA_VISIBLE_DEVICES; None if it is not set.
    visible: str | None = None
    #: GPUs of the host, from NVIDIA's driver.
    gpus: tuple[str, ...] = ()
    #: Addresses that a worker or scheduler listens on; a dashboard as ``http://...``.
    listening: tuple[str, ...] = ()
    #: Values of the scheduler by name.
    settings: Mapping[str, float | None] = field(default_factory=dict)
    #: Threads of a worker that run tasks, and its declared resources.
    slots: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Bytes at which Dask ends the worker; 0 for no limit.
    memory_limit: int = 0
    #: Whether it cannot start child processes.
    is_daemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The offset of a clock from the driver's in seconds, positive if it is ahead."""

    seconds: float
    error: float

    @property
    def least(self) -> float:
        """The smallest possible difference in seconds."""
        return abs(self.seconds) - self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as torch sees it, with its memory and the free part of that in bytes."""

    name: str
    uuid: str
    nbytes: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """Facts from torch, in a new process with a worker's environment.

    `cuda` is None for a build without CUDA; the trainer uses the first of the `devices`;
    `problem` is the reason why torch cannot use them.
    """

    cuda: str | None
    devices: tuple[Device, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """The outcome of one process's use of the store."""

    #: The operation that failed, and the reason; empty after success.
    failed: str = ""
    reason: str = ""
    #: Whether the process reads the driver's file, and the driver reads the process's file.
    sees: bool = True
    is_seen: bool = True
    #: Whether the process created the file that the driver had created.
    overwrites: bool = False
    #: Bytes per second.
    write: float = 0.0
    read: float = 0.0


@dataclass(slots=True, kw_only=True)
class WorkerFacts:
    """Facts on one worker, filled as its answers come; None stands for a missing answer."""

    address: str
    #: The reasons of failed calls, by check.
    unanswered: dict[str, str] = field(default_factory=dict)
    look: Look | None = None
    offset: Offset | None = None
    #: Why the worker cannot open the trainer; empty if it can.
    opened: str | None = None
    #: The parts of the trainer's fingerprint that differ on the worker, in words.
    differing: tuple[str, ...] = ()
    torch: Torch | None = None
    use: StoreUse | None = None
    #: The compute class and the tags.
    kind: str | None = None
    tags: tuple[str, ...] = ()
    #: The device that it shares with others by measurement, and whether NVIDIA's MPS runs there.
    device: str = ""
    has_mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts on the store, without those of workers; its URL is without secrets."""

    url: str
    #: The outcome of the driver's use.
    use: StoreUse
    #: The offset of its clock; None if unknown.
    offset: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Facts on the database; its name is without a password."""

    name: str
    #: Why the driver cannot use it; empty if it can.
    problem: str = ""
    #: The time of one transaction.
    seconds: float = 0.0
    #: The kind of network file system of its file; None for a local disk.
    network: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """Facts on the trainer that the driver knows."""

    name: str
    #: The needs of every stage.
    needs: Needs = NO_NEEDS
    #: The number of threads that it declares.
    threads: int | None = None
    #: Whether `check_resume` found that it resumes exactly; None if it was never checked.
    checked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All collected facts."""

    trainer: TrainerFacts
    driver: Look
    store: StoreFacts
    database: DatabaseFacts
    #: None if it did not answer.
    scheduler: Look | None
    #: Why workers are missing; empty if all are there.
    absent: str = ""
    #: The pools of a cluster that starts its workers itself.
    pools: tuple[PoolStatus, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    #: Time limit of each check on each worker, in seconds.
    limit: float = 30.0

    @property
    def looks(self) -> list[tuple[WorkerFacts, Look]]:
        """The workers that have answered."""
        return [(worker, worker.look) for worker in self.workers if worker.look is not None]
