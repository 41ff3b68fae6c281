"""The checkpoint store: one state per key, found by the key on any machine.

Several attempts may save the same key at the same time: after a partition two workers train
the same stage. Each writes the data under its own name; then it tries to create the commit,
and the first one to do so has made *the* checkpoint. Without its commit a checkpoint does
not exist, with it the checkpoint never changes. Object stores have no rename and need none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np

from dasktune.errors import CorruptCheckpointError, StorageError
from dasktune.storage import layout
from dasktune.storage.codec import VERSION, Snapshot, decode
from dasktune.storage.files.base import Files
from dasktune.storage.files.failures import reason_of
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience
from dasktune.storage.metrics import metrics_from_json, metrics_to_json
from dasktune.storage.redaction import showable
from dasktune.storage.tensors import DIGEST_BYTES, digest_of
from dasktune.storage.zarr_array import ArrayFiles, read_array
from dasktune.types import Metrics, Step

_ATTRIBUTES = b'{"dasktune": ', b"}"
"""What stands before and after a state's document in the attributes of its array."""

_STORE, _STORE_VERSION = "dasktune-store", 1
_FORMAT, _VERSION = "dasktune-commit", 2

_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}")

_TOO_LARGE = 2**63
"""Numbers of databases end below."""

_CHECK = Patience(seconds=10.0, request=10.0)
"""Whoever opens a store wants to know soon that it cannot be reached."""


