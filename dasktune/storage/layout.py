"""Where things lie in a checkpoint store; no other module makes paths.

::

    checkpoints/ab/abcdef.../commit               the commit, if the checkpoint exists
    checkpoints/ab/abcdef.../<attempt>/state/     a zarr v3 array with the state

All paths are relative to the store and use forward slashes.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dasktune.errors import refuse

ROOT = "checkpoints"
"""Folder of all checkpoints."""

COMMIT = "commit"
"""Name of a checkpoint's commit in the folder of its key."""

_LONGEST_SLUG = 60
"""Letters; a file's name may have 255 bytes, of which a letter takes up to four."""

_NAME = re.compile(r"[0-9a-z][0-9a-z-]{1,127}")


def slug(name: str) -> str:
    """Return the name of a file or folder for something that people named.

    Different names may give the same: it says whose a file is, and tells nothing apart.

    Examples
    --------
    >>> slug("../my study: 2")
    '---my-study--2'
    """
    safe = "".join(one if one.isalnum() or one in "-_" else "-" for one in name)
    return safe[:_LONGEST_SLUG]


def key_folder(key: str) -> str:
    """Return the folder of one key.

    Raises
    ------
    ConfigurationError
        If the key is not 2 to 128 digits, lower-case letters and dashes.

    Examples
    --------
    >>> key_folder("abc1")
    'checkpoints/ab/abc1'
    """
    refuse(problems_of(key=key))
    return f"{ROOT}/{key[:2]}/{key}"


def attempt_folder(key: str, attempt: str) -> str:
    """Return the folder of what one attempt wrote for a key."""
    refuse(problems_of(attempt=attempt))
    return f"{key_folder(key)}/{attempt}"


def state_folder(key: str, attempt: str) -> str:
    """Return the folder of the zarr array with the state."""
    return f"{attempt_folder(key, attempt)}/state"


def commit_path(key: str) -> str:
    """Return the path of the commit, the one object that makes a checkpoint exist."""
    return f"{key_folder(key)}/{COMMIT}"


def key_of(path: str) -> str:
    """Return the key that a commit's path belongs to.

    Examples
    --------
    >>> key_of(commit_path("abc1"))
    'abc1'
    """
    return PurePosixPath(path).parent.name


def problems_of(**names: object) -> list[str]:
    """Return what is wrong with names that are to be parts of a path.

    Examples
    --------
    >>> problems_of(key="../etc")
    ["key must be 2 to 128 digits, lower-case letters and dashes, got '../etc'"]
    """
    return [
        f"{what} must be 2 to 128 digits, lower-case letters and dashes, got {name!r:.150}"
        for what, name in names.items()
        if not isinstance(name, str) or not _NAME.fullmatch(name)
    ]
