"""Verdicts of resume checks: whether trainers of a fingerprint resume exactly.

A verdict belongs to the fingerprint, not to a study. It is kept in the database and in the store:
every study finds it there, also that of a user with another database or another store.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from dasktune.errors import StorageError
from dasktune.storage import layout
from dasktune.storage.database.rows import VerdictRow
from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.redaction import showable

if TYPE_CHECKING:
    from dasktune.storage.database.database import Database

_FORMAT, _VERSION = "dasktune-verdict", 1

BY_AUDIT = {"found_by": "audit"}
"""Part of the versions of a verdict that an audit found: a check of the same versions does not
replace it."""

SEVERAL = "several"
"""In place of the digest of a file that was read with several contents: it equals none."""


class Verdicts:
    """The verdicts in a database and a store.

    Parameters
    ----------
    database, files
        Where they are kept; None to leave one out.
    """

    def __init__(self, database: Database | None, files: Files | None) -> None:
        self._database, self._files = database, files

    def record(self, verdict: VerdictRow) -> None:
        """Record a verdict; it replaces the one of the same environment, but keeps its files.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        known = [each for each in self.of(verdict.fingerprint) if _name(each) == _name(verdict)]
        kept = replace(verdict, files=files_of([*known, verdict]))
        if self._database is not None:
            self._database.add_verdict(kept)
        self._write(kept)

    def of(self, fingerprint: str) -> list[VerdictRow]:
        """Return the verdicts on a fingerprint, oldest first, the last one of each environment.

        Raises
        ------
        StorageError
            If they cannot be read.
        """
        return _newest([*self._recorded(fingerprint), *self._stored(fingerprint)])

    def shared(self, fingerprint: str) -> list[VerdictRow]:
        """Return the same as `of`; whichever place lacks one of them gets it.

        Raises
        ------
        StorageError
            If they cannot be read or written.
        """
        recorded, stored = self._recorded(fingerprint), self._stored(fingerprint)
        verdicts = _newest([*recorded, *stored])
        for verdict in verdicts:
            if self._database is not None and verdict not in recorded:
                self._database.add_verdict(verdict)
            if verdict not in stored:
                self._write(verdict)
        return verdicts

    def _recorded(self, fingerprint: str) -> list[VerdictRow]:
        return [] if self._database is None else self._database.verdicts(fingerprint)

    def _write(self, verdict: VerdictRow) -> None:
        if self._files is None:
            return
        try:
            path = layout.verdict_path(verdict.fingerprint, _name(verdict))
            self._files.replace(path, to_bytes(verdict), durable=True)
        except OSError as error:
            raise StorageError(f"cannot record a verdict: {reason_of(error)}") from showable(error)

    def _stored(self, fingerprint: str) -> list[VerdictRow]:
        if self._files is None:
            return []
        folder = layout.verdict_folder(fingerprint)
        try:
            names = [entry.path for entry in self._files.entries(folder)]
            contents = self._files.read("", names)
        except OSError as error:
            raise StorageError(f"cannot read the verdicts: {reason_of(error)}") from showable(error)
        readable = [each for each in contents if isinstance(each, np.ndarray)]
        verdicts = [from_bytes(each.tobytes()) for each in readable]
        return [each for each in verdicts if each is not None and each.fingerprint == fingerprint]


def binding(
    verdicts: Iterable[VerdictRow], *, rule: int, device: str, versions: Mapping[str, object]
) -> VerdictRow | None:
    """Return the verdict that decides for an environment, or None.

    That is the failure that an audit found in this environment, whatever checks found since: they
    train fewer steps. Else it is the last one of this environment. Without one, a trainer that
    failed elsewhere fails here, too, until a check here says otherwise; one that passed elsewhere
    is unchecked here.

    Parameters
    ----------
    verdicts
        On one fingerprint, oldest first.
    rule
        Version of the check; verdicts by an older one do not count.
    device, versions
        Kind of device, and versions of Python and the libraries.
    """
    last: dict[str, VerdictRow] = {}
    for verdict in verdicts:
        if verdict.rule >= rule:
            last[_environment(verdict.device, verdict.versions)] = verdict
    audited = last.get(_environment(device, {**versions, **BY_AUDIT}))
    here = last.get(_environment(device, versions)) if audited is None else audited
    failed = [verdict for verdict in last.values() if not verdict.ok]
    return here if here is not None else next(reversed(failed), None)


def files_of(verdicts: Iterable[VerdictRow]) -> dict[str, str]:
    """Return the files of verdicts on one fingerprint: the digests of their contents by path.

    Examples
    --------
    >>> row = VerdictRow(
    ...     fingerprint="f", rule=2, device="cpu", versions={}, ok=True, text="", splits=[],
    ...     steps=0, found=0.0, files={"net.yaml": "a", "data.json": "b"},
    ... )
    >>> files_of([row, replace(row, files={"net.yaml": "c"})])
    {'net.yaml': 'several', 'data.json': 'b'}
    """
    files: dict[str, str] = {}
    for verdict in verdicts:
        for path, digest in verdict.files.items():
            files[path] = digest if files.get(path, digest) == digest else SEVERAL
    return files


def to_bytes(verdict: VerdictRow) -> bytes:
    """Return a verdict as the content of a file."""
    values = {name: value for name, value in asdict(verdict).items() if value or name != "files"}
    document = {"format": _FORMAT, "version": _VERSION, "verdict": values}
    return json.dumps(document, allow_nan=False).encode()


def from_bytes(content: bytes) -> VerdictRow | None:
    """Return the verdict in a file, or None for invalid content."""
    try:
        text = json.loads(content)
        if (text["format"], text["version"]) != (_FORMAT, _VERSION):
            return None
        verdict = VerdictRow(**text["verdict"])
        strings = [verdict.fingerprint, verdict.device, verdict.text]
        is_whole = (
            all(type(string) is str for string in strings)
            and all(type(number) is int and number >= 0 for number in [verdict.rule, verdict.steps])
            and all(type(split) is int for split in verdict.splits)
            and type(verdict.splits) is list
            and isinstance(verdict.versions, dict)
            and isinstance(verdict.files, dict)
            and all(type(digest) is str for digest in verdict.files.values())
            and type(verdict.ok) is bool
            and type(verdict.found) in (int, float)
            and math.isfinite(verdict.found)
        )
    except (LookupError, RecursionError, TypeError, ValueError):
        return None
    return verdict if is_whole else None


def _newest(verdicts: Iterable[VerdictRow]) -> list[VerdictRow]:
    """Return the last verdict of each rule and environment, with all files, oldest first."""
    ordered: dict[str, list[VerdictRow]] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.found):
        ordered.setdefault(_name(verdict), []).append(verdict)
    newest = [replace(each[-1], files=files_of(each)) for each in ordered.values()]
    return sorted(newest, key=lambda verdict: verdict.found)


def _environment(device: str, versions: Mapping[str, object]) -> str:
    return json.dumps([device, dict(versions)], sort_keys=True)


def _name(verdict: VerdictRow) -> str:
    """Return the file's name: a verdict of the same rule and environment replaces this one."""
    text = f"{verdict.rule} {_environment(verdict.device, verdict.versions)}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
