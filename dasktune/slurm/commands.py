"""Calls of SLURM's commands, and their output."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

from dasktune._engine.timeouts import SLURM_COMMAND_SECONDS
from dasktune.errors import ClusterError

NO_REASON: Final = "it does not say why"


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of SLURM.

    Raises
    ------
    ClusterError
        If it cannot be started, or does not end.
    """
    try:
        # A new session, so that ctrl-C in the terminal does not end the command.
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SLURM_COMMAND_SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"SLURM cannot be asked: {error}") from error


def words(text: str) -> str:
    """Return the output of a command of SLURM on one line, without the command's name."""
    lines = [line.partition("error: ")[2] or line for line in text.splitlines() if line.strip()]
    return "; ".join(lines) or NO_REASON


def job_states() -> dict[str, str]:
    """Return the state and reason of each job of this user that has not ended, by id.

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
    """Return the seconds from SIGTERM until SLURM kills a job; None if unknown."""
    try:
        config = call("scontrol", "show", "config").stdout
    except ClusterError:
        return None
    line = re.search(r"^KillWait\s*=\s*(\d+) sec", config, re.MULTILINE)
    return None if line is None else float(line[1])


def _squeue(what: str) -> dict[str, str]:
    done = call("squeue", "-h", "-u", str(os.getuid()), "-o", f"%i {what}")
    if done.returncode:
        *_, reason = [line for line in done.stderr.splitlines() if line.strip()] or [NO_REASON]
        raise ClusterError(f"squeue: {reason.removeprefix('squeue: ').removeprefix('error: ')}")
    rows = (line.partition(" ") for line in done.stdout.splitlines())
    return {job: value.strip() for job, _, value in rows}
