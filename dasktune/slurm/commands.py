"""The commands of SLURM, and what they say."""

from __future__ import annotations

import os
import re
import subprocess

from dasktune.errors import ClusterError

COMMAND_SECONDS = 60.0
"""How long a command of SLURM may take."""


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of SLURM.

    Raises
    ------
    ClusterError
        If it cannot be started, or does not end.
    """
    try:
        # In a session of its own: ctrl-C in the terminal is not meant for it.
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"SLURM cannot be asked: {error}") from error


def words(text: str) -> str:
    """Return what a command of SLURM said, on one line and without its own name."""
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    return "; ".join(lines) or "it does not say why"


def job_states() -> dict[str, str]:
    """Return the state of each job of this user that has not ended, with its reason, by id.

    Raises
    ------
    ClusterError
        If SLURM does not answer.
    """
    return {job: state.removesuffix(" (None)") for job, state in _squeue("%T (%r)").items()}


def job_comments() -> dict[str, str]:
    """Return the comment of each job of this user that has not ended, by id.

    Raises
    ------
    ClusterError
        If SLURM does not answer.
    """
    return _squeue("%k")


def kill_wait() -> float | None:
    """Return how long after SIGTERM SLURM ends a job by force, in seconds; None if unknown."""
    try:
        told = call("scontrol", "show", "config").stdout
    except ClusterError:
        return None
    found = re.search(r"^KillWait\s*=\s*(\d+) sec", told, re.MULTILINE)
    return None if found is None else float(found[1])


def _squeue(what: str) -> dict[str, str]:
    done = call("squeue", "-h", "-u", str(os.getuid()), "-o", f"%i {what}")
    if done.returncode:
        raise ClusterError(f"squeue: {words(done.stderr)}")
    found = (line.partition(" ") for line in done.stdout.splitlines())
    return {job: told.strip() for job, _, told in found}
