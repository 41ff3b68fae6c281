"""The tables of ``dasktune.toml`` beside a study file; flags win over them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dasktune.errors import ConfigurationError, refuse, unknown

FILE = "dasktune.toml"

MOST_NBYTES = 2**20

TABLES = ("run", "slurm")
"""The tables of the file; ``[run]`` holds flags of the command `run` by name."""


def table_of(folder: Path, name: str) -> dict[str, Any]:
    """Return a table of a folder's ``dasktune.toml``; empty if there is none.

    Its keys have underscores; in the file they may have dashes, as flags do. The names of inner
    tables are as they are in the file.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, or has an unknown table.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    if not path.is_file():
        raise ConfigurationError(f"{path} must be a TOML file, got no regular file")
    if (nbytes := path.stat().st_size) > MOST_NBYTES:
        raise ConfigurationError(
            f"{path} must be a TOML file of at most {MOST_NBYTES:,} bytes, got {nbytes:,}"
        )
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} must be a TOML file: {error}") from error
    refuse(f"{path}: {unknown('table', key, TABLES)}" for key in document if key not in TABLES)
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: {name} must be a table, got {table!r}")
    return {
        key if isinstance(value, dict) else key.replace("-", "_"): value
        for key, value in table.items()
    }
