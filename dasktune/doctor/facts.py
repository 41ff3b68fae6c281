"""Facts on a cluster, a store and a database: collected first, judged later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dasktune.cluster.pools import PoolStatus
from dasktune.doctor.needs import TriedNeeds
from dasktune.needs import NO_NEEDS, Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A process and its host, as the process sees them.

    Parameters
    ----------
    host, process
        The name of its host, and an identifier of the process.
    python, packages
        The version of Python, and of packages by name; None for a missing package.
    cores
        Numbers of the cores that it may use.
    threads
        The value of ``OMP_NUM_THREADS``; empty if it is not set.
    memory_free
        Free memory of the host, in bytes.
    free
        Free bytes by folder.
    missing
        Paths of the driver that this process does not see.
    visible
        The value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    gpus
        GPUs of the host, from NVIDIA's driver.
    """

    host: str
    process: str
    python: str
    packages: Mapping[str, str | None]
    cores: tuple[int, ...] = (0,)
    threads: str = ""
    memory_free: int = 2**40
    free: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    visible: str | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A process as a worker or scheduler of Dask.

    Parameters
    ----------
    listening
        Addresses that it listens on; a dashboard as ``http://...``.
    settings
        Values of the scheduler by name; empty for a worker.
    slots
        Threads that run tasks.
    resources
        Its declared resources.
    memory_limit
        Bytes at which Dask ends the process; 0 for no limit.
    is_daemon
        Whether it cannot start child processes.
    """

    listening: tuple[str, ...] = ()
    settings: Mapping[str, float | None] = field(default_factory=dict)
    slots: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_limit: int = 0
    is_daemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The offset of a clock from the driver's.

    Parameters
    ----------
    seconds
        Positive if the clock is ahead.
    error
        Largest error of `seconds`.
    """

    seconds: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as torch sees it.

    Parameters
    ----------
    name, uuid
        Its model and its identifier.
    nbytes, free
        Its memory, and the free part of it.
    """

    name: str
    uuid: str
    nbytes: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """Facts from torch, in a new process with a worker's environment.

    Parameters
    ----------
    cuda
        The version of CUDA that torch was built with; None for a build without CUDA.
    devices
        The visible GPUs; the trainer uses the first.
    problem
        Why torch cannot use them; empty if it can.
    """

    cuda: str | None
    devices: tuple[Device, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """The outcome of one process's use of the store.

    Parameters
    ----------
    failed, reason
        The operation that failed, and the reason; empty after success.
    sees, is_seen
        Whether the process reads the driver's file, and the driver reads the process's file.
    refuses
        Whether the store refuses to create an existing file.
    lists
        Whether a listing shows the written file.
    removes
        Whether a removed file is gone.
    conditional
        Whether the store removes a file only if it has not changed, with one request.
    won
        Whether the process created the file that all processes try to create.
    seconds
        To write and read a small file.
    made
        The local folders that did not exist before, deepest first.
    """

    failed: str = ""
    reason: str = ""
    sees: bool = True
    is_seen: bool = True
    refuses: bool = True
    lists: bool = True
    removes: bool = True
    conditional: bool = False
    won: bool = False
    seconds: float = 0.0
    made: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a store for a large file, in bytes per second."""

    write: float
    read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """The times of empty tasks on a worker.

    Parameters
    ----------
    seconds
        From the driver's call until the driver has the answer.
    gap
        Seconds between two tasks that waited on the worker.
    """

    seconds: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Facts on one worker; None stands for a missing answer.

    Parameters
    ----------
    address
        The worker's address.
    unanswered
        The reasons of failed calls, by check.
    opened
        Why the worker cannot open the trainer; empty if it can.
    differing
        The parts of the trainer's fingerprint that differ on the worker, in words.
    kind, tags
        The worker's compute class, and its tags; None and none if unknown.
    device, has_mps
        The device that it shares with others by measurement, empty if none, and whether NVIDIA's
        multi-process service runs there.
    """

    address: str
    unanswered: Mapping[str, str] = field(default_factory=dict)
    look: Look | None = None
    role: Role | None = None
    offset: Offset | None = None
    opened: str | None = None
    differing: tuple[str, ...] = ()
    torch: Torch | None = None
    use: StoreUse | None = None
    speed: Speed | None = None
    trip: Trip | None = None
    kind: str | None = None
    tags: tuple[str, ...] = ()
    device: str = ""
    has_mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts on the store, without those of workers.

    Parameters
    ----------
    url
        Its URL, without secrets.
    use
        What came of the driver's use of it.
    alone
        Speed for one worker alone; None with fewer than 2 workers.
    offset
        The offset of its clock; None if unknown.
    left
        The folder that could not be removed; empty after success.
    """

    url: str
    use: StoreUse
    alone: Speed | None = None
    offset: Offset | None = None
    left: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """Facts on the database.

    Parameters
    ----------
    name
        The file or URL, without a password.
    problem
        Why the driver cannot use it; empty if it can.
    seconds
        The time of one transaction.
    network
        The kind of network file system of its file; None for a local disk.
    """

    name: str
    problem: str = ""
    seconds: float = 0.0
    network: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """Facts on the trainer that the driver knows.

    Parameters
    ----------
    name
        The name of its class.
    needs
        The needs of every stage.
    tried
        The needs that the study's function gives its configurations; None without a function.
    threads
        The number of threads that it declares; None without a declaration.
    checked
        Whether `check_resume` found that it resumes exactly; None if it was never checked.
    """

    name: str
    needs: Needs = NO_NEEDS
    tried: TriedNeeds | None = None
    threads: int | None = None
    checked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All collected facts.

    Parameters
    ----------
    trainer, driver, store, database
        Facts on the study and on the driver.
    scheduler, scheduler_role
        Facts on the scheduler; None if it did not answer.
    absent
        Why workers are missing; empty if all are there.
    pools
        The pools of a cluster that starts its workers itself.
    workers
        Facts on each worker.
    limit
        Time limit of each check on each worker, in seconds.
    """

    trainer: TrainerFacts
    driver: Look
    store: StoreFacts
    database: DatabaseFacts
    scheduler: Look | None
    scheduler_role: Role | None
    absent: str = ""
    pools: tuple[PoolStatus, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    limit: float = 30.0
