"""The place that runs a study, from flags and ``dasktune.toml``, and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dasktune._cluster.pools import worker_bounds
from dasktune._config_file import FILE, table_of
from dasktune.errors import ConfigurationError, refuse, shown, unknown
from dasktune.graph.audits import audit_problems

if TYPE_CHECKING:
    from distributed import Client

    from dasktune._engine.timeouts import Timeouts
    from dasktune.slurm import SlurmOptions

TABLE = "run"

FILES = ("scheduler_file", "tls_ca", "tls_cert", "tls_key", "log_file")
"""Options that are paths; in the table relative to its file."""

ELSEWHERE = ("scheduler", "scheduler_file", "slurm")
"""Options that name a cluster other than a local one."""

OF_THIS_HOST = ("workers", "gpus_per_worker", "trials_per_gpu")
"""Options of a local cluster."""

OF_SCHEDULER = ("tls_ca", "tls_cert", "tls_key", "insecure")
"""Options of the connection to a running scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The place that runs a study, checked as far as possible before anything starts.

    Parameters
    ----------
    workers, gpus_per_worker, trials_per_gpu
        The number of workers of a local cluster, or with `slurm` of those in jobs, or a range such
        as ``"0-16"``; and the most trials that train on one GPU at a time.
    scheduler, scheduler_file
        A running cluster: its URL, or the file that its scheduler has written.
    tls_ca, tls_cert, tls_key, insecure
        The connection to it; see `dasktune._cluster.connect.Scheduler`.
    step_timeout, silence_timeout, workers_timeout
        Seconds; see `dasktune.Timeouts`.
    audit
        Share of the resumed stages that are audited; see `dasktune.create_study`.
    log_file, log_format, log_level
        The log of the run; see `dasktune.logs.configure`.

    Raises
    ------
    ConfigurationError
        If these contradict each other: all problems at once.
    """

    workers: int | str | None = None
    gpus_per_worker: float | None = None
    trials_per_gpu: int | None = None
    scheduler: str | None = None
    scheduler_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    slurm: bool = False
    step_timeout: float | None = None
    silence_timeout: float | None = None
    workers_timeout: float | None = None
    audit: float | None = None
    log_file: str | None = None
    log_format: str | None = None
    log_level: str | None = None

    def __post_init__(self) -> None:
        refuse(self._problems())

    @property
    def log(self) -> tuple[str | None, str | None, str | None]:
        """File, format and level of the log."""
        return self.log_file, self.log_format, self.log_level

    @property
    def is_local(self) -> bool:
        """Whether the run starts a cluster on this host."""
        return not any(getattr(self, name) for name in ELSEWHERE)

    @property
    def local_workers(self) -> int | str | None:
        """The number of workers of a local cluster, or its range, if given."""
        if not self.is_local or self.workers is None:
            return None
        return int(self.workers) if str(self.workers).isdecimal() else self.workers

    @property
    def local_gpus(self) -> float | None:
        """The number of GPUs of each local worker, if given."""
        return self.gpus_per_worker if self.is_local else None

    @property
    def most_per_gpu(self) -> int:
        """The most trials that train on a GPU of a local cluster at a time."""
        return self.trials_per_gpu if self.is_local and self.trials_per_gpu is not None else 1

    def timeouts(self) -> Timeouts:
        """Return the timeouts of the run."""
        from dasktune._engine.timeouts import Timeouts

        silence = self.silence_timeout
        return Timeouts(
            step_seconds=self.step_timeout,
            silence_seconds=Timeouts().silence_seconds if silence is None else silence,
            workers_seconds=self.workers_timeout,
        )

    def connecting(
        self, folder: Path, flags: Mapping[str, object]
    ) -> Callable[[], AbstractContextManager[Client | None]]:
        """Return a function that connects to the place; it gives None for a local cluster.

        Parameters
        ----------
        folder
            The folder of ``dasktune.toml``.
        flags
            Options for SLURM; they win over those of the file.
        """
        if self.slurm:
            from dasktune.slurm import pools_client

            return partial(pools_client, self.slurm_pools(folder, flags))
        if given := [_flag(name) for name, value in flags.items() if value is not None]:
            raise ConfigurationError(f"{', '.join(given)} must come with --slurm")
        if self.is_local:
            return nullcontext
        from dasktune._cluster.connect import Scheduler, address_in

        scheduler = Scheduler(
            address=self.scheduler or address_in(str(self.scheduler_file)),
            ca=self.tls_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            insecure=self.insecure,
        )
        return scheduler.client

    def slurm_pools(self, folder: Path, flags: Mapping[str, object]) -> dict[str, SlurmOptions]:
        """Return the options of each pool of SLURM jobs, from the arguments of `connecting`."""
        from dasktune.slurm.options import pools_for

        own = {
            "workers": self.workers,
            "gpus_per_worker": self._whole_gpus(),
            "trials_per_gpu": self.trials_per_gpu,
        }
        return pools_for(folder, {**own, **flags})

    def _whole_gpus(self) -> float | None:
        """Return the GPUs as an int where they are whole: flags come as floats."""
        gpus = self.gpus_per_worker
        return int(gpus) if isinstance(gpus, float) and gpus.is_integer() else gpus

    def _problems(self) -> Iterator[str]:
        named = [_flag(name) for name in ELSEWHERE if getattr(self, name)]
        if len(named) > 1:
            yield f"only one of {', '.join(named)} may say which cluster it is"
        if not self.is_local and not self.slurm:
            for name in OF_THIS_HOST:
                if getattr(self, name) is not None:
                    yield f"{_flag(name)} is for a local cluster, not for one of {named[0]}"
        if self.is_local and self.workers is not None and worker_bounds(self.workers) is None:
            yield (
                "--workers must be a number >= 1 or a range such as 0-16, got "
                f"{shown(self.workers)}"
            )
        for name in OF_SCHEDULER:
            if getattr(self, name) and (self.is_local or self.slurm):
                yield f"{_flag(name)} is for a cluster of --scheduler or --scheduler-file"
        for name in ("insecure", "slurm"):
            if not isinstance(getattr(self, name), bool):
                yield f"{_flag(name)} must be true or false, got {getattr(self, name)!r}"
        if self.audit is not None:
            yield from audit_problems(self.audit)
        for name in ("scheduler", *FILES):
            if not isinstance(getattr(self, name), str | None):
                yield f"{_flag(name)} must be a text, got {getattr(self, name)!r}"


def run_settings(folder: Path, flags: Mapping[str, Any]) -> RunSettings:
    """Return the place that runs the study file of a folder.

    Parameters
    ----------
    folder
        The folder of ``dasktune.toml``; its table ``[run]`` has the fields of `RunSettings`.
    flags
        Values that win over the file's; None counts as not given. If flags name a cluster, all
        options of the file about another cluster are ignored.

    Raises
    ------
    ConfigurationError
        If the file cannot be read or the values are refused: all problems at once.
    """
    table = table_of(folder, TABLE)
    known = [field.name for field in fields(RunSettings)]
    refuse(
        f"{FILE}: [{TABLE}]: {unknown('option', name, known)}"
        for name in table
        if name not in known
    )
    for name in FILES:
        if isinstance(table.get(name), str):
            table[name] = str(folder / table[name])
    given = {name: value for name, value in flags.items() if value is not None}
    for name in _of_other_places(table, given):
        table.pop(name, None)
    try:
        return RunSettings(**{**table, **given})
    except ConfigurationError as error:
        if not table:
            raise
        raise ConfigurationError(
            *(f"{problem} (flags and {FILE})" for problem in error.problems)
        ) from None


def _of_other_places(table: Mapping[str, Any], flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of a table that belong to another cluster than the one in `flags`."""
    if any(flags.get(name) for name in ELSEWHERE):
        yield from (*ELSEWHERE, *OF_THIS_HOST, *OF_SCHEDULER)
    elif table.get("slurm") and flags.get("slurm") is None:
        yield from OF_THIS_HOST
    elif any(name in flags for name in OF_THIS_HOST):
        yield from (*ELSEWHERE, *OF_SCHEDULER)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
