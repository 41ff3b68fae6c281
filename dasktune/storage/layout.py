"""Paths of all files in a checkpoint store; no other module makes paths.

::

    dasktune.json                                   name and version of the store
    checkpoints/ab/abcdef.../commit                 the commit, if the checkpoint exists
    checkpoints/ab/abcdef.../<attempt>/step-60/     a zarr v3 array with a state that is not small
    verdicts/<fingerprint>/<environment>            verdict of a resume check
    classes/<fingerprint>                           the numeric class that no state keys name
    drivers/<run>                                   the leases of a driver
    wishes/<run>                                    the save requests of a driver
    probes/<name>/                                  short-lived files of ``dasktune doctor``
    probes/clock                                    written to learn the store's time

All paths are relative to the store and use forward slashes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dasktune.errors import refuse
from dasktune.types import Step

MARKER = "dasktune.json"
"""Marks a folder as a store, with the name and version of the store."""

ROOT = "checkpoints"
"""Folder of all checkpoints."""

SAVE_REQUESTS = "wishes"
"""Folder of the save requests of drivers; the name is older than the term."""

VERDICTS = "verdicts"
"""Folder of the verdicts of resume checks."""

CLASSES = "classes"
"""Folder of the numeric classes that no state keys of a fingerprint name."""

DRIVERS = "drivers"
"""Folder of the leases, one file a driver."""

EARLIER = ("leases", "ended")
"""Folders of leases that earlier versions wrote, and that no driver reads."""

PROBES = "probes"
"""Folder of files written only to test the store."""

CLOCK = f"{PROBES}/clock"
"""A file of which only the time of its last write matters."""

COMMIT = "commit"
"""Name of a checkpoint's commit in the folder of its key."""

MARK = ".removing"
"""Ending of the file that allows one process to remove the file before it."""

_STEP = "step-"

_LONGEST_SLUG = 60
"""Letters; a file's name may have 255 bytes, of which a letter takes up to four."""

_LONGEST_HOLDER = 250
"""Letters in the name of a driver; all are ASCII but those of its host."""

_UNSAFE = re.compile(r"[^\w-]")

_NAME = re.compile(r"[0-9a-z][0-9a-z-]{1,127}")

_LASTING = re.compile(rf"{ROOT}/[0-9a-z][0-9a-z-]")

_STATE = re.compile(rf"{_STEP}([0-9]{{1,18}})")

_UNFINISHED = re.compile(r"\.[0-9a-f]{32}$")
"""Local files are written under such a name, then moved to their own."""

_LEFTOVER = re.compile(rf"{COMMIT}({re.escape(MARK)})?(\.[0-9a-f]{{32}})?")


def slug(name: str) -> str:
    """Return a file name made from a name that a user gave.

    Different names may give the same file name, so it does not identify anything.

    Examples
    --------
    >>> slug("../my study: 2")
    '---my-study--2'
    """
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
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
    """Return the folder of the data that one attempt wrote for a key."""
    refuse(problems_of(attempt=attempt))
    return f"{key_folder(key)}/{attempt}"


def state_folder(key: str, attempt: str, step: Step) -> str:
    """Return the folder of the zarr array with the state; its name shows the step in listings."""
    return f"{attempt_folder(key, attempt)}/{_STEP}{step}"


def commit_path(key: str) -> str:
    """Return the path of the commit: a checkpoint exists if its commit does."""
    return f"{key_folder(key)}/{COMMIT}"


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """Key, attempt and step that the path of a checkpoint's file names; a commit has a key only.

    A leftover is a temporary file beside the commit, which its process removes unless it dies.
    """

    key: str
    attempt: str = ""
    step: Step = -1
    is_leftover: bool = False


def parse_path(path: str) -> CheckpointFile | None:
    """Return the parts of a path, or None for a foreign file.

    Examples
    --------
    >>> parse_path(commit_path("abc1"))
    CheckpointFile(key='abc1', attempt='', step=-1, is_leftover=False)
    >>> parse_path(state_folder("abc1", "0-77", 60) + "/c.0")
    CheckpointFile(key='abc1', attempt='0-77', step=60, is_leftover=False)
    """
    match path.split("/"):
        case [root, above, key, name] if root == ROOT and name == COMMIT:
            return CheckpointFile(key) if _is_filed(key, above) else None
        case [root, above, key, name] if root == ROOT and _LEFTOVER.fullmatch(name):
            return CheckpointFile(key, is_leftover=True) if _is_filed(key, above) else None
        case [root, above, key, attempt, folder, _] if root == ROOT:
            match = _STATE.fullmatch(folder)
            if match is None or not _is_filed(key, above) or not _NAME.fullmatch(attempt):
                return None
            return CheckpointFile(key, attempt, int(match[1]))
        case _:
            return None


def lasts(folder: str) -> bool:
    """Return whether nobody removes a folder, also when it is empty.

    Examples
    --------
    >>> lasts("checkpoints/ab"), lasts("checkpoints/ab/abcd"), lasts("checkpoints/check-0a")
    (True, False, False)
    """
    return _LASTING.fullmatch(folder) is not None


def _is_filed(key: str, folder: str) -> bool:
    return key[:2] == folder and _NAME.fullmatch(key) is not None


def verdict_folder(fingerprint: str) -> str:
    """Return the folder of the verdicts on trainers of a fingerprint."""
    refuse(problems_of(fingerprint=fingerprint))
    return f"{VERDICTS}/{fingerprint}"


def verdict_path(fingerprint: str, environment: str) -> str:
    """Return the path of the verdict that was found in an environment."""
    refuse(problems_of(environment=environment))
    return f"{verdict_folder(fingerprint)}/{environment}"


def class_path(fingerprint: str) -> str:
    """Return the path of the numeric class that no state keys of a fingerprint name."""
    refuse(problems_of(fingerprint=fingerprint))
    return f"{CLASSES}/{fingerprint}"


def driver_path(holder: str) -> str:
    """Return the path of the leases of a driver.

    A name that would lead elsewhere leads to a file that no driver writes.
    """
    return f"{DRIVERS}/{_holder(holder)}"


def save_request_path(holder: str) -> str:
    """Return the path of the save requests of a driver; see `driver_path`."""
    return f"{SAVE_REQUESTS}/{_holder(holder)}"


def _holder(holder: str) -> str:
    return _UNSAFE.sub(".", holder)[:_LONGEST_HOLDER]


def is_unfinished(path: str) -> bool:
    """Whether a path is that of a file which a process of this host still writes.

    Examples
    --------
    >>> is_unfinished(f"drivers/9f3b-4711-node7.{'0a' * 16}"), is_unfinished("drivers/node7.lab")
    (True, False)
    """
    return _UNFINISHED.search(path) is not None


def probe_folder(name: str) -> str:
    """Return the folder of one test of the store; the test removes it."""
    refuse(problems_of(name=name))
    return f"{PROBES}/{name}"


def problems_of(**names: object) -> list[str]:
    """Return the problems of names that become parts of a path, one sentence each.

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
