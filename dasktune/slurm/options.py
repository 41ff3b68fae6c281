"""Options of SLURM jobs, from arguments or dasktune.toml, checked before submission."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil
from dask.utils import parse_bytes

from dasktune._cluster.pools import worker_bounds
from dasktune._config_file import FILE, table_of
from dasktune._numbers import make_plain, real_of, whole_of
from dasktune._worker.gpus import sharing_problems
from dasktune.errors import ConfigurationError, refuse, shown, unknown
from dasktune.needs import LABELS, is_label

LEAST_WALLTIME = 120
"""Shortest walltime in seconds: a shorter one is mostly start and end of the worker."""

LONGEST_MARGIN = 300
"""Longest default margin, in seconds."""

LOOPBACK = frozenset({"lo", "lo0"})
"""Interfaces that no other host can reach."""

WALLTIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+))?(?::(?P<day_seconds>\d+))?"
    r"|(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?)"
)
"""As SLURM writes times: minutes, m:s, h:m:s, d-h, d-h:m and d-h:m:s."""

FOLDER_OF_NODES = re.compile(
    r"(?:[\w./@:+,=-]|\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*(?::-[\w./@:+,=-]*)?\})+"
)
"""A path on nodes: the shell of a job replaces variables in it, and nothing else."""

UNITS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The resources of the workers' jobs, and the number of workers.

    Parameters
    ----------
    workers
        A number, or a range such as ``"2-8"`` or ``"0-8"``: as many as the tuner can use, in these
        bounds. Multiples of `workers_per_job`; those of one job if None.
    workers_per_job
        Workers that share a job, each a process of its own; if None as many as `trials_per_gpu`.
    partition, account, qos
        As for ``sbatch``; SLURM's default if None.
    gpus_per_worker
        GPUs of a worker; it sees no others (``CUDA_VISIBLE_DEVICES``). With a fraction such as
        0.5, 2 workers of the job share a GPU.
    trials_per_gpu
        Most trials that may train on one GPU at a time, each in a worker of its own; see
        `dasktune.local_client`. More than 1 is for ``gpus_per_worker=1``: so many workers of the
        job see the same GPU.
    cpus_per_worker
        Cores of a worker. Training has one process; the others serve its threads and data loaders.
    memory
        Of a job with all its workers, such as ``"16GB"``.
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
    tags
        Words that mark the workers, beside those of their hardware; needs may ask for them.
    idle_seconds
        How long an idle worker, or a job without use, is kept.
    job_name
        The name of the jobs in the queue.
    interface
        The network interface of driver and workers, such as ``"ib0"``.
    encrypt
        Whether connections between driver and workers are encrypted and refuse strangers: whoever
        reaches an open port of Dask runs code there. If None, all connections to other hosts are
        encrypted.
    local_directory
        Where workers keep temporary files, on their node: in a folder ``dasktune-UID`` there,
        to which nobody else may write. Its path may have variables of the node, such as
        ``"${TMPDIR:-/tmp}"``, and no spaces.
    shared_directory
        A folder that driver and nodes see: job logs, and the keys of the encryption.

    Raises
    ------
    ConfigurationError
        If an option is invalid: all problems at once.
    """

    workers: str | int | None = None
    workers_per_job: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus_per_worker: float = 0
    trials_per_gpu: int = 1
    cpus_per_worker: int = 1
    memory: str = "4GB"
    walltime: str = "1:00:00"
    margin: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    idle_seconds: float = 60.0
    job_name: str = "dasktune"
    interface: str | None = None
    encrypt: bool | None = None
    local_directory: str = "${TMPDIR:-/tmp}"
    shared_directory: str = "slurm"

    def __post_init__(self) -> None:
        make_plain(self, *(option.name for option in fields(self)))
        refuse(
            [
                *self._number_problems(),
                *self._gpu_problems(),
                *self._time_problems(),
                *self._text_problems(),
                *self._place_problems(),
            ]
        )

    @property
    def least(self) -> int:
        """The fewest workers."""
        return self._bounds[0]

    @property
    def most(self) -> int:
        """The most workers."""
        return self._bounds[1]

    @property
    def processes(self) -> int:
        """The workers of a job, each a process of its own."""
        return self.trials_per_gpu if self.workers_per_job is None else self.workers_per_job

    @property
    def sharers(self) -> int:
        """How many workers see the same GPU; 1 if each has its own, or none."""
        is_part = 0 < self.gpus_per_worker < 1
        return round(1 / self.gpus_per_worker) if is_part else self.trials_per_gpu

    @property
    def gpus_per_job(self) -> int:
        """The GPUs of a job."""
        return math.ceil(self.processes / self.sharers) * math.ceil(self.gpus_per_worker)

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

    @property
    def _bounds(self) -> tuple[int, int]:
        return worker_bounds(self.processes if self.workers is None else self.workers) or (0, 0)

    def _number_problems(self) -> Iterator[str]:
        for name in ("workers_per_job", "cpus_per_worker", "trials_per_gpu"):
            given = getattr(self, name)
            if whole_of(given) is None and (name, given) != ("workers_per_job", None):
                yield f"{name} must be an int >= 1, got {given!r}"
        if whole_of(self.processes) is None:
            return
        least, most = self._bounds
        if most < max(1, least):
            yield f"workers must be a number >= 1 or a range such as '2-8', got {self.workers!r}"
        elif least % self.processes or most % self.processes:
            name = "trials_per_gpu" if self.workers_per_job is None else "workers_per_job"
            yield f"workers must be multiples of {name} {self.processes}, got {self.workers!r}"
        if not 0 < real_of(self.idle_seconds) < math.inf:
            yield f"idle_seconds must be a number > 0, got {self.idle_seconds!r}"
        try:
            enough = parse_bytes(self.memory) >= 2**20
        except (ValueError, TypeError, AttributeError):
            enough = False
        if not enough:
            yield f"memory must be a size of 1MB or more, such as '16GB', got {self.memory!r}"

    def _gpu_problems(self) -> Iterator[str]:
        given = self.gpus_per_worker
        number = real_of(given)
        is_whole = 0 <= number < math.inf and number.is_integer()
        # 0.33 and 0.333 are thirds, too.
        is_part = 0 < number < 1 and abs(round(1 / number) * number - 1) < 0.05
        if not is_whole and not is_part:
            yield f"gpus_per_worker must be an int >= 0 or a part such as 0.5, got {given!r}"
            return
        if whole_of(self.trials_per_gpu) is None:
            return  # said elsewhere
        problems = [*sharing_problems(self.trials_per_gpu, given)]
        yield from problems
        if not problems and type(self.processes) is int and self.processes % self.sharers:
            name = "gpus_per_worker" if given < 1 else "trials_per_gpu"
            yield (
                f"workers_per_job must be a multiple of {self.sharers}, since so many share a GPU "
                f"({name}={getattr(self, name):g}), got {self.processes!r}"
            )

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
        for name in ("partition", "account", "qos", "interface", "job_name"):
            given = getattr(self, name)
            is_given = given is not None or name == "job_name"
            if is_given and not (isinstance(given, str) and _is_word(given)):
                yield f"{name} must be one word, got {given!r}"
        if not isinstance(self.tags, tuple) or not all(
            isinstance(tag, str) and _is_word(tag) and "," not in tag for tag in self.tags
        ):
            yield f"tags must be a list of words, got {self.tags!r}"
        elif not all(map(is_label, self.tags)):
            yield f"tags must be {LABELS}, got {shown(self.tags)}"
        if not isinstance(self.encrypt, bool | None):
            yield f"encrypt must be true or false, got {self.encrypt!r}"
        for name in ("directives", "prologue"):
            given = getattr(self, name)
            for line in given if isinstance(given, tuple) else [given]:
                if not isinstance(line, str) or "\n" in line:
                    yield f"{name} must be a list of lines, got {line!r}"
        for line in self.directives if isinstance(self.directives, tuple) else ():
            if isinstance(line, str) and not (line.startswith("-") and line.isprintable()):
                yield f"a directive must be an option of sbatch such as '--nice', got {line!r}"
        for name in ("local_directory", "shared_directory"):
            given = getattr(self, name)
            if not isinstance(given, str) or not given or "\n" in given:
                yield f"{name} must be a folder, got {given!r}"
            elif name == "local_directory" and FOLDER_OF_NODES.fullmatch(given) is None:
                yield (
                    f"{name} must be a folder whose path has letters, digits, ./@:+,=_- and "
                    "variables such as $TMPDIR or ${TMPDIR:-/tmp} alone, since it stands in "
                    f"scripts; got {given!r}"
                )
            elif name == "shared_directory" and not _is_plain(given):
                yield (
                    f"{name} must be a folder whose path has letters, digits and ./@:+,=_- alone, "
                    f"because job scripts contain the path; got {str(Path(given).absolute())!r}"
                )

    def _place_problems(self) -> Iterator[str]:
        """Yield what this host lacks to submit jobs."""
        if self.interface is not None and isinstance(self.interface, str):
            known = sorted(psutil.net_if_addrs())
            if self.interface not in known:
                yield unknown("interface", self.interface, known)
        yield from lacking()


