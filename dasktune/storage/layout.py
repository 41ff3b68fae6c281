"""Where things lie in a checkpoint store; no other module makes paths.

::

    dasktune.json                                   what store this is
    checkpoints/ab/abcdef.../commit                 the commit, if the checkpoint exists
    checkpoints/ab/abcdef.../<attempt>/step-60/     a zarr v3 array with the state
    leases/<root>/<key>                             who trains the step that makes this key
    wishes/<root>/<run>-0                           what a driver will want of these states
    probes/<name>/                                  what ``dasktune doctor`` tries, for a moment

All paths are relative to the store and use forward slashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dasktune.errors import refuse
from dasktune.types import Step

MARKER = "dasktune.json"
"""Says that a folder is a store, which one, and of what version."""

ROOT = "checkpoints"
"""Folder of all checkpoints."""

LEASES = "leases"
"""Folder of all leases."""

SAVE_REQUESTS = "wishes"
"""Folder of what drivers tell each other that they will want."""

PROBES = "probes"
"""Folder of what is written to see whether it can be."""

COMMIT = "commit"
"""Name of a checkpoint's commit in the folder of its key."""

_STEP = "step-"

_LONGEST_SLUG = 60
"""Letters; a file's name may have 255 bytes, of which a letter takes up to four."""

_NAME = re.compile(r"[0-9a-z][0-9a-z-]{1,127}")

_STATE = re.compile(rf"{_STEP}([0-9]{{1,18}})")


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


def state_folder(key: str, attempt: str, step: Step) -> str:
    """Return the folder of the zarr array with the state; it tells a listing the step."""
    return f"{attempt_folder(key, attempt)}/{_STEP}{step}"


def commit_path(key: str) -> str:
    """Return the path of the commit, the one object that makes a checkpoint exist."""
    return f"{key_folder(key)}/{COMMIT}"


@dataclass(frozen=True, slots=True)
class Place:
    """What a path of a checkpoint's file says; of a commit it says no attempt and no step."""

    key: str
    attempt: str = ""
    step: Step = -1


def place_of(path: str) -> Place | None:
    """Return what a path says; None if it is not one of a checkpoint.

    Anyone may have put a file there: what has no name of ours is nothing of ours.

    Examples
    --------
    >>> place_of(commit_path("abc1"))
    Place(key='abc1', attempt='', step=-1)
    >>> place_of(state_folder("abc1", "0-77", 60) + "/c.0")
    Place(key='abc1', attempt='0-77', step=60)
    """
    match path.split("/"):
        case [root, above, key, name] if root == ROOT and name == COMMIT:
            return Place(key) if _is_filed(key, above) else None
        case [root, above, key, attempt, folder, _] if root == ROOT:
            found = _STATE.fullmatch(folder)
            if found is None or not _is_filed(key, above) or not _NAME.fullmatch(attempt):
                return None
            return Place(key, attempt, int(found[1]))
        case _:
            return None


def _is_filed(key: str, folder: str) -> bool:
    """Say whether a key is one, and in the folder where it belongs."""
    return key[:2] == folder and _NAME.fullmatch(key) is not None


def lease_path(root: str, key: str) -> str:
    """Return the path of the lease on the step that makes a key."""
    refuse(problems_of(key=key))
    return f"{lease_folder(root)}/{key}"


def lease_folder(root: str) -> str:
    """Return the folder of the leases on states below a root."""
    refuse(problems_of(root=root))
    return f"{LEASES}/{root}"


def save_request_folder(root: str) -> str:
    """Return the folder of what drivers want of states below a root."""
    refuse(problems_of(root=root))
    return f"{SAVE_REQUESTS}/{root}"


def probe_folder(name: str) -> str:
    """Return the folder of one trial of the store, which is removed again."""
    refuse(problems_of(name=name))
    return f"{PROBES}/{name}"


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
