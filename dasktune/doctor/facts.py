"""What is known of a cluster, a store and a database: gathered first, judged later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a process says of itself and of its host.

    Parameters
    ----------
    host, process
        Its host, and what tells the process from all others.
    python, packages
        The version of Python, and of packages by name; None for one that is not there.
    cores
        Numbers of the cores that it may use.
    threads
        What ``OMP_NUM_THREADS`` says; empty if nothing.
    memory_free
        Bytes that the host has left.
    free
        Bytes left by folder.
    missing
        Paths that the driver has, and this process has not.
    visible
        What ``CUDA_VISIBLE_DEVICES`` says; None if nothing.
    gpus
        GPUs of the host, as its driver tells them.
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
    """What a process is in Dask.

    Parameters
    ----------
    listening
        Addresses that it listens on; a dashboard as ``http://...``.
    settings
        Values of the scheduler by name; empty for a worker.
    slots
        Threads that run tasks.
    resources
        What it says it has.
    memory_limit
        Bytes at which Dask ends it; 0 if it does not.
    is_daemon
        Whether it cannot start processes of its own.
    """

    listening: tuple[str, ...] = ()
    settings: Mapping[str, float | None] = field(default_factory=dict)
    slots: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_limit: int = 0
    is_daemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """How far a clock is ahead of the driver's.

    Parameters
    ----------
    seconds
        By so much; negative if it is behind.
    error
        At most so far from the truth (seconds).
    """

    seconds: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as torch sees it.

    Parameters
    ----------
    name, uuid
        What it is, and which.
    nbytes, free
        Its memory.
    """

    name: str
    uuid: str
    nbytes: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch says in a process of its own, with a worker's environment.

    Parameters
    ----------
    cuda
        The version of CUDA that it was built with; None if without.
    devices
        The GPUs that it sees; the trainer is put on the first.
    problem
        Why it cannot use them; empty if it can.
    """

    cuda: str | None
    devices: tuple[Device, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What came of one process's use of the store.

    Parameters
    ----------
    failed, reason
        The operation that failed, and why; empty if none did.
    sees, is_seen
        Whether it finds what the driver wrote, and the driver finds what it wrote.
    refuses
        Whether a file that exists is not created a second time.
    lists
        Whether a listing shows what it has written.
    removes
        Whether what it removed is gone.
    won
        Whether it has created the one file that all tried to create.
    seconds
        To write and read a small file.
    """

    failed: str = ""
    reason: str = ""
    sees: bool = True
    is_seen: bool = True
    refuses: bool = True
    lists: bool = True
    removes: bool = True
    won: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a store took and gave a large file, in bytes per second."""

    write: float
    read: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """How fast a worker runs tasks that do nothing.

    Parameters
    ----------
    seconds
        From the driver's call until the driver has the answer.
    gap
        Seconds between two that waited on the worker.
    """

    seconds: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What is known of one worker; None where it was not asked or did not answer.

    Parameters
    ----------
    address
        Where it is.
    unanswered
        By check, why there is no answer.
    opened
        Why the trainer cannot be opened there; empty if it can.
    differing
        What differs there of what decides a result, in words.
    """

    address: str
    unanswered: Mapping[str, str] = field(default_factory=dict)
    look: Look | None = None
    role: Role | None = None
    offset: Offset | None = None
    opened: str | None = None
    differing: tuple[str, ...] = ()
    torch: Torch | None = None
    visit: Visit | None = None
    speed: Speed | None = None
    trip: Trip | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What is known of the store beside what workers tell.

    Parameters
    ----------
    url
        Where it is, as workers are told.
    visit
        What came of the driver's use of it.
    alone
        Speed when one worker uses it alone; None if nothing else was measured.
    offset
        Of its clock; None if that is not known.
    left
        What could not be removed again.
    """

    url: str
    visit: Visit
    alone: Speed | None = None
    offset: Offset | None = None
    left: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseFacts:
    """What is known of the database.

    Parameters
    ----------
    name
        The file or URL, without a password.
    problem
        Why it cannot be used; empty if it can.
    seconds
        Of one transaction.
    network
        The kind of network file system that its file is on; None if on no such.
    """

    name: str
    problem: str = ""
    seconds: float = 0.0
    network: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFacts:
    """What is known of the trainer on the driver.

    Parameters
    ----------
    name
        Its class.
    needs
        Resources that a stage occupies.
    threads
        With how many it computes; None if it does not say.
    checked
        Whether it was found to resume exactly; None if that was never checked.
    """

    name: str
    needs: Mapping[str, float] = field(default_factory=dict)
    threads: int | None = None
    checked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known.

    Parameters
    ----------
    trainer, driver, store, database
        Of the study, and of the process that asks.
    scheduler, scheduler_role
        None if it did not answer.
    absent
        Why there are no, or fewer workers than expected; empty if all are there.
    workers
        Of those that are there.
    limit
        Seconds that each check had on each worker.
    """

    trainer: TrainerFacts
    driver: Look
    store: StoreFacts
    database: DatabaseFacts
    scheduler: Look | None
    scheduler_role: Role | None
    absent: str = ""
    workers: tuple[WorkerFacts, ...] = ()
    limit: float = 30.0
