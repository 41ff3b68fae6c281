"""Files of any protocol of fsspec; object stores are durable by themselves."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

import fsspec
import numpy as np

from dasktune._engine.timeouts import LISTING_REQUEST_SECONDS
from dasktune.errors import ConfigurationError, StorageError, unknown
from dasktune.storage import layout
from dasktune.storage.buffers import Buffer
from dasktune.storage.files.base import (
    MOST_NBYTES,
    NO_BOUNDS,
    Entry,
    Files,
    Parts,
    Unreadable,
)
from dasktune.storage.files.failures import FilesError, code_of, is_beyond_end, reason_of
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.files.removal import removal_mark
from dasktune.storage.files.retry import Patience
from dasktune.storage.redaction import redacted, showable

_THREADS = 32
"""Requests at a time."""

_PAGE = 1000
"""Names that a store lists with one request."""

_BULK = 1000
"""Names that a store removes with one request."""

_MARK = "creation"
"""Metadata of an object that identifies the call that created it."""

_S3_CLIENT = {
    "connect_timeout": 5,
    "read_timeout": 15,
    "max_pool_connections": _THREADS,
    "retries": {"mode": "standard", "total_max_attempts": 1},
}
"""Options of botocore: short time-outs, and no retries of its own."""

_USER_IN_NAME = ("abfs", "abfss", "adl", "az")
"""Protocols in which a container is written before an @, as a user is elsewhere."""

_OTHER_VERSION = ("PreconditionFailed", "412")
"""Codes of a store that refuses because an object is another than the condition says."""

_NO_VERSION = '"00000000000000000000000000000000"'
"""An ETag that no object has."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


_OF_BUCKETS = ("s3", "s3a", "gs", "gcs", "abfs", "az")
"""Protocols whose URLs begin with a bucket."""


def open_files(url: str, *, patience: Patience | None = None) -> Files:
    """Return the files at a path or URL; nothing is read or written yet.

    Parameters
    ----------
    patience
        How operations are retried, for stores that are not local; for two minutes if None.

    Raises
    ------
    ConfigurationError
        If the URL holds a user or password, or lacks a slash.
    StorageError
        If fsspec does not know the protocol, lacks a library or options for it, or cannot create
        a file there on the condition that it is absent.
    """
    protocol, separator, path = url.partition("://")
    known = {*fsspec.available_protocols(), *fsspec.registry}
    if not separator:
        protocol, has_one_slash, _ = url.partition(":/")
        if has_one_slash and protocol in known:
            raise ConfigurationError(
                f"storage must be a folder or a URL such as {protocol}://..., got {protocol}:/..."
            )
        return LocalFiles(Path(url))
    if protocol in ("file", "local"):
        if not path.strip("/"):
            raise ConfigurationError(
                f"storage must name a folder, such as {protocol}:///data/runs, got {url!r}"
            )
        return LocalFiles(Path(path))
    if _names_user(protocol, path):
        raise ConfigurationError(
            f"storage must not name a user or password, got {redacted(url)!r}: credentials "
            "belong into the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3), "
            "into ~/.aws/credentials, or into the configuration of fsspec"
        )
    if protocol in _OF_BUCKETS and not path.partition("/")[0]:
        raise ConfigurationError(
            f"storage must name a bucket, such as {protocol}://bucket/folder, got {url!r}"
        )
    if "::" in url:
        raise StorageError(f"cannot use {url}: a cache or archive before a store shows old files")
    if protocol not in known:
        raise StorageError(f"cannot open {url}: {unknown('protocol', protocol, known)}")
    try:
        system, root = fsspec.url_to_fs(url, use_listings_cache=False, **options_of(protocol))
    except (ImportError, OSError, TypeError, ValueError) as error:
        # TypeError: the file system needs options that a URL does not give.
        is_missing = isinstance(error, ImportError) and protocol in ("s3", "s3a")
        remedy = " (pip install 'dasktune[s3]')" if is_missing else ""
        raise StorageError(f"cannot open {url}: {reason_of(error)}{remedy}") from showable(error)
    # Asynchronous file systems create atomically; the inherited method looks, then writes.
    if not system.async_impl and type(system).pipe_file is fsspec.AbstractFileSystem.pipe_file:
        raise StorageError(
            f"cannot use {url}: fsspec's {protocol} cannot create a file only if it is absent, "
            "by which processes agree on who was first"
        )
    return ObjectFiles(system, root, patience=patience)


