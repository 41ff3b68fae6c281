"""The numeric class that no state keys name, for each fingerprint of a store.

States of one numeric class must not serve trials of another. The class of the first run of a
fingerprint in a store has keys without a class; the keys of all others name their class. All
drivers that share a store must agree on the first class: a file has its name. A driver creates
this file only if it is absent.
"""

from __future__ import annotations

import json

from dasktune.errors import StorageError
from dasktune.storage import layout
from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.redaction import showable

_FORMAT, _VERSION = "dasktune-class", 1

UNREADABLE = ""
"""The class in a file of another program. It is none, so that keys name every class."""


def recorded_class(files: Files, fingerprint: str) -> str | None:
    """Return the numeric class that no state keys of a fingerprint name; None without a record.

    Raises
    ------
    StorageError
        If the store cannot be read.
    """
    folder, _, name = layout.class_path(fingerprint).rpartition("/")
    try:
        [content] = files.read(folder, [name])
    except OSError as error:
        raise StorageError(f"cannot read numeric classes: {reason_of(error)}") from showable(error)
    return None if content is None else _from_bytes(content.tobytes())


def record_class(files: Files, fingerprint: str, name: str) -> str:
    """Record a numeric class if none is recorded; return the recorded one.

    Raises
    ------
    StorageError
        If the store cannot be read or written.
    """
    document = {"format": _FORMAT, "version": _VERSION, "class": name}
    try:
        if files.create(layout.class_path(fingerprint), json.dumps(document).encode()):
            return name
    except OSError as error:
        raise StorageError(f"cannot write numeric classes: {reason_of(error)}") from showable(error)
    recorded = recorded_class(files, fingerprint)
    return UNREADABLE if recorded is None else recorded


def _from_bytes(content: bytes) -> str:
    try:
        document = json.loads(content)
        is_known = (document["format"], document["version"]) == (_FORMAT, _VERSION)
        name = document["class"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return UNREADABLE
    return name if is_known and isinstance(name, str) else UNREADABLE
