"""Digests of data by content: arrays, tensors, files, folders, and collections of them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
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
"""Names of files and folders that do not count: systems and editors leave them behind."""

_NBYTES = 16
_LARGE = 1 << 24
"""Bytes from which on a file is read by several threads."""


def data_digest(data: Any) -> str:
    """Return a digest of an array, a tensor, a file, a folder, or a collection of them.

    It is that of the content alone, so it is the same on every machine. Made to be read by
    BLAKE3 as fast as the disk is: some gigabytes a second from memory.

    Parameters
    ----------
    data
        An array or tensor counts by type, shape and content; a path to a file by its
        content; a path to a folder by the relative names and contents of all files below
        it. Links are followed. Empty folders, times, owners and permissions do not count,
        nor does what is named like `LITTER`. Lists and tuples count by their items,
        mappings by keys and values in any order.

    Returns
    -------
    str
        128 bits, hexadecimal. That of a file is what ``b3sum --length 16`` prints.

    Raises
    ------
    ConfigurationError
        If it is none of these, something cannot be read, or a folder has no files: what
        was not mounted must not pass for data.

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
    """Return whether a thing is of a type of torch, without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, tuple(getattr(torch, kind) for kind in kinds))


def _parts(data: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes that tell data from other data."""
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
            found = list(pool.map(_file_digest, (path / name for name in files)))
    except OSError as error:
        raise ConfigurationError(f"data cannot be read: {error}") from error
    digest = blake3(b"folder ")
    for name, one in zip(files, found, strict=True):
        digest.update(b"%d " % len(os.fsencode(name)) + os.fsencode(name) + one.encode())
    return digest.hexdigest(length=_NBYTES)


def _files(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files below a folder by their relative names, in no order."""
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


def _file_digest(path: Path) -> str:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"data must be files and folders, got {str(path)!r}")
    threads = blake3.AUTO if found.st_size >= _LARGE else 1
    try:
        return blake3(max_threads=threads).update_mmap(path).hexdigest(length=_NBYTES)
    except OSError as error:
        raise ConfigurationError(f"data cannot be read: {str(path)!r}: {error}") from error