class NewerFormatError(StorageError):
    """A checkpoint was made by a later version of dasktune; it is neither read nor removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What is known about a checkpoint without reading its state.

    Parameters
    ----------
    key
        The key of the state.
    attempt
        Who trained and wrote it: a name that no one else uses.
    step
        How many steps were trained.
    digest
        The digest of the state (`dasktune.storage.codec.Snapshot.digest`).
    nbytes
        Bytes of the state's tensors.
    parent
        The digest of the state that training went on from; None at step 0.
    reports
        The metrics that this attempt measured since the parent, by step.
    environment
        What the state was trained with, such as versions and the device; JSON.
    seconds
        Training time since the parent.
    """

    key: str
    attempt: str
    step: Step
    digest: str
    nbytes: int
    parent: str | None = None
    reports: tuple[tuple[Step, Metrics], ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the commit as strict JSON."""
        return {
            "key": self.key,
            "attempt": self.attempt,
            "step": self.step,
            "digest": self.digest,
            "nbytes": self.nbytes,
            "parent": self.parent,
            "reports": [[step, metrics_to_json(metrics)] for step, metrics in self.reports],
            "environment": dict(self.environment),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Commit:
        """Return the commit that `to_json` wrote.

        Raises
        ------
        CorruptCheckpointError
            If it did not write this.
        """
        try:
            reports = tuple(
                (step, metrics_from_json(metrics)) for step, metrics in document["reports"]
            )
            commit = cls(**{**document, "reports": reports})
            problems = list(_problems_of(commit))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(f"commit cannot be read: {error!r}") from error
        if problems:
            raise CorruptCheckpointError(f"commit cannot be read: {'; '.join(problems)}")
        return commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a listing shows of one key.

    Parameters
    ----------
    key
        The key.
    step
        Step of the state; -1 if nothing but a commit is there.
    is_committed
        Whether there is a commit: without one it is no checkpoint.
    attempts
        Bytes and time of the last file (epoch seconds) by attempt: of several, the commit
        says which one counts.
    """

    key: str
    step: Step
    is_committed: bool
    attempts: Mapping[str, tuple[int, float]]

    @property
    def nbytes(self) -> int:
        """Bytes of all attempts together."""
        return sum(nbytes for nbytes, _ in self.attempts.values())


class CheckpointStore:
    """Checkpoints by key at one URL; safe to use from several threads and processes.

    Parameters
    ----------
    url
        A path, ``file://``, ``memory://`` (this process only), or any protocol of fsspec
        that can create an object only if it is absent, such as ``s3://``.

    Examples
    --------
    >>> from dasktune.storage.codec import encode
    >>> store = CheckpointStore("memory://example")
    >>> commit = store.save(encode({"weight": 1.5}), key="a1f0", attempt="1-7c", step=10)
    >>> store.load("a1f0")[0]
    {'weight': 1.5}
    """

    def __init__(self, url: str, patience: Patience | None = None) -> None:
        self.url = url
        self._files = open_files(url) if patience is None else open_files(url, patience=patience)

    @property
    def files(self) -> Files:
        """The files of the store, for what lies beside the checkpoints."""
        return self._files

    def check(self) -> str:
        """Write and remove files, the way checkpoints are written; return the store's name.

        A store without a name gets one: 32 digits at random, so that a study finds out when
        it is opened with another one.

        Raises
        ------
        StorageError
            If that fails, or a later version of dasktune made the store.
        """
        name = uuid4().hex
        probe = f"{layout.ROOT}/check-{name}"
        marker = json.dumps({"format": _STORE, "version": _STORE_VERSION, "name": name})
        files = open_files(self.url, patience=_CHECK)
        with self._failing("write to"):
            files.write(probe, {"file": [np.zeros(1, np.uint8)]})
            created = [files.create(f"{probe}/once", content) for content in (b"1", b"2")]
            files.remove(probe)
            if created != [True, False]:
                raise OSError("it does not refuse to create a file that exists")
            if files.create(layout.MARKER, marker.encode()):
                return str(name)
        return self.name()

    def name(self) -> str:
        """Return the store's name; nothing is written.

        Raises
        ------
        StorageError
            If it cannot be read, there is no store, or a later version of dasktune made it.
        """
        with self._failing("read from"):
            content = self._files.read("", [layout.MARKER])[0]
        if content is None:
            raise StorageError(f"there is no store at {self.url}: it has no {layout.MARKER}")
        return _name_in(self.url, content.tobytes())

    def save(
        self,
        snapshot: Snapshot,
        *,
        key: str,
        attempt: str,
        step: Step,
        parent: str | None = None,
        reports: Sequence[tuple[Step, Metrics]] = (),
        environment: Mapping[str, Any] | None = None,
        seconds: float = 0.0,
    ) -> Commit:
        """Store a state durably and return the commit that stands for its key.

        That commit may be another attempt's, which came first: what this one wrote is
        removed then, and the caller must go on from the other's state.

        Raises
        ------
        StorageError
            If the store cannot be written.
        """
        folder = layout.state_folder(key, attempt, step)
        before, after = _ATTRIBUTES
        data = ArrayFiles(snapshot.data, lambda: before + snapshot.text + after)
        with self._failing("write to"):
            self._files.write(folder, data)
        commit = Commit(
            key=key,
            attempt=attempt,
            step=step,
            digest=snapshot.digest,
            nbytes=snapshot.nbytes,
            parent=parent,
            reports=tuple(reports),
            environment=environment or {},
            seconds=seconds,
        )
        content = _commit_bytes(commit)
        with self._failing("write to"):
            while not self._files.create(layout.commit_path(key), content):
                winner = self._winner(key)
                if winner is not None:
                    return self._lost(commit, winner)
        return commit

    def _winner(self, key: str) -> Commit | None:
        """Return the commit that came first; one that cannot be read stands for nothing."""
        try:
            return self.commit_of(key)
        except CorruptCheckpointError:
            self.discard(key, attempt="")
            return None

    def commit_of(self, key: str) -> Commit | None:
        """Return the commit of a key; None if there is no such checkpoint.

        Raises
        ------
        CorruptCheckpointError
            If there is one, and it cannot be read.
        NewerFormatError
            If a later version of dasktune made it.
        """
        content = self._commit_content(key)
        return None if content is None else _commit_of(key, content)

    def load(self, key: str) -> tuple[Any, Commit]:
        """Return the state of a key and its commit; sizes, checksums and digest are checked.

        Raises
        ------
        CorruptCheckpointError
            If there is no such checkpoint, or it is not what was saved.
        NewerFormatError
            If a later version of dasktune made it.
        """
        commit = self.commit_of(key)
        with _blaming(key, "" if commit is None else commit.attempt):
            if commit is None:
                raise CorruptCheckpointError("there is no commit")
            folder = layout.state_folder(key, commit.attempt, commit.step)
            with self._failing("read from"):
                data, attributes = read_array(
                    lambda names: self._files.read(folder, names), commit.nbytes
                )
            state = decode(_document_in(attributes, commit.digest), data, copy=False)
            data.check()  # what no tensor covers: any zarr can read what is read here
            return state, commit

    def discard(self, key: str, *, attempt: str | None = None) -> bool:
        """Remove a checkpoint, the commit first, so that no one finds half of it; say if it was.

        What other attempts have written for the same key stays, and so does their commit
        if one of them has come first meanwhile. Of a commit that cannot be read it is not
        known whose data it stood for: they stay, too.

        Parameters
        ----------
        key
            The key.
        attempt
            Remove it only if it is of this attempt, or its commit cannot be read; if this is
            empty, only the latter.

        Raises
        ------
        NewerFormatError
            If a later version of dasktune made it: it is not ours to judge.
        """
        content = self._commit_content(key)
        if content is None:
            return False
        try:
            found = _commit_of(key, content).attempt
            if attempt not in (None, found):
                return False
            folder = layout.attempt_folder(key, found)
        except CorruptCheckpointError:
            folder = None
        with self._failing("write to"):
            is_gone = self._files.remove_same(layout.commit_path(key), content)
            if is_gone and folder is not None:
                self._files.remove(folder)
        return is_gone

    def remove_attempt(self, key: str, attempt: str) -> None:
        """Remove what an attempt wrote that never came to a commit."""
        with self._failing("write to"):
            self._files.remove(layout.attempt_folder(key, attempt))

    def inventory(self) -> Iterator[Stored]:
        """Return what lies in the store by key, in no order, from one listing."""
        steps: dict[str, Step] = {}
        attempts: dict[str, dict[str, tuple[int, float]]] = {}
        committed = set()
        with self._failing("read from"):
            for entry in self._files.entries(layout.ROOT):
                place = layout.place_of(entry.path)
                if place is None:
                    continue
                found = attempts.setdefault(place.key, {})
                if not place.attempt:
                    committed.add(place.key)
                    continue
                steps[place.key] = place.step
                nbytes, last = found.get(place.attempt, (0, 0.0))
                found[place.attempt] = (nbytes + entry.nbytes, max(last, entry.modified))
        for key, found in attempts.items():
            yield Stored(
                key=key,
                step=steps.get(key, -1),
                is_committed=key in committed,
                attempts=found,
            )

    def keys(self) -> Iterator[str]:
        """Return the keys of all checkpoints, in no order."""
        return (one.key for one in self.inventory() if one.is_committed)

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        """Return the commits of keys, read many at a time; those that cannot be read are left out.

        Raises
        ------
        StorageError
            If the store cannot be read.
        """
        wanted = list(keys)
        names = [layout.commit_path(key).removeprefix(f"{layout.ROOT}/") for key in wanted]
        with self._failing("read from"):
            contents = self._files.read(layout.ROOT, names)
        found = {}
        for key, content in zip(wanted, contents, strict=True):
            with suppress(CorruptCheckpointError, NewerFormatError):
                if content is not None:
                    found[key] = _commit_of(key, content.tobytes())
        return found

    def _commit_content(self, key: str) -> bytes | None:
        folder = layout.key_folder(key)
        with self._failing("read from"):
            content = self._files.read(folder, [layout.COMMIT])[0]
        return None if content is None else content.tobytes()

    def _lost(self, commit: Commit, winner: Commit) -> Commit:
        """Clean up after a lost race; a retry of the winner itself has lost nothing."""
        if winner.attempt != commit.attempt:
            self._files.remove(layout.attempt_folder(commit.key, commit.attempt))
        return winner

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {what} {self.url}: {reason_of(error)}") from showable(error)


def _name_in(url: str, content: bytes) -> str:
    """Return the name that a store's marker gives it."""
    try:
        marker = json.loads(content)
        version, name = marker["version"], marker["name"]
        is_ours = marker["format"] == _STORE and type(version) is int and type(name) is str
    except (LookupError, RecursionError, TypeError, ValueError):
        is_ours, version, name = False, 0, ""
    if not is_ours:
        raise StorageError(f"cannot use {url}: its {layout.MARKER} is not that of a store")
    if version > _STORE_VERSION:
        raise NewerFormatError(
            f"cannot use {url}: the store must have version {_STORE_VERSION}, got {version}: it "
            "was made by a later version of dasktune"
        )
    return str(name)


def _commit_bytes(commit: Commit) -> bytes:
    document = commit.to_json()
    text = {
        "format": _FORMAT,
        "version": _VERSION,
        "check": _check_of(document),
        "commit": document,
    }
    return json.dumps(text, allow_nan=False).encode()


def _commit_of(key: str, content: bytes) -> Commit:
    """Return the commit of a key from what its file holds."""
    with _blaming(key):
        commit = _commit_from_bytes(content)
        if commit.key != key:
            raise CorruptCheckpointError(f"commit is of the key {commit.key}")
    return commit


def _commit_from_bytes(content: bytes) -> Commit:
    """Return a commit; a bit that flipped in a metric would otherwise pass unnoticed."""
    try:
        text = json.loads(content)
        is_ours, version = text["format"] == _FORMAT, text["version"]
        if is_ours and type(version) is int and version > _VERSION:
            raise NewerFormatError(
                f"commit must be of version {_VERSION}, got {version}: it was made by a later "
                "version of dasktune"
            )
        known = is_ours and version == _VERSION
        whole = known and text["check"] == _check_of(text["commit"])
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"commit cannot be read: {error}") from error
    if not known:
        raise CorruptCheckpointError(
            f"commit must be {_FORMAT} version {_VERSION}: it was made by another version"
        )
    if not whole:
        raise CorruptCheckpointError("commit is altered: its check does not match")
    return Commit.from_json(text["commit"])