def lacking() -> Iterator[str]:
    """Yield what this host lacks to submit any job."""
    if missing := [name for name in ("sbatch", "squeue", "scancel") if not shutil.which(name)]:
        yield (
            f"{', '.join(missing)} must be in PATH, and cannot be found: run this where jobs "
            "are submitted"
        )
    if not importlib.util.find_spec("dask_jobqueue"):
        yield "dask-jobqueue must be installed: pip install 'dasktune[slurm]'"


def seconds_of(time: object) -> int | None:
    """Return the seconds of a time in SLURM's notation; None for other texts.

    Examples
    --------
    >>> seconds_of("90"), seconds_of("1:30"), seconds_of("4:00:00"), seconds_of("1-12")
    (5400, 90, 14400, 129600)
    >>> seconds_of("four hours")
    """
    parts = WALLTIME.fullmatch(time) if isinstance(time, str) else None
    if parts is None:
        return None
    return sum(
        int(number) * UNITS[name.rpartition("_")[2]]
        for name, number in parts.groupdict().items()
        if number
    )


def _is_plain(path: str) -> bool:
    """Return whether a job's script may contain a path without quotes."""
    return re.fullmatch(r"[\w./@:+,=-]+", str(Path(path).expanduser().absolute())) is not None


def _is_word(text: str) -> bool:
    return re.fullmatch(r"[\w.,@:+-]+", text) is not None and not text.startswith("-")


