"""The tables of ``dasktune.toml``, beside a study file; flags come before them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dasktune.errors import ConfigurationError, refuse, unknown

FILE = "dasktune.toml"

TABLES = ("run", "slurm")
"""All that the file may have; ``[run]`` holds flags of the command, by their names."""


def table_of(folder: Path, name: str) -> dict[str, Any]:
    """Return a table of a folder's ``dasktune.toml``; empty if there is none.

    Its keys have underscores; in the file they may have dashes, as flags do.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or has something else at its top level.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} must be a TOML file: {error}") from error
    refuse(f"{path}: {unknown('table', one, TABLES)}" for one in document if one not in TABLES)
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: {name} must be a table, got {table!r}")
    return {key.replace("-", "_"): value for key, value in table.items()}
