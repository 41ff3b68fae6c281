"""A Dask cluster whose workers are SLURM jobs, as many as the tuner can use.

dask-jobqueue writes and submits the jobs. dasktune decides on their number and on the
replacement of ended jobs by the states that SLURM reports, not by connected workers, because a
requeued job comes back by itself.
"""

from __future__ import annotations

import logging
import math
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import dask
from distributed import Client
from distributed.security import Security

from dasktune._cluster.local import LOCAL_SETTINGS
from dasktune._engine.timeouts import BACKSTOP_SECONDS, KILL_MARGIN_SECONDS
from dasktune._worker.hardware import TAGS
from dasktune._worker.plugin import CLOSE_SECONDS, LEAVE_AT
from dasktune.errors import ClusterError, refuse
from dasktune.slurm.commands import call, job_states, kill_wait, words
from dasktune.slurm.job_pool import JobPool
from dasktune.slurm.leftover import Driver, cancel_leftover
from dasktune.slurm.options import SlurmOptions, pools_of

logger = logging.getLogger(__name__)

SETTINGS = {
    **LOCAL_SETTINGS,
    # Dask would cancel a job whose worker is away for longer. A requeued job may wait in the
    # queue for days; SLURM knows whether a job has ended.
    "distributed.deploy.lost-worker-timeout": "30 days",
}

STAGGER = 0.1
"""Share of the walltime over which the ends of workers are spread."""

PROLOGUE = (
    'export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-268435456}"',
    'export MALLOC_MMAP_THRESHOLD_="${MALLOC_MMAP_THRESHOLD_:-268435456}"',
)


@contextmanager
def slurm_client(
    options: SlurmOptions | Mapping[str, Mapping[str, Any]] | None = None, /, **fields: Any
) -> Iterator[Client]:
    """Yield a client of a cluster whose workers are SLURM jobs; the jobs end with it.

    Parameters
    ----------
    options
        Options of the jobs; or for several pools the fields of `SlurmOptions` of each pool by its
        name, the preferred pool first.
    fields
        The fields of `SlurmOptions`, if `options` is None; those of all pools, where a pool has no
        other value.

    Raises
    ------
    ConfigurationError
        If an option is invalid: all problems at once.
    ClusterError
        If SLURM refuses the jobs of all pools, with SLURM's message.
    """
    if isinstance(options, SlurmOptions):
        refuse(f"{name} must be a field of the options that are given" for name in fields)
        pools = {"": options}
    else:
        pools = pools_of(options or {}, fields)
    with pools_client(pools) as client:
        yield client


@contextmanager
def pools_client(pools: Mapping[str, SlurmOptions]) -> Iterator[Client]:
    """Yield a client of a cluster with one or several pools of SLURM jobs.

    Parameters
    ----------
    pools
        The options of each pool by its name, the preferred pool first; one pool has no name.

    Raises
    ------
    ClusterError
        If SLURM refuses the jobs of all pools, with SLURM's message.
    """
    if shutil.which("sbatch") is None:
        raise ClusterError("SLURM must be installed here: there is no command sbatch on the PATH")
    shared = shared_folder(pools)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(SETTINGS))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="dasktune-"))
        stack.enter_context(dask.config.set({"temporary-directory": scratch}))
        refusals = check_accepted(pools, shared)
        if jobs := cancel_leftover(Driver.this()):
            logger.warning("cancelled jobs of a driver that is gone: %s", ", ".join(jobs))
        cluster = _cluster(pools, refusals, shared)
        stack.callback(_remove_keys, cluster)
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster))
        stack.enter_context(cluster.kept())
        yield client


def shared_folder(pools: Mapping[str, SlurmOptions]) -> Path:
    """Return the folder that driver and nodes see, made if need be; all pools have the same."""
    shared = Path(next(iter(pools.values())).shared_directory).expanduser().absolute()
    shared.mkdir(parents=True, exist_ok=True)
    return shared


def job_options(options: SlurmOptions, shared: Path) -> dict[str, Any]:
    """Return the arguments of dask-jobqueue for the jobs."""
    workers = options.processes
    return {
        "queue": options.partition,
        "account": options.account,
        "cores": workers,
        "processes": workers,
        "job_cpu": workers * options.cpus_per_worker,
        "memory": options.memory,
        "walltime": options.walltime,
        "interface": options.interface,
        # exec: the launcher becomes the job's main process, which gets SLURM's signals.
        "python": f"exec {shlex.quote(sys.executable)}",
        "worker_command": _launch(options),
        "death_timeout": 60,
        "job_extra_directives": _directives(options),
        "job_script_prologue": _prologue(options),
        "worker_extra_args": _arguments(options),
        "local_directory": f'"{options.local_directory}"',
        "log_directory": str(shared / "logs"),
        "job_name": options.job_name,
    }