# ------------------------------------------------------------------- dasktune.toml

NAME = re.compile(r"[\w-]{1,100}")
"""The name of a pool: it is part of the names of jobs."""

TABLE = "slurm"
DRIVER = "driver"
"""The inner table for the driver's job; see `dasktune.slurm.submit`."""

FIELDS = tuple(field.name for field in fields(SlurmOptions))
COMMON = ("interface", "encrypt", "shared_directory")
"""Options that hold for the one scheduler of all pools."""


def pools_for(folder: Path, flags: Mapping[str, object]) -> dict[str, SlurmOptions]:
    """Return the options of each pool of SLURM jobs for a study file of a folder, by its name.

    Parameters
    ----------
    folder
        The folder of ``dasktune.toml``; its table ``[slurm]`` has the fields of `SlurmOptions`.
        Each table ``[slurm.NAME]`` is a pool of that name, for which the fields of ``[slurm]`` are
        the defaults. Without such tables there is one pool, whose name is empty.
    flags
        Values that win over those of ``[slurm]``; None counts as not given.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or an option is invalid: all problems at once.
    """
    table = slurm_table(folder)
    table.pop(DRIVER, None)
    own = {
        name: {key.replace("-", "_"): value for key, value in fields_of.items()}
        for name, fields_of in table.items()
        if isinstance(fields_of, dict) and name not in FIELDS
    }
    given = {name: value for name, value in flags.items() if value is not None}
    refuse(
        f"--{name.replace('_', '-')} must be left out, since [{TABLE}.{pool}] of {FILE} says it"
        for name in given
        for pool in own
        if name in own[pool]
    )
    common = {name: value for name, value in table.items() if name not in own} | given
    return pools_of(own, common, FILE + f": [{TABLE}{{}}]")