def _check_of(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return digest_of(text.encode())


def _document_in(attributes: bytes, digest: str) -> Mapping[str, Any]:
    """Return the document of a state, if it is the one of this digest."""
    before, after = _ATTRIBUTES
    text = attributes[len(before) : -len(after)]
    if before + text + after != attributes or digest_of(text) != digest:
        raise CorruptCheckpointError("zarr.json is altered: its digest is not the commit's")
    try:
        document: Mapping[str, Any] = json.loads(text)
        version = document["version"]
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"zarr.json cannot be read: {error!r}") from error
    if type(version) is int and version > VERSION:
        raise NewerFormatError(
            f"state must be of version {VERSION}, got {version}: it was made by a later version "
            "of dasktune"
        )
    return document


def _problems_of(commit: Commit) -> Iterator[str]:
    """Yield what is not of the kind that others add up, show and keep in databases.

    A check that matches says nothing of who has written it.
    """
    yield from layout.problems_of(key=commit.key, attempt=commit.attempt)
    steps = [("step of a report", step) for step, _ in commit.reports]
    for name, number in [("step", commit.step), ("nbytes", commit.nbytes), *steps]:
        if type(number) is not int or not 0 <= number < _TOO_LARGE:
            yield f"{name} must be an integer >= 0 of at most 63 bits, got {number!r:.150}"
    if type(commit.seconds) not in (int, float) or not 0 <= commit.seconds < _TOO_LARGE:
        yield f"seconds must be a number >= 0, got {commit.seconds!r:.150}"
    for name, digest in (("digest", commit.digest), ("parent", commit.parent)):
        is_missing = digest is None and name == "parent"
        if not is_missing and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            yield f"{name} must be {2 * DIGEST_BYTES} hexadecimal digits, got {digest!r:.150}"
    if not isinstance(commit.environment, dict):
        yield f"environment must be an object, got {commit.environment!r:.150}"


@contextmanager
def _blaming(key: str, attempt: str = "") -> Iterator[None]:
    """Name the key in what is wrong with its checkpoint, and keep whose it is."""
    try:
        yield
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"checkpoint {key}: {error}", attempt) from error
    except NewerFormatError as error:
        raise NewerFormatError(f"checkpoint {key}: {error}") from error
