"""The commands of SLURM, and what they say."""

from __future__ import annotations

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
