"""The checkpoint store: one state per key, found by the key on any machine.

Several attempts may save the same key at the same time: after a network partition two workers
train the same stage. Each writes the data under its own name and then tries to create the
commit. The first commit makes *the* checkpoint. Without its commit a checkpoint does not exist;
with it the checkpoint never changes. Object stores have no rename and need none.

A small state lies in its commit: one object, one request, and a third of the syncs. The commit has
the same name in both cases, so an attempt with a small state and one with a large state compete
for it, too.
"""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from dasktune._engine.timeouts import STORE_CHECK_SECONDS
from dasktune.errors import CorruptCheckpointError, StateError, StorageError
from dasktune.storage import layout
from dasktune.storage.buffers import Buffer
from dasktune.storage.codec import VERSION, Snapshot, decode
from dasktune.storage.files.base import MOST_NBYTES, Entry, Files, Unreadable
from dasktune.storage.files.clock import store_time
from dasktune.storage.files.failures import reason_of
from dasktune.storage.files.objects import open_files
from dasktune.storage.files.retry import Patience
from dasktune.storage.metrics import metrics_from_json, metrics_to_json
from dasktune.storage.redaction import showable
from dasktune.storage.tensors import DIGEST_BYTES, digest_of
from dasktune.storage.zarr_array import METADATA, ArrayFiles, read_array
from dasktune.types import Metrics, Step

_ATTRIBUTES = b'{"dasktune": ', b"}"
"""Text before and after a state's document in the attributes of its array."""

_STORE, _STORE_VERSION = "dasktune-store", 1
_FORMAT, _VERSION, _VERSION_WITH_STATE = "dasktune-commit", 2, 3
_HEAD = f'{{"format": "{_FORMAT}"'.encode()
"""The beginning of each commit."""

SMALL_NBYTES = 64 * 2**10
"""Largest state, document and tensors, that lies in its commit."""

_USUAL_NBYTES = 2**20
"""Commits of at most this size are read together."""

_AT_ONCE = 128
"""Most commits that are read together: with the states in them, all would fill the memory."""

_CHUNK = "c.0"
"""The one chunk of such a state, if it has tensors."""

_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}")

_TOO_LARGE = 2**63
"""Above the largest integer of a database."""

CHECK_PATIENCE = Patience(seconds=STORE_CHECK_SECONDS, request=STORE_CHECK_SECONDS)
"""Retries on opening a store: a store that cannot be reached should be reported soon."""


