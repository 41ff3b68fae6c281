"""The driver as a job of its own: it goes on in its next life where the last one ended.

Before its walltime the driver saves what runs and ends, and its job is requeued: not followed
by another one, since so it keeps its number, whoever waits for it goes on waiting, and there
are never two. Where the job is preempted, or its node dies, SLURM does the same by itself.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes

from dasktune._config_file import FILE
from dasktune.errors import ClusterError, ConfigurationError, refuse, unknown
from dasktune.slurm.commands import call, words
from dasktune.slurm.options import (
    DRIVER,
    LONGEST_MARGIN,
    TABLE,
    SlurmOptions,
    lacking,
    seconds_of,
    slurm_table,
)
from dasktune.storage.layout import slug

UNLIMITED, LONGEST = "UNLIMITED", "365-0"
"""The walltime of a job that may run for ever, and one that is longer than any."""

BACKSTOP = 0.9
"""Part of the margin after which a driver that is not done with saving is ended."""

DASKTUNE = (sys.executable, "-c", "from dasktune.cli import main; main()")
"""The command line's program, by the Python that runs here."""

SCRIPT = """\
#!/bin/bash
{prologue}
# However the driver ends, no job of a worker of this life outlasts it in the queue.
export SBATCH_JOB_NAME="dasktune-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
trap 'scancel --quiet --user="$(id -u)" --name="$SBATCH_JOB_NAME"' EXIT

# On a node that does not see the study's database it would begin anew.
{status} > /dev/null || exit

again=
# USR1: the walltime is near. TERM: somebody ends this job, or SLURM requeues it by itself.
trap 'again=yes; kill -TERM $driver
      {{ sleep {patience}; exec scontrol requeue "$SLURM_JOB_ID"; }} &' USR1
trap 'again=; kill -TERM $driver 2> /dev/null' TERM
{run} &
driver=$!
while kill -0 $driver 2> /dev/null; do wait $driver; done
wait $driver
code=$?
if [ "$again" ] && [ $code -gt 2 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit $code
"""
"""A driver that was interrupted has an exit code above 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """The resources of the driver's job.

    Parameters
    ----------
    partition, qos
        As for ``sbatch``; SLURM's default if None.
    account
        The account of the workers' jobs if None.
    walltime
        As SLURM writes it; the longest of the partition if None.
    margin
        How long before its walltime it begins to save: longer than the longest step, plus 1
        minute. If None, a quarter of the walltime and at most 5 minutes.
    directives
        Further options of ``sbatch``.
    prologue
        Lines of shell that it runs first; the prologue of the workers' jobs if None.

    Raises
    ------
    ConfigurationError
        If an option is invalid: all problems at once.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    cpus: int = 1
    memory: str = "2GB"
    walltime: str | None = None
    margin: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        try:
            SlurmOptions(
                partition=self.partition,
                account=self.account,
                qos=self.qos,
                cpus_per_worker=self.cpus,
                memory=self.memory,
                walltime=self.walltime or LONGEST,
                margin=self.margin,
                directives=self.directives,
                prologue=self.prologue or (),
            )
        except ConfigurationError as error:
            # What this host lacks is said with the options of the workers.
            own = [each for each in error.problems if each not in [*lacking()]]
            refuse(f"driver: {each.replace('cpus_per_worker', 'cpus')}" for each in own)

    def margin_seconds(self, walltime: str) -> int | None:
        """Return the seconds from the start of saving to the walltime, if that is limited."""
        seconds = seconds_of(walltime)
        if self.margin is not None or seconds is None:
            return seconds and seconds_of(self.margin)
        return min(LONGEST_MARGIN, seconds // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverJob:
    """A driver's job that was submitted.

    Parameters
    ----------
    job
        Its number, which stays when SLURM requeues it.
    """

    job: str
    log: Path


def driver_options_for(folder: Path, flags: Mapping[str, object]) -> DriverOptions:
    """Return the options of the driver's job for a study file of a folder.

    Parameters
    ----------
    folder
        The folder of ``dasktune.toml``; its table ``[slurm.driver]`` has the fields of
        `DriverOptions`.
    flags
        Values that win over the file's; None counts as not given.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or an option is invalid: all problems at once.
    """
    table = slurm_table(folder).get(DRIVER, {})
    place = f"{FILE}: [{TABLE}.{DRIVER}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{place} must be a table, got {table!r}")
    given: dict[str, Any] = {**table, **{k: v for k, v in flags.items() if v is not None}}
    known = [field.name for field in fields(DriverOptions)]
    refuse(f"{place}: {unknown('option', name, known)}" for name in given if name not in known)
    for name in ("directives", "prologue"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    return DriverOptions(**given)


def submit(
    options: DriverOptions,
    workers: SlurmOptions,
    *,
    name: str,
    run: Sequence[str],
    status: Sequence[str],
) -> DriverJob:
    """Submit the driver of a study as a job.

    Parameters
    ----------
    name
        The job's name; of several jobs with one name, SLURM runs one at a time.
    run
        Arguments of the command that runs the study.
    status
        Arguments of a command that fails on nodes where the study cannot be read.

    Raises
    ------
    ClusterError
        If SLURM refuses the job, with its own words.
    """
    log = Path(workers.shared_directory).expanduser().absolute() / "logs" / "driver-%j.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    walltime = options.walltime or longest_walltime(options.partition)
    asked = sbatch_options(options, workers, walltime, name)
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(job_script(options, workers, walltime, run, status))
        script.flush()
        done = call("sbatch", "--parsable", f"--output={log}", *asked, script.name)
    if done.returncode:
        raise ClusterError(f"SLURM refuses the driver's job: {words(done.stderr)}")
    job = done.stdout.strip().partition(";")[0]
    return DriverJob(job=job, log=log.with_name(f"driver-{job}.log"))


def sbatch_options(
    options: DriverOptions, workers: SlurmOptions, walltime: str, name: str
) -> Iterator[str]:
    """Yield the options of ``sbatch`` for the job."""
    yield from (f"--job-name={name}", "--dependency=singleton")
    yield from ("--requeue", "--open-mode=append", "--ntasks=1", f"--time={walltime}")
    yield f"--cpus-per-task={options.cpus}"
    yield f"--mem={parse_bytes(options.memory) // 2**20}M"
    if (margin := options.margin_seconds(walltime)) is not None:
        yield f"--signal=B:USR1@{margin}"
    account = options.account or workers.account
    for key, value in (
        ("partition", options.partition),
        ("account", account),
        ("qos", options.qos),
    ):
        if value is not None:
            yield f"--{key}={value}"
    yield from options.directives


def job_script(
    options: DriverOptions,
    workers: SlurmOptions,
    walltime: str,
    run: Sequence[str],
    status: Sequence[str],
) -> str:
    """Return the script that the job runs at its start and after each requeue."""
    lines = workers.prologue if options.prologue is None else options.prologue
    return SCRIPT.format(
        prologue="\n".join(lines),
        run=shlex.join([*DASKTUNE, *run]),
        status=shlex.join([*DASKTUNE, *status]),
        patience=int(BACKSTOP * (options.margin_seconds(walltime) or LONGEST_MARGIN)),
    )


def job_name(study: str, store: str) -> str:
    """Return the name of a driver's job: the same for the same study in the same store.

    Examples
    --------
    >>> job_name("digits", store="5d8c")
    'dasktune-digits-b6afbd'
    """
    digest = sha256(f"{store} {study}".encode()).hexdigest()
    return f"dasktune-{slug(study)}-{digest[:6]}"


def longest_walltime(partition: str | None) -> str:
    """Return the longest walltime of a partition, SLURM's default one if None.

    Raises
    ------
    ClusterError
        If there is no such partition, or SLURM does not answer.
    """
    done = call("sinfo", "-h", "-o", "%P %l")
    limits = dict(line.split() for line in done.stdout.splitlines())
    for name, limit in limits.items():
        if name.removesuffix("*") == partition or (partition is None and name.endswith("*")):
            return UNLIMITED if limit == "infinite" else limit
    raise ClusterError(
        words(done.stderr)
        if done.returncode
        else unknown("partition", partition, [name.removesuffix("*") for name in limits])
    )
