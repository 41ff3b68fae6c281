"""The options of SLURM from ``dasktune.toml`` beside a study file; flags come before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dasktune.config_file import FILE, table_of
from dasktune.errors import refuse, unknown
from dasktune.slurm.options import SlurmOptions

TABLE = "slurm"
DRIVER = "driver"
"""The table within for the driver's own job; see `dasktune.slurm.submit`."""


def options_for(folder: Path, flags: Mapping[str, object]) -> SlurmOptions:
    """Return the options of SLURM for a study file of a folder.

    Parameters
    ----------
    folder
        Where ``dasktune.toml`` is looked for; its table ``[slurm]`` has the fields of
        `SlurmOptions`.
    flags
        Values that come before the file's; those that are None do not count.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or the options cannot be: all problems at once.
    """
    given = {**slurm_table(folder), **{k: v for k, v in flags.items() if v is not None}}
    given.pop(DRIVER, None)
    known = [one.name for one in fields(SlurmOptions)]
    refuse(
        f"{FILE}: [{TABLE}]: {unknown('option', name, known)}"
        for name in given
        if name not in known
    )
    for name in ("directives", "prologue"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    return SlurmOptions(**given)


def slurm_table(folder: Path) -> dict[str, Any]:
    """Return the table ``[slurm]`` of a folder's ``dasktune.toml``; empty if there is none.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    """
    return table_of(folder, TABLE)