class OtherFormatError(StorageError):
    """A checkpoint was made by another version of dasktune; it is neither read nor removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A checkpoint without its state.

    Parameters
    ----------
    key
        The state key.
    attempt
        Unique name of the attempt that trained and wrote the state.
    step
        Number of steps trained.
    digest
        The digest of the state (`dasktune.storage.codec.Snapshot.digest`).
    nbytes
        Bytes of the state's tensors.
    parent
        The digest of the state from which the attempt continued; None from step 0.
    reports
        The metrics that this attempt measured since the parent, by step.
    environment
        Versions and device of the training; JSON.
    seconds
        Training time since the parent.
    proof
        What the trainer held beside the state, packed (`dasktune.trainer.proof`): `load` reads it,
        other ways to a commit leave it out.
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
    proof: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the commit without its proof as strict JSON."""
        names = (part.name for part in fields(self) if part.name != "proof")
        document = {name: getattr(self, name) for name in names}
        reports = [[step, metrics_to_json(metrics)] for step, metrics in self.reports]
        return {**document, "reports": reports, "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Commit:
        """Return the commit that `to_json` wrote.

        Raises
        ------
        CorruptCheckpointError
            If the document is not a commit.
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
    """The files of one key in a listing of the store.

    Parameters
    ----------
    step
        Step of the state; -1 if there is only a commit.
    is_committed
        Whether there is a commit, and so a checkpoint.
    attempts
        Bytes and time of the last write (epoch seconds) by attempt; the commit names the
        attempt that counts.
    leftovers
        Temporary files beside the commit, which a process that died has left.
    """

    key: str
    step: Step
    is_committed: bool
    attempts: Mapping[str, tuple[int, float]]
    leftovers: tuple[Entry, ...] = ()

    @property
    def nbytes(self) -> int:
        """Total bytes of all attempts."""
        return sum(nbytes for nbytes, _ in self.attempts.values())


class CheckpointStore:
    """Checkpoints by key at one URL; safe to use from several threads and processes.

    Parameters
    ----------
    url
        A path, ``file://``, ``memory://`` (this process only), or any protocol of fsspec
        that can create an object on the condition that it is absent, such as ``s3://``.
    patience
        How operations are retried, for stores that are not local; for two minutes if None.
    files
        The files of the store; by default those at the URL.

    Examples
    --------
    >>> from dasktune.storage.codec import encode
    >>> store = CheckpointStore("memory://example")
    >>> commit = store.save(encode({"weight": 1.5}), key="a1f0", attempt="1-7c", step=10)
    >>> store.load("a1f0")[0]
    {'weight': 1.5}
    """

    def __init__(
        self, url: str, patience: Patience | None = None, *, files: Files | None = None
    ) -> None:
        self.url = url
        self._files = files or open_files(url, patience=patience)
        self._listed: dict[str, tuple[Entry, _Small | None]] = {}
        """By key: a commit that a listing has opened, and the state in it or None."""

    @property
    def files(self) -> Files:
        """The files of the store, for other uses than checkpoints."""
        return self._files

    def check(self, *, patience: Patience = CHECK_PATIENCE) -> str:
        """Write and remove files as for a checkpoint, and return the store's name.

        A new store gets a name of 32 random digits. By the name a study notices that it was
        opened with another store.

        Raises
        ------
        StorageError
            If the store cannot be used, or a later version of dasktune made it.
        """
        name = uuid4().hex
        probe = f"{layout.ROOT}/check-{name}"
        marker = json.dumps({"format": _STORE, "version": _STORE_VERSION, "name": name})
        files = open_files(self.url, patience=patience)
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
        """Return the store's name, without writing.

        Raises
        ------
        StorageError
            If there is no store, it cannot be read, or a later version of dasktune made it.
        """
        name = self.name_if_any()
        if name is None:
            raise StorageError(f"there is no store at {self.url}: it has no {layout.MARKER}")
        return name

    def name_if_any(self) -> str | None:
        """Return the store's name if there is a store, else None; this only reads.

        Raises
        ------
        StorageError
            If it cannot be read, or a later version of dasktune made it.
        """
        with self._failing("read from"):
            content = self._files.read("", [layout.MARKER])[0]
        if isinstance(content, Unreadable):
            raise StorageError(f"cannot use {self.url}: its {layout.MARKER} {content.reason}")
        return None if content is None else _name_in(self.url, content.tobytes())

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
        proof: str = "",
    ) -> Commit:
        """Store a state durably and return the commit of its key.

        If another attempt was first, the commit is that attempt's: the data of this one are
        removed, and the caller must continue from the other attempt's state.

        Raises
        ------
        StateError
            If the reports fill more than a commit may hold.
        StorageError
            If the store cannot be written.
        """
        folder, path = layout.state_folder(key, attempt, step), layout.commit_path(key)
        before, after = _ATTRIBUTES
        data = ArrayFiles(snapshot.data, lambda: before + snapshot.text + after)
        is_small = self._is_small(snapshot, data)
        if not is_small:
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
        content = commit_bytes(commit, data if is_small else None, proof)
        if len(content) > MOST_NBYTES:  # nobody would read it
            raise StateError(
                "reports",
                f"commit must have at most {MOST_NBYTES:,} bytes, got {len(content):,}: "
                "report fewer metrics between two checkpoints",
            )
        with self._failing("write to"):
            while not self._files.create(path, content):
                winner = self._winner(key)
                if winner is not None:
                    if not is_small:
                        self._remove_lost(commit, winner)
                    return winner
        return commit

    def _winner(self, key: str) -> Commit | None:
        """Return the first commit; remove it and return None if it cannot be read."""
        try:
            return self.commit_of(key)
        except CorruptCheckpointError:
            self.discard(key, attempt="")
            return None

    def commit_of(self, key: str) -> Commit | None:
        """Return the commit of a key, or None.

        Raises
        ------
        CorruptCheckpointError
            If the commit cannot be read.
        OtherFormatError
            If another version of dasktune made it.
        """
        content = self._commit_content(key)
        return None if content is None else _commit_of(key, content).commit

    def load(self, key: str) -> tuple[Any, Commit]:
        """Return the state and the commit of a key, with sizes, checksums and digest checked.

        Raises
        ------
        CorruptCheckpointError
            If there is no such checkpoint, or it differs from what was saved.
        OtherFormatError
            If another version of dasktune made it.
        """
        content = self._commit_content(key)
        if content is None:
            raise CorruptCheckpointError(f"checkpoint {key}: there is no commit", "")
        file = _commit_of(key, content)
        commit = file.commit
        folder = layout.state_folder(key, commit.attempt, commit.step)

        def read(most: Mapping[str, int]) -> list[Buffer | Unreadable | None]:
            if file.array is None:
                return self._files.read(folder, list(most), most=most)
            return [file.array.get(name) for name in most]

        with _blaming(key, commit.attempt):
            with self._failing("read from"):
                data, attributes = read_array(read, commit.nbytes)
            state = decode(_document_in(attributes, commit.digest), data, copy=False)
            data.check()  # also the bytes outside all tensors, so that any zarr can read them
            return state, replace(commit, proof=file.proof)

    def discard(self, key: str, *, attempt: str | None = None) -> bool:
        """Remove a checkpoint, the commit first, and return whether it was removed.

        Data of other attempts for the same key stay, and so does the commit if another attempt
        has replaced it meanwhile. If the commit cannot be read, only the commit is removed,
        because the attempt is unknown.

        Parameters
        ----------
        key
            The state key.
        attempt
            Remove the checkpoint only if it is of this attempt or its commit cannot be read;
            if empty, only if its commit cannot be read.

        Raises
        ------
        OtherFormatError
            If another version of dasktune made the checkpoint.
        """
        content = self._commit_content(key)
        if content is None:
            return False
        try:
            file = _commit_of(key, content)
            writer = file.commit.attempt
            if attempt not in (None, writer):
                return False
            folder = layout.attempt_folder(key, writer) if file.array is None else None
        except CorruptCheckpointError:
            folder = None
        with self._failing("write to"):
            is_removed = self._files.remove_same(layout.commit_path(key), content)
            if is_removed and folder is not None:
                self._files.remove(folder)
        return is_removed

    def remove_attempt(self, key: str, attempt: str) -> None:
        """Remove the data of an attempt without a commit."""
        with self._failing("write to"):
            self._files.remove(layout.attempt_folder(key, attempt))

    def inventory(
        self, recorded: Mapping[str, tuple[str, Step]] = MappingProxyType({})
    ) -> Iterator[Stored]:
        """Yield all keys in the store with their files, in any order, from one listing.

        Parameters
        ----------
        recorded
            Attempt and step of small states by key: their commits are not opened.
        """
        steps: dict[str, Step] = {}
        attempts: dict[str, dict[str, tuple[int, float]]] = {}
        committed: dict[str, Entry] = {}
        leftovers: dict[str, list[Entry]] = defaultdict(list)
        with self._failing("read from"):
            for entry in self._files.entries(layout.ROOT):
                file = layout.parse_path(entry.path)
                if file is None:
                    continue
                of_key = attempts.setdefault(file.key, {})
                if file.is_leftover:
                    leftovers[file.key].append(entry)
                    continue
                if not file.attempt:
                    committed[file.key] = entry
                    continue
                steps[file.key] = file.step
                nbytes, last = of_key.get(file.attempt, (0, 0.0))
                of_key[file.attempt] = (nbytes + entry.nbytes, max(last, entry.modified))
        for key, small in self._small_states(committed, attempts, recorded).items():
            entry, steps[key] = committed[key], small.step
            attempts[key][small.attempt] = entry.nbytes, entry.modified
        for key, of_key in attempts.items():
            step, is_committed = steps.get(key, -1), key in committed
            yield Stored(
                key=key,
                step=step,
                is_committed=is_committed,
                attempts=of_key,
                leftovers=tuple(leftovers.get(key, ())),
            )

    def _small_states(
        self,
        committed: Mapping[str, Entry],
        attempts: Mapping[str, Mapping[str, tuple[int, float]]],
        recorded: Mapping[str, tuple[str, Step]],
    ) -> dict[str, _Small]:
        """Return the states that lie in listed commits.

        Only commits that are not in `recorded` are opened, each once by this object. A commit with
        a state is larger than any data of the same state beside it, which a dead upload or an
        earlier version has left. Smaller commits are not opened.
        """
        possible = [
            key
            for key, entry in committed.items()
            if all(nbytes <= entry.nbytes for nbytes, _ in attempts[key].values())
        ]
        known = {
            key: self._listed[key]
            for key in possible
            if key in self._listed and self._listed[key][0] == committed[key]
        }
        unknown = [key for key in possible if key not in known and key not in recorded]
        new = {
            key: _Small(file.commit.attempt, file.commit.step)
            for key, file in self._commit_files(unknown)
            if file.array is not None
        }
        opened = {key: (committed[key], new.get(key)) for key in unknown}
        # If the store tells no time, a new commit of the same size looks like the old one.
        self._listed = {**known, **{key: each for key, each in opened.items() if each[0].modified}}
        small = {key: state for key, (_, state) in {**known, **opened}.items() if state is not None}
        return {**{key: _Small(*recorded[key]) for key in possible if key in recorded}, **small}

    def time(self) -> float:
        """Return the present time by the store's clock (epoch seconds); 0 if it tells none.

        Raises
        ------
        StorageError
            If the store cannot be written or read.
        """
        with self._failing("write to"):
            return store_time(self._files)

    def keys(self) -> Iterator[str]:
        """Return the keys of all checkpoints, in any order."""
        return (stored.key for stored in self.inventory() if stored.is_committed)

    def commits(self, keys: Iterable[str]) -> dict[str, Commit]:
        """Return the readable commits of keys, read many at a time.

        Raises
        ------
        StorageError
            If the store cannot be read.
        """
        return {key: file.commit for key, file in self._commit_files(keys)}

    def _commit_files(self, keys: Iterable[str]) -> Iterator[tuple[str, _CommitFile]]:
        """Yield the readable commits of keys, with few of their states in memory at a time."""
        left = iter(keys)
        while wanted := list(itertools.islice(left, _AT_ONCE)):
            names = [layout.commit_path(key).removeprefix(f"{layout.ROOT}/") for key in wanted]
            with self._failing("read from"):
                contents = self._files.read(
                    layout.ROOT, names, most=dict.fromkeys(names, _USUAL_NBYTES)
                )
            for key, content in zip(wanted, contents, strict=True):
                # A larger commit is read alone: so many of them would fill the memory.
                is_large = isinstance(content, Unreadable)
                whole = self._commit_content(key) if is_large else _bytes_of(content)
                file = None if whole is None else _readable(key, whole)
                if file is not None:
                    yield key, file

    def _commit_content(self, key: str) -> bytes | Unreadable | None:
        folder = layout.key_folder(key)
        with self._failing("read from"):
            return _bytes_of(self._files.read(folder, [layout.COMMIT])[0])

    def _is_small(self, snapshot: Snapshot, data: ArrayFiles) -> bool:
        """Return whether a new state lies in its commit."""
        # The document of a larger state is made later: its checksums take long.
        few = snapshot.nbytes <= SMALL_NBYTES and set(data) <= {METADATA, _CHUNK}
        return few and snapshot.stored_nbytes <= SMALL_NBYTES

    def _remove_lost(self, commit: Commit, winner: Commit) -> None:
        """Clean up after a lost race; the winner may be an earlier try of the same attempt."""
        if winner.attempt != commit.attempt:
            self._files.remove(layout.attempt_folder(commit.key, commit.attempt))

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot {what} {self.url}: {reason_of(error)}") from showable(error)


def _name_in(url: str, content: bytes) -> str:
    """Return the store's name from its marker."""
    try:
        marker = json.loads(content)
        version, name = marker["version"], marker["name"]
        is_ours = marker["format"] == _STORE and type(version) is int and type(name) is str
    except (LookupError, RecursionError, TypeError, ValueError):
        is_ours, version, name = False, 0, ""
    if not is_ours:
        raise StorageError(f"cannot use {url}: its {layout.MARKER} is not that of a store")
    if version > _STORE_VERSION:
        raise OtherFormatError(
            f"cannot use {url}: the store must have version {_STORE_VERSION}, got {version}: it "
            "was made by a later version of dasktune"
        )
    return str(name)


class _Small(NamedTuple):
    """A state that lies in its commit, as listings show it."""

    attempt: str
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitFile:
    """The content of a commit's file.

    Parameters
    ----------
    array
        The files of the array by name, if the state lies in the commit; else None.
    proof
        See `Commit`.
    """

    commit: Commit
    array: Mapping[str, Buffer] | None
    proof: str = ""


def commit_bytes(commit: Commit, array: ArrayFiles | None, proof: str = "") -> bytes:
    """Return the content of a commit's file, in which the files of an array lie if given."""
    document = commit.to_json()
    version = _VERSION if array is None else _VERSION_WITH_STATE
    text = {"format": _FORMAT, "version": version, "check": _check_of(document), "commit": document}
    if proof:
        text["proof"] = proof
    if array is not None:
        contents = {name: b"".join(part.data for part in array[name]) for name in array}
        text[METADATA] = contents[METADATA].decode()
        text[_CHUNK] = b64encode(contents.get(_CHUNK, b"")).decode()
    return json.dumps(text, allow_nan=False).encode()


def _bytes_of(content: Buffer | Unreadable | None) -> bytes | Unreadable | None:
    return content.tobytes() if isinstance(content, np.ndarray) else content


def _commit_of(key: str, content: bytes | Unreadable) -> _CommitFile:
    with _blaming(key):
        if isinstance(content, Unreadable):
            if content.head.startswith(_HEAD):
                raise OtherFormatError(
                    f"{layout.commit_path(key)} {content.reason}: an older version of dasktune "
                    "wrote it. It is kept; remove it to have the state trained again"
                )
            raise CorruptCheckpointError(f"commit {content.reason}")
        file = _commit_from_bytes(content)
        if file.commit.key != key:
            raise CorruptCheckpointError(f"commit is of the key {file.commit.key}")
    return file


def _readable(key: str, content: bytes | Unreadable) -> _CommitFile | None:
    try:
        return _commit_of(key, content)
    except (CorruptCheckpointError, OtherFormatError):
        return None


def _commit_from_bytes(content: bytes) -> _CommitFile:
    """Return a commit; its check finds also a flipped bit in a metric."""
    try:
        text = json.loads(content)
        is_ours, version = text["format"] == _FORMAT, text["version"]
        if is_ours and type(version) is int and version > _VERSION_WITH_STATE:
            raise OtherFormatError(
                f"commit must be of version {_VERSION_WITH_STATE}, got {version}: it was made by "
                "a later version of dasktune"
            )
        known = is_ours and version in (_VERSION, _VERSION_WITH_STATE)
        whole = known and text["check"] == _check_of(text["commit"])
        array = _array_in(text) if whole and version == _VERSION_WITH_STATE else None
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"commit cannot be read: {error}") from error
    if not known:
        raise CorruptCheckpointError(
            f"commit must be {_FORMAT} version {_VERSION} or {_VERSION_WITH_STATE}: it was made by "
            "another version"
        )
    if not whole:
        raise CorruptCheckpointError("commit is altered: its check does not match")
    proof = text.get("proof", "")
    if not isinstance(proof, str):
        raise CorruptCheckpointError(f"proof must be a text, got {proof!r:.150}")
    return _CommitFile(commit=Commit.from_json(text["commit"]), array=array, proof=proof)


def _array_in(text: Mapping[str, Any]) -> dict[str, Buffer]:
    """Return the files of the array that lies in a commit."""
    contents = {METADATA: text[METADATA].encode(), _CHUNK: b64decode(text[_CHUNK], validate=True)}
    return {name: np.frombuffer(content, np.uint8) for name, content in contents.items()}


def _check_of(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return digest_of(text.encode())


def _document_in(attributes: bytes, digest: str) -> Mapping[str, Any]:
    """Return the document of a state after checking its digest."""
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
        raise OtherFormatError(
            f"state must be of version {VERSION}, got {version}: it was made by a later version "
            "of dasktune"
        )
    return document


def _problems_of(commit: Commit) -> Iterator[str]:
    """Yield the values of wrong type or range: anyone may have written a commit that checks."""
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
    """Add key and attempt of a checkpoint to its errors."""
    try:
        yield
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"checkpoint {key}: {error}", attempt) from error
    except OtherFormatError as error:
        raise OtherFormatError(f"checkpoint {key}: {error}") from error
