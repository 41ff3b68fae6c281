"""The verdict of a resume check, as it is recorded for all studies of a fingerprint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from dasktune.needs import Needs
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import VerdictRow
from dasktune.storage.verdicts import BY_AUDIT, Verdicts, binding, files_of
from dasktune.trainer.environment import environment
from dasktune.trainer.fingerprint.fingerprint import TakenFingerprint
from dasktune.types import Step

RULE = 2
"""Version of the check. Rule 1 resumed once, and passed what differed without an effect; its
results are notes of single studies."""

NO_VERDICT = 0
"""In place of the version: the check has no result, and knows files that the trainer reads."""


def verdict(
    fingerprint: str,
    device: str,
    *,
    ok: bool,
    text: str,
    splits: Sequence[Step] = (),
    steps: Step = 0,
    by_audit: bool = False,
    files: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> VerdictRow:
    """Return the verdict of a check, or of an audit, that ran in this process's environment.

    Parameters
    ----------
    fingerprint
        Of code, config and data.
    device
        The device of the check, such as ``cuda:0``.
    ok, text, splits, steps, files
        As in `ResumeReport`.
    by_audit
        Whether an audit found it: then no check takes it back, since audits see more.
    clock
        Returns the time in epoch seconds.
    """
    return VerdictRow(
        fingerprint=fingerprint,
        rule=RULE,
        device=_kind(device),
        versions=_versions() | (BY_AUDIT if by_audit else {}),
        ok=ok,
        text=text,
        splits=list(splits),
        steps=steps,
        found=clock(),
        files=dict(files or {}),
    )


def with_known_files(
    verdicts: Verdicts,
    covered: TakenFingerprint,
    files: Mapping[str, str],
    take: Callable[..., TakenFingerprint],
) -> tuple[TakenFingerprint, Mapping[str, str]]:
    """Return the fingerprint of a trainer, and the files that checks of it have seen it read.

    If a verdict has a file with another content than now, the present content is a part of the
    fingerprint. That fingerprint may have a verdict with further files.

    Parameters
    ----------
    covered, files
        The fingerprint, and the files that are known already.
    take
        Returns the fingerprint for ``read_files``; see `taken`.

    Raises
    ------
    StorageError
        If the verdicts cannot be read.
    """
    while not (known := files_of(verdicts.of(covered.fingerprint.digest))).keys() <= files.keys():
        files = {**known, **files}  # the content that the first fingerprint had
        covered = take(read_files=files)
    return covered, files


@contextmanager
def recorded_in(storage: str | os.PathLike[str] | None, database: str | None) -> Iterator[Verdicts]:
    """Yield the verdicts in a store, a database, or both.

    Raises
    ------
    StorageError
        If one of them cannot be opened.
    """
    store = None if storage is None else CheckpointStore(str(storage))
    if store is not None:
        store.check()
    opened = None if database is None else Database(database)
    try:
        yield Verdicts(opened, None if store is None else store.files)
    finally:
        if opened is not None:
            opened.close()


def binding_here(known: Iterable[VerdictRow], device: str) -> VerdictRow | None:
    """Return the verdict that decides for this process's environment and a device, or None."""
    ordered = sorted(known, key=lambda each: each.found)
    return binding(ordered, rule=RULE, device=_kind(device), versions=_versions())


def device_of(needs: Needs) -> str:
    """Return the kind of device on which stages with these needs train.

    Examples
    --------
    >>> device_of(Needs.of({"GPU": 0.5})), device_of(Needs.of({"memory": 2.0}))
    ('cuda', 'cpu')
    """
    return "cuda" if needs.least("GPU") else "cpu"


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _versions() -> dict[str, object]:
    return {name: value for name, value in environment("any").items() if name != "device"}
