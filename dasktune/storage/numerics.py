"""The numeric class that no state keys name, for each fingerprint of a store.

States of one numeric class must not serve trials of another. The class of the first run of a
fingerprint in a store has keys without a class; the keys of all others name their class. All
drivers that share a store must agree on the first class: a file has its name. A driver creates
this file only if it is absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dasktune.errors import StorageError
from dasktune.storage import layout
from dasktune.storage.files.base import Files, Unreadable
from dasktune.storage.files.failures import reason_of
from dasktune.storage.redaction import showable

_FORMAT, _VERSION = "dasktune-class", 2

_UNSURE = 1
"""The version whose files name an architecture also if other processors trained as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedClass:
    """The numeric class that no state keys of a fingerprint name.

    Parameters
    ----------
    is_sure
        Whether all states without a class in their keys were made on this class. If not, a class
        that is named by an architecture of processors may mean all processors.
    """

    name: str
    is_sure: bool = True


UNREADABLE = RecordedClass(name="")
"""The class in a file of another program. It is none, so that keys name every class."""


def recorded_class(files: Files, fingerprint: str) -> RecordedClass | None:
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
    if isinstance(content, Unreadable):
        return UNREADABLE
    return None if content is None else _from_bytes(content.tobytes())


def record_class(files: Files, fingerprint: str, name: str) -> RecordedClass:
    """Record a numeric class if none is recorded; return the recorded one.

    Raises
    ------
    StorageError
        If the store cannot be read or written.
    """
    document = {"format": _FORMAT, "version": _VERSION, "class": name}
    try:
        if files.create(layout.class_path(fingerprint), json.dumps(document).encode()):
            return RecordedClass(name=name)
    except OSError as error:
        raise StorageError(f"cannot write numeric classes: {reason_of(error)}") from showable(error)
    recorded = recorded_class(files, fingerprint)
    return UNREADABLE if recorded is None else recorded


def _from_bytes(content: bytes) -> RecordedClass:
    try:
        document = json.loads(content)
        form, version, name = (document[key] for key in ("format", "version", "class"))
    except (LookupError, RecursionError, TypeError, ValueError):
        return UNREADABLE
    if form != _FORMAT or version not in (_UNSURE, _VERSION) or not isinstance(name, str):
        return UNREADABLE
    return RecordedClass(name=name, is_sure=version == _VERSION)