def _names_user(protocol: str, path: str) -> bool:
    """Return whether a URL holds a user or password; a password may hold slashes."""
    if protocol in _USER_IN_NAME:
        return ":" in path.partition("@")[0]
    place = path.partition("/")[0]
    return "@" in place or (":" in place and "@" in path and not place.startswith("arn:"))


def options_of(protocol: str) -> dict[str, Any]:
    """Return fsspec's options for a protocol; the user's configuration of fsspec comes first."""
    if protocol not in ("s3", "s3a"):
        return {}
    configured: dict[str, Any] = {}
    for name in ("s3", "s3a"):
        configured |= fsspec.config.conf.get(name, {})
    client = {**_S3_CLIENT, **configured.get("config_kwargs", {})}
    # A higher value costs a request for the size before each read.
    return {"max_concurrency": 1, **configured, "config_kwargs": client}


class ObjectFiles:
    """Files of any protocol of fsspec; object stores are durable by themselves.

    Parameters
    ----------
    system
        A file system of fsspec that does not cache its listings.
    root
        The path that all others are relative to.
    patience
        How operations are retried; for two minutes if None.
    threads, page
        Requests at a time, and names that the store lists with one request.
    """

    # fsspec has one memory file system for the whole process. It looks before it writes, and a
    # listing copies its dict item by item: a write by another thread would break the listing off.
    _memory_lock: ClassVar[AbstractContextManager[bool]] = threading.RLock()

    def __init__(
        self,
        system: Any,
        root: str,
        *,
        patience: Patience | None = None,
        threads: int = _THREADS,
        page: int = _PAGE,
    ) -> None:
        self._opened, self._process = system, os.getpid()
        self._root = root.rstrip("/")
        self._patience = patience or Patience()
        self._is_memory = "memory" in system.protocol
        self.alone = self._memory_lock if self._is_memory else nullcontext()
        self._threads = 1 if self._is_memory else threads
        self._page = page
        self._is_s3 = hasattr(system, "call_s3")
        self._conditional: bool | None = None
        _leave_retries_to_us(system)

    @property
    def system(self) -> Any:
        """Return the file system; a forked process opens it again, to have an event loop."""
        if self._process != os.getpid():
            before = self._opened
            self._opened = type(before)(*before.storage_args, **before.storage_options)
            _leave_retries_to_us(self._opened)
            self._process = os.getpid()
        return self._opened

    def write(self, folder: str, files: Mapping[str, Parts]) -> None:
        """Write files into one folder, many at a time, each with its own retries."""

        def put(name: str) -> None:
            content = b"".join(part.data for part in files[name])  # the only copy
            share = len(content) * len(files)  # files of equal size share the line
            self._call(lambda: self._put(_joined(folder, name), content, within=share))

        self._each(put, list(files))

    def create(self, path: str, content: bytes, *, durable: bool = True) -> bool:
        """Write a small file if it is absent; the store decides between two processes."""
        tries = itertools.count(1)
        mark = uuid4().hex
        marked: dict[str, Any] = {"Metadata": {_MARK: mark}} if self._is_s3 else {}

        def create() -> bool:
            is_again = next(tries) > 1
            try:
                self._put(path, content, mode="create", **marked)
            except OSError as error:
                if not _says_exists(error):
                    raise
                # The object may be our own: an earlier try created it and its answer was lost.
                # On S3 that can happen at the first try: aiohttp repeats a PUT by itself.
                if self._is_s3:
                    return self._mark_of(path) == mark
                return is_again and self._get(path) == content
            return True

        return self._call(create)

    def replace(self, path: str, content: bytes, *, durable: bool = False) -> None:
        """Write a small object over an older one; it is durable on return."""
        self._call(lambda: self._put(path, content))

    def read(
        self, folder: str, names: Sequence[str], *, most: Mapping[str, int] = NO_BOUNDS
    ) -> list[Buffer | Unreadable | None]:
        """Return the content of files of one folder, many at a time."""

        def read(name: str) -> Buffer | Unreadable | None:
            path, bound = _joined(folder, name), most.get(name, MOST_NBYTES)
            content = self._call(lambda: self._get(path, bound))
            return np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content

        return self._each(read, names)

    def remove(self, path: str) -> None:
        """Remove an object, or all objects below a folder: one listing and one request."""
        self.remove_files([entry.path for entry in self._below(path)])

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove objects with as few requests as possible."""
        remaining = list(paths)
        if self._is_s3:
            bulks = [remaining[at : at + _BULK] for at in range(0, len(remaining), _BULK)]
            self._each(lambda bulk: self._call(lambda: self._remove_bulk(bulk)), bulks)
        else:
            self._each(lambda path: self._call(lambda: self._remove_one(path)), remaining)

    def remove_same(self, path: str, content: bytes | Unreadable) -> bool:
        """Remove under the condition that the object is the one seen, where the store can.

        Elsewhere a mark keeps other processes from removing it between look and removal.
        """
        if self.removes_conditionally():
            return self._remove_seen(path, content, self._remove_version)
        if self._is_memory:
            return self._remove_seen(path, content)
        with removal_mark(self, path) as may_remove:
            return may_remove and self._remove_seen(path, content)

    def removes_conditionally(self) -> bool:
        """Return whether the store removes an object only if it is the one that was seen.

        The first call tries it with an object of its own, since some stores ignore the
        condition.
        """
        if self._conditional is None:
            self._conditional = self._is_s3 and self._keeps_other_versions()
        return self._conditional

    def _keeps_other_versions(self) -> bool:
        """Return whether an object survives the removal of another version of it."""
        path = f"{layout.probe_folder(uuid4().hex)}/removal"
        self.replace(path, b"kept")
        try:
            return not self._call(lambda: self._remove_version(path, _NO_VERSION))
        except FilesError:  # a store that knows no conditions may refuse the request
            return False
        finally:
            self.remove_files([path])

    def _remove_seen(
        self,
        path: str,
        content: bytes | Unreadable,
        remove: Callable[[str, str], bool] | None = None,
    ) -> bool:
        """Look, then remove, at every try again; return whether the content was there.

        `remove` removes one version of an object; without it, any version is removed.
        """
        tries: list[int] = []

        def look_and_remove() -> bool:
            with self.alone:
                version = self._version_of(path) if remove else ""
                if self._get(path) != content:
                    return bool(tries)  # an earlier try removed it and its answer was lost
                is_again = bool(tries)
                tries.append(1)
                if remove:
                    return remove(path, version) or is_again
                self._remove_one(path)
            return True

        return self._call(look_and_remove)

    def _version_of(self, path: str) -> str:
        """Return the ETag of an object of S3; empty if there is none."""
        bucket, key = self.system.split_path(self._full(path))[:2]
        try:
            answer = self.system.call_s3(
                "head_object", Bucket=bucket, Key=key, **self._within(None)
            )
        except FileNotFoundError:
            return ""
        return str(answer["ETag"])

    def _remove_version(self, path: str, version: str) -> bool:
        """Remove an object of S3 if it has this ETag; return False if it has another."""
        bucket, key = self.system.split_path(self._full(path))[:2]
        limit = self._within(self._patience.request_seconds(0))
        try:
            self.system.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=version, **limit)
        except FileNotFoundError:  # it was there: aiohttp repeats a DELETE by itself
            return True
        except OSError as error:
            if code_of(error) in _OTHER_VERSION:
                return False
            raise
        return True

    def entries(self, folder: str) -> Iterator[Entry]:
        """Return all objects below a folder.

        A store lists page after page. If the folders below are large, they are listed at the
        same time; if there are none, the first listing is all.
        """
        if self._threads == 1:
            yield from self._below(folder)
            return
        listing = self._call(lambda: self._listed(self.system.ls, folder, detail=True))
        folders = [self._relative(item["name"]) for item in listing if item["type"] == "directory"]
        if not folders:
            yield from (self._entry(item) for item in listing)
            return
        first = self._below(folders[0]) if len(folders) > self._threads else []
        if len(first) * self._threads <= self._page:
            yield from self._below(folder)
            return
        yield from first
        with ThreadPoolExecutor(self._threads, thread_name_prefix="dasktune-files") as pool:
            for entries in pool.map(self._below, folders[1:]):
                yield from entries

    def _below(self, path: str) -> list[Entry]:
        """Return the files below a folder from one listing; for a file, the file itself."""
        listing = self._call(lambda: self._listed(self.system.find, path, detail=True))
        return [self._entry(item) for item in dict(listing).values()]

    def _entry(self, item: Mapping[str, Any]) -> Entry:
        return Entry(
            path=self._relative(item["name"]), nbytes=item["size"], modified=modified_of(item)
        )

    def _listed(self, listing: Callable[..., Any], path: str, **options: Any) -> Any:
        try:
            with self.alone:
                return listing(self._full(path), **options, **self._within(LISTING_REQUEST_SECONDS))
        except FileNotFoundError as error:
            if code_of(error) == "NoSuchBucket":
                raise
            return {}

    def _put(self, path: str, content: bytes, *, within: int = 0, **options: Any) -> None:
        limit = self._within(self._patience.request_seconds(within or len(content)))
        with self.alone:
            self.system.pipe_file(self._full(path), content, **options, **limit)

    def _get(self, path: str, most: int = MOST_NBYTES) -> bytes | Unreadable | None:
        """Return the content of an object; one more byte than `most` shows that it is too large."""
        part = {"start": 0, "end": most + 1}
        try:
            content: bytes = self.system.cat_file(self._full(path), **part, **self._within(None))
        except (FileNotFoundError, IsADirectoryError) as error:
            # A folder in place of the file counts as a missing file.
            if code_of(error) == "NoSuchBucket":
                raise
            return None
        except Exception as error:
            if is_beyond_end(error):  # even the first byte of an empty object is
                return b""
            raise
        return content if len(content) <= most else Unreadable.large(most, content)

    def _mark_of(self, path: str) -> str | None:
        """Return the mark of the call that created an object of S3, or None."""
        try:
            mark: str | None = self.system.metadata(self._full(path)).get(_MARK)
        except FileNotFoundError:
            return None
        return mark

    def _remove_one(self, path: str) -> None:
        with self.alone, suppress(FileNotFoundError):
            self.system.rm_file(self._full(path), **self._within(self._patience.request_seconds(0)))

    def _remove_bulk(self, paths: Sequence[str]) -> None:
        """Remove objects of S3 with one request; its response names those that were left."""
        places = [self.system.split_path(self._full(path))[:2] for path in paths]
        answer = self.system.call_s3(
            "delete_objects",
            Bucket=places[0][0],
            Delete={"Objects": [{"Key": key} for _, key in places], "Quiet": True},
            **self._within(self._patience.request_seconds(0)),
        )
        for left in answer.get("Errors", []):
            if left.get("Code") != "NoSuchKey":
                raise _RefusedError(left)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _relative(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    def _within(self, seconds: float | None) -> dict[str, float]:
        """Return the option that limits a request, where fsspec has one."""
        limit = self._patience.request or seconds
        return {"timeout": limit} if limit and self.system.async_impl else {}

    def _call(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of a request, with retries; every last failure is a `FilesError`."""
        try:
            return self._patience.call(work)
        except Exception as error:
            bucket = self._root.lstrip("/").partition("/")[0]
            raise FilesError(reason_of(error, bucket=bucket)) from error

    def _each(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        threads = min(self._threads, len(items))
        if threads <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(threads, thread_name_prefix="dasktune-files") as pool:
            return list(pool.map(work, items))


class _RefusedError(OSError):
    """A store did not remove one of the objects that a request named."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer.get("Message") or answer.get("Code"))
        self.response = {"Error": dict(answer)}


def _leave_retries_to_us(system: Any) -> None:
    """Switch off the retries of s3fs, which has an attribute for their number."""
    if hasattr(system, "call_s3"):
        system.retries = 1


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _says_exists(error: OSError) -> bool:
    """Return whether a store refused because the object exists; gateways differ in the code."""
    return isinstance(error, FileExistsError) or code_of(error) in _OTHER_VERSION


def modified_of(item: Mapping[str, Any]) -> float:
    """Return the time of the last write; file systems of fsspec name it differently."""
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        when = item.get(name)
        if isinstance(when, datetime):
            return when.timestamp()
        if isinstance(when, int | float):
            return float(when)
    return 0.0
