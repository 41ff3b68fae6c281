"""Digests of data by content: arrays, tensors, files, folders, and collections of them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from dasktune.errors import ConfigurationError

LITTER = (
    *("__pycache__", ".git", ".ipynb_checkpoints", ".DS_Store", "Thumbs.db", "desktop.ini"),
    *("*~", ".*.sw?", ".#*", "._*", ".nfs*"),
)
"""Ignored files and folders: operating systems and editors make them."""

_NBYTES = 16
_MOST_KNOWN = 1_000_000
_LARGE = 1 << 24
"""Bytes from which on a file is read by several threads."""


def data_digest(data: Any) -> str:
    """Return a digest of an array, a tensor, a file, a folder, or a collection of them.

    It depends on the content alone, so it is the same on every machine. BLAKE3 reads as fast as
    the disk, or some gigabytes a second from memory.

    Parameters
    ----------
    data
        An array or tensor counts by type, shape and content; a path to a file by its content;
        a path to a folder by the relative names and contents of all files below it. Links are
        followed. Empty folders, times, owners, permissions and names in `LITTER` are ignored.
        Lists and tuples count by their items, mappings by keys and values in any order.

    Returns
    -------
    str
        128 bits, hexadecimal. For a file it equals the output of ``b3sum --length 16``.

    Raises
    ------
    ConfigurationError
        If the value is of another type, data cannot be read, or a folder has no files: a
        folder that is not mounted must not pass for data.

    Examples
    --------
    >>> data_digest(np.arange(3)) == data_digest(np.arange(3.0))
    False
    """
    if isinstance(data, (str, os.PathLike)):
        return _path_digest(Path(data))
    digest = blake3(max_threads=blake3.AUTO)
    for part in _parts(data):
        digest.update(part)
    return digest.hexdigest(length=_NBYTES)


def json_digest(value: object) -> str:
    """Return a digest of a JSON value (BLAKE2b, 128 bits, hexadecimal)."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=_NBYTES).hexdigest()


def is_torch(thing: Any, *kinds: str) -> bool:
    """Return whether a thing has one of these types of torch, without importing torch."""
    torch = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):
        return False
    return isinstance(thing, tuple(getattr(torch, kind) for kind in kinds))


def _parts(data: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes to hash."""
    if isinstance(data, Mapping):
        yield f"mapping {len(data)} ".encode()
        for key in sorted(data, key=repr):
            yield f"{key!r}: {data_digest(data[key])} ".encode()
    elif isinstance(data, (list, tuple)):
        yield f"items {len(data)} ".encode()
        for item in data:
            yield f"{data_digest(item)} ".encode()
    elif is_torch(data, "Tensor"):
        yield from _tensor_parts(data)
    elif isinstance(data, np.ndarray) and not isinstance(data, np.ma.MaskedArray):
        yield from _array_parts(data)
    else:
        raise ConfigurationError(
            f"data must be arrays, tensors or paths, got {type(data).__name__}"
        )


def _tensor_parts(data: Any) -> Iterator[bytes | memoryview]:
    torch = sys.modules["torch"]
    if data.is_nested or data.is_quantized or data.is_meta or data.layout is not torch.strided:
        raise ConfigurationError(
            f"data must be dense tensors, got one of {data.dtype}, {data.layout} on {data.device}"
        )
    yield f"tensor {data.dtype} {tuple(data.shape)} ".encode()
    flat = data.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # Through bytes, because NumPy has no bfloat16.
    yield flat.view(torch.uint8).numpy().data


def _array_parts(data: Any) -> Iterator[bytes | memoryview]:
    if data.dtype.hasobject:
        raise ConfigurationError(f"data must be arrays of plain values, got {data.dtype}")
    yield f"array {np.lib.format.dtype_to_descr(data.dtype)} {data.shape} ".encode()
    if data.nbytes:
        yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _path_digest(path: Path) -> str:
    try:
        if not path.is_dir():
            return _file_digest(path)
        files = sorted(_files(path, "", ()))
        if not files:
            raise ConfigurationError(f"data must be a folder with files, got {str(path)!r}")
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(_file_digest, (path / name for name in files)))
    except OSError as error:
        raise ConfigurationError(f"data cannot be read: {error}") from error
    digest = blake3(b"folder ")
    for name, content in zip(files, digests, strict=True):
        digest.update(b"%d " % len(os.fsencode(name)) + os.fsencode(name) + content.encode())
    return digest.hexdigest(length=_NBYTES)


def _files(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the relative names of the files below a folder, in any order."""
    here = folder.stat()
    identity = here.st_dev, here.st_ino
    if identity in above:
        raise ConfigurationError(f"data must not contain itself, got the link {str(folder)!r}")
    with os.scandir(folder) as entries:
        for entry in entries:
            if any(fnmatchcase(entry.name, pattern) for pattern in LITTER):
                continue
            if entry.is_dir():
                path = folder / entry.name
                yield from _files(path, f"{prefix}{entry.name}/", (*above, identity))
            else:
                yield f"{prefix}{entry.name}"


_SETTLED_NS = 2_000_000_000
"""Nanoseconds after which a change of a file has another time, also on coarse clocks."""

_KNOWN: dict[str, tuple[tuple[int, ...], str]] = {}
"""By path: what identifies the content of a file, and its digest."""


def _file_digest(path: Path) -> str:
    """Return the digest of a file; a file with the same times and size is not read again."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"data must be files and folders, got {str(path)!r}")
    times = status.st_mtime_ns, status.st_ctime_ns
    identity = (status.st_dev, status.st_ino, status.st_size, *times)
    name = os.path.abspath(path)
    known = _KNOWN.get(name)
    if known is not None and known[0] == identity:
        return known[1]
    is_settled = time.time_ns() - max(times) > _SETTLED_NS
    digest = _read_digest(path, status)
    _KNOWN.pop(name, None)
    if is_settled and len(_KNOWN) < _MOST_KNOWN:
        _KNOWN[name] = identity, digest
    return digest


def _read_digest(path: Path, status: os.stat_result) -> str:
    threads = blake3.AUTO if status.st_size >= _LARGE else 1
    try:
        return blake3(max_threads=threads).update_mmap(path).hexdigest(length=_NBYTES)
    except OSError as error:
        raise ConfigurationError(f"data cannot be read: {str(path)!r}: {error}") from error