def _launch(options: SlurmOptions) -> str:
    each = math.ceil(options.gpus_per_worker)
    return (
        f"dasktune.slurm.launch --workers {options.processes} "
        f"--gpus-per-worker {each} --sharers {options.sharers}"
        + (" --is-measured" if options.trials_per_gpu > 1 else "")
    )


def _directives(options: SlurmOptions) -> list[str]:
    directives = ["--requeue", "--open-mode=append", f"--comment={Driver.this().comment}"]
    if options.qos is not None:
        directives.append(f"--qos={options.qos}")
    if options.gpus_per_job:
        directives.append(f"--gres=gpu:{options.gpus_per_job}")
    return [*directives, *options.directives]


def _prologue(options: SlurmOptions) -> list[str]:
    leave = options.walltime_seconds - options.margin_seconds
    stagger = int(leave * STAGGER)
    lines = [
        # Torch and NumPy would start a thread for each core of the node.
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{options.cpus_per_worker}}}"',
        *PROLOGUE,
        *([f"export {TAGS}={shlex.quote(','.join(options.tags))}"] if options.tags else []),
        # Relative to the start of the job, which is new after a requeue.
        f"export {LEAVE_AT}=$(( $(date +%s) + {leave - stagger} + RANDOM % {stagger + 1} ))",
    ]
    if (wait := kill_wait()) is not None:
        lines.append(f"export {CLOSE_SECONDS}={max(wait - KILL_MARGIN_SECONDS, wait / 2):g}")
    return [*lines, *options.prologue]


def _arguments(options: SlurmOptions) -> list[str]:
    lifetime = options.walltime_seconds - min(BACKSTOP_SECONDS, options.margin_seconds // 2)
    arguments = ["--memory-limit", "0", "--dashboard-address", "127.0.0.1:0"]
    if options.gpus_per_worker:
        arguments += ["--resources", f"GPU={options.gpus_per_worker:g}"]
    return [*arguments, "--lifetime", f"{lifetime}s"]


def check_accepted(pools: Mapping[str, SlurmOptions], shared: Path) -> dict[str, str]:
    """Ask SLURM whether it accepts the jobs of each pool, before a submission.

    Returns
    -------
    dict of str
        SLURM's messages on the pools that it refuses, by pool; a warning names them.

    Raises
    ------
    ClusterError
        If SLURM does not answer, or refuses all pools; with SLURM's messages.
    """
    refusals = {}
    for name, options in pools.items():
        if refusal := _refusal_of(options, shared):
            refusals[name] = refusal
    texts = [f"{name}: {text}" if name else text for name, text in refusals.items()]
    if len(refusals) == len(pools):
        try:
            job_states()
        except ClusterError as error:
            raise ClusterError(
                f"SLURM does not answer: {error}; run this where jobs are submitted"
            ) from None
        raise ClusterError(f"SLURM refuses such jobs: {'; '.join(texts)}")
    for text in texts:
        logger.warning("SLURM refuses the jobs of a pool, and is asked again: %s", text)
    return refusals


def _refusal_of(options: SlurmOptions, shared: Path) -> str:
    """Return SLURM's message if it refuses such jobs; empty if it accepts them."""
    job = pool_module().WorkerJob("tls://driver:1", name="worker", **job_options(options, shared))
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(job.job_script())
        script.flush()
        done = call("sbatch", "--test-only", script.name)
    return words(done.stderr) if done.returncode else ""


def _cluster(pools: Mapping[str, SlurmOptions], refusals: Mapping[str, str], shared: Path) -> Any:
    scheduler: dict[str, Any] = {"dashboard_address": "127.0.0.1:0"}
    security, protocol = None, "tcp://"
    if next(iter(pools.values())).is_encrypted:
        security, protocol = Security.temporary(), "tls://"
    jobs = {name: job_options(options, shared) for name, options in pools.items()}
    return pool_module().SlurmWorkers(
        pools=[JobPool(name, options, refusals.get(name, "")) for name, options in pools.items()],
        jobs=jobs,
        scheduler_options=scheduler,
        security=security,
        protocol=protocol,
        shared_temp_directory=str(shared),
        silence_logs=logging.CRITICAL,
        **next(iter(jobs.values())),
    )


def _remove_keys(cluster: Any) -> None:
    """Remove the files with the jobs' keys; Dask does so only when it deletes the cluster."""
    for name in ("ca_file", "cert", "key"):
        if (file := getattr(cluster, f"_job_{name}", None)) is not None:
            file.close()


def pool_module() -> Any:
    """Return the module that needs dask-jobqueue, with the signal handlers restored.

    dask-jobqueue replaces the handler of ctrl-C at its import; its handler would end the process
    without saving.
    """
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return import_module("dasktune.slurm.pool")
    except ValueError as error:  # Python sets handlers in the main thread alone
        raise ClusterError(f"dask-jobqueue must be imported in the main thread: {error}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)
