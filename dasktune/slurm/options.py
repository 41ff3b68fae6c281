"""What is asked of SLURM: checked as a whole before anything is submitted."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from dask.utils import parse_bytes

from dasktune.errors import refuse, unknown

LEAST_WALLTIME = 120
"""Seconds: in less a worker would hardly do more than start and end."""

LONGEST_MARGIN = 300
"""Seconds of the margin unless told otherwise, where the walltime is long."""

LOOPBACK = frozenset({"lo", "lo0"})
"""Interfaces that no other host can reach."""

WALLTIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+))?(?::(?P<day_seconds>\d+))?"
    r"|(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?)"
)
"""As SLURM writes times: minutes, m:s, h:m:s, d-h, d-h:m and d-h:m:s."""

UNITS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What each worker's job asks SLURM for, and how many workers there shall be.

    Parameters
    ----------
    workers
        A number, or a range such as ``"2-8"``: as many as the tuner can use, in these bounds.
    partition, account, qos
        As for ``sbatch``; SLURM's default if None.
    gpus_per_worker
        GPUs of a job; SLURM decides which, by ``CUDA_VISIBLE_DEVICES``.
    cpus_per_worker
        Cores of a job. Training has one process; the others serve its threads and data loaders.
    memory
        Of a job, such as ``"16GB"``.
    walltime
        As SLURM writes it, such as ``"4:00:00"`` or ``"1-12"``.
    margin
        How long before its walltime a worker takes no more stages and saves what it has, in
        the same notation: longer than the longest step. A tenth of the walltime, at most
        five minutes, if None.
    directives
        Further options of ``sbatch``, such as ``"--constraint=a100"``.
    prologue
        Lines of shell that each job runs first, such as ``"module load cuda"``.
    interface
        The network interface of driver and workers, such as ``"ib0"``.
    encrypt
        Whether all that driver and workers say to each other is encrypted, and strangers are
        refused: whoever reaches an open port of Dask runs code there. If None, wherever it leaves
        this host.
    local_directory
        Where workers keep temporary files, on their node.
    shared_directory
        A folder that driver and nodes see: job logs, and the keys of the encryption.

    Raises
    ------
    ConfigurationError
        If anything of this cannot be: all problems at once.
    """

    workers: str | int = 1
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus_per_worker: int = 0
    cpus_per_worker: int = 1
    memory: str = "4GB"
    walltime: str = "1:00:00"
    margin: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    interface: str | None = None
    encrypt: bool | None = None
    local_directory: str = "${TMPDIR:-/tmp}/dasktune-$(id -u)"
    shared_directory: str = "slurm"

    def __post_init__(self) -> None:
        refuse(
            [
                *self._number_problems(),
                *self._time_problems(),
                *self._text_problems(),
                *self._place_problems(),
            ]
        )

    @property
    def least(self) -> int:
        """The fewest workers."""
        return _range_of(self.workers)[0]

    @property
    def most(self) -> int:
        """The most workers."""
        return _range_of(self.workers)[1]

    @property
    def walltime_seconds(self) -> int:
        """The walltime in seconds."""
        return seconds_of(self.walltime) or 0

    @property
    def margin_seconds(self) -> int:
        """How long before its walltime a worker takes no more stages."""
        if self.margin is not None:
            return seconds_of(self.margin) or 0
        return min(LONGEST_MARGIN, self.walltime_seconds // 10)

    @property
    def is_encrypted(self) -> bool:
        """Whether what driver and workers say can be heard by others."""
        return self.interface not in LOOPBACK if self.encrypt is None else self.encrypt

    def _number_problems(self) -> Iterator[str]:
        least, most = _range_of(self.workers)
        if not 1 <= least <= most:
            yield f"workers must be a number >= 1 or a range such as '2-8', got {self.workers!r}"
        for name, least in (("gpus_per_worker", 0), ("cpus_per_worker", 1)):
            given = getattr(self, name)
            if type(given) is not int or given < least:
                yield f"{name} must be an int >= {least}, got {given!r}"
        try:
            enough = parse_bytes(self.memory) >= 2**20
        except (ValueError, TypeError, AttributeError):
            enough = False
        if not enough:
            yield f"memory must be a size of 1MB or more, such as '16GB', got {self.memory!r}"

    def _time_problems(self) -> Iterator[str]:
        walltime = seconds_of(self.walltime)
        if walltime is None or walltime < LEAST_WALLTIME:
            yield (
                f"walltime must be {LEAST_WALLTIME // 60} minutes or more, as SLURM writes it "
                f"('90' minutes, '4:00:00', '1-12' days and hours), got {self.walltime!r}"
            )
        margin = None if self.margin is None else seconds_of(self.margin)
        if self.margin is None or walltime is None:
            return
        if margin is None or not 0 < margin < walltime:
            yield (f"margin must be a time > 0 and < walltime {self.walltime}, got {self.margin!r}")

    def _text_problems(self) -> Iterator[str]:
        for name in ("partition", "account", "qos", "interface"):
            given = getattr(self, name)
            if given is not None and not (isinstance(given, str) and _is_word(given)):
                yield f"{name} must be one word, got {given!r}"
        if not isinstance(self.encrypt, bool | None):
            yield f"encrypt must be true or false, got {self.encrypt!r}"
        for name in ("directives", "prologue"):
            given = getattr(self, name)
            for one in given if isinstance(given, tuple) else [given]:
                if not isinstance(one, str) or "\n" in one:
                    yield f"{name} must be a list of lines, got {one!r}"
        for one in self.directives if isinstance(self.directives, tuple) else ():
            if isinstance(one, str) and not one.startswith("-"):
                yield f"a directive must be an option of sbatch such as '--nice', got {one!r}"
        for name in ("local_directory", "shared_directory"):
            given = getattr(self, name)
            if not isinstance(given, str) or not given or "\n" in given:
                yield f"{name} must be a folder, got {given!r}"

    def _place_problems(self) -> Iterator[str]:
        """Say what this host lacks to submit jobs at all."""
        if self.interface is not None and isinstance(self.interface, str):
            known = sorted(psutil.net_if_addrs())
            if self.interface not in known:
                yield unknown("interface", self.interface, known)
        if missing := [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]:
            yield (
                f"{', '.join(missing)} must be in PATH, and cannot be found: run this where jobs "
                "are submitted"
            )
        if not importlib.util.find_spec("dask_jobqueue"):
            yield "dask-jobqueue must be installed: pip install 'dasktune[slurm]'"


def seconds_of(time: object) -> int | None:
    """Return how many seconds a time in SLURM's notation is; None if it is none.

    Examples
    --------
    >>> seconds_of("90"), seconds_of("1:30"), seconds_of("4:00:00"), seconds_of("1-12")
    (5400, 90, 14400, 129600)
    >>> seconds_of("four hours")
    """
    found = WALLTIME.fullmatch(time) if isinstance(time, str) else None
    if found is None:
        return None
    return sum(
        int(number) * UNITS[name.rpartition("_")[2]]
        for name, number in found.groupdict().items()
        if number
    )


def _range_of(workers: object) -> tuple[int, int]:
    """Return the bounds of a number or range of workers; zeros if it is neither."""
    if type(workers) is int:
        return workers, workers
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", workers) if isinstance(workers, str) else None
    if found is None:
        return 0, 0
    return int(found[1]), int(found[2] or found[1])


def _is_word(text: str) -> bool:
    return re.fullmatch(r"[\w.,@:+-]+", text) is not None and not text.startswith("-")