def options_for(folder: Path, flags: Mapping[str, object]) -> SlurmOptions:
    """Return the options of SLURM for a study file of a folder whose cluster has one pool.

    Parameters
    ----------
    folder, flags
        As for `pools_for`.

    Raises
    ------
    ConfigurationError
        If there are several pools, the file cannot be read, or an option is invalid.
    """
    pools = pools_for(folder, flags)
    if len(pools) > 1:
        names = ", ".join(f"[{TABLE}.{name}]" for name in pools)
        raise ConfigurationError(f"{FILE} must have one pool here, got {names}")
    return next(iter(pools.values()))


def pools_of(
    own: Mapping[str, Mapping[str, object]],
    common: Mapping[str, object],
    place: str = "slurm_client{}",
) -> dict[str, SlurmOptions]:
    """Return the options of each pool by its name; one without a name if none has a name.

    Parameters
    ----------
    own
        The fields of `SlurmOptions` of each pool by its name, the preferred pool first.
    common
        The fields of all pools, where a pool has no other value.
    place
        Begins messages; ``{}`` stands for a dot and the name of a pool.

    Raises
    ------
    ConfigurationError
        If an option is invalid, or pools contradict each other: all problems at once.
    """
    problems = list(_unknown_fields(common, place.format("")))
    if not own:
        refuse(problems)
        return {"": _options_of(common)}
    pools: dict[str, SlurmOptions] = {}
    for name, values in own.items():
        where = place.format(f".{name}")
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            problems.append(
                f"{place.format('')}: a pool's name must have letters, digits, _ and - alone, and "
                f"at most 100 of them, got {shown(name)}"
            )
            continue
        problems += _unknown_fields(values, where)
        given = {"job_name": f"dasktune-{name}", **common, **values}
        try:
            pools[name] = _options_of({key: given[key] for key in FIELDS if key in given})
        except ConfigurationError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]
    refuse([*problems, *_common_problems(pools)])
    return pools


def _unknown_fields(given: Mapping[str, object], where: str) -> Iterator[str]:
    """Yield a problem for each name that is no field of `SlurmOptions`."""
    return (f"{where}: {unknown('option', key, FIELDS)}" for key in given if key not in FIELDS)


def _options_of(given: Mapping[str, Any]) -> SlurmOptions:
    """Return options from fields, in which lists stand for tuples."""
    as_tuples = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return SlurmOptions(**{**given, **as_tuples})


def _common_problems(pools: Mapping[str, SlurmOptions]) -> Iterator[str]:
    """Yield the options in which pools differ although they have one scheduler."""
    for name in COMMON:
        values = {pool: getattr(options, name) for pool, options in pools.items()}
        if len(set(values.values())) > 1:
            texts = ", ".join(f"{value!r} for {pool}" for pool, value in values.items())
            yield f"{name} must be the same in all pools, got {texts}"


def slurm_table(folder: Path) -> dict[str, Any]:
    """Return the table ``[slurm]`` of a folder's ``dasktune.toml``; empty if there is none.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    """
    return table_of(folder, TABLE)
