"""One flat array of bytes in the zarr v3 format, as the files it consists of.

The array is ``uint8``, of one dimension, not compressed (float weights shrink by 3 to 8
percent only), in chunks of up to `CHUNK_BYTES`, each with a CRC32C at its end. Any zarr
implementation reads it. The zarr package is not used because an array would cost milliseconds
instead of tens of microseconds, its files could not be synced and sent together, and a missing
chunk would read as zeros instead of an error.

The metadata have one spelling with the attributes last. The attributes are cut out of the file
and compared as bytes, so that nothing depends on the reading of JSON.

References
----------
Zarr core specification, version 3: array metadata, regular grid, codecs ``bytes`` and
``crc32c``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np

from dasktune.errors import CorruptCheckpointError
from dasktune.storage.buffers import ALIGNMENT, PAGE, Buffer, empty
from dasktune.storage.files.base import Unreadable

CHUNK_BYTES = 32 * 2**20
"""Size of the largest chunk; larger arrays have several equal chunks. Part of the format."""

METADATA = "zarr.json"
"""Name of the file with the metadata, which end with the attributes."""

_CRC_BYTES = 4
_PIECE_BYTES = 2**22
"""Size of the pieces of a chunk; the last one may have up to twice as much. CRC32C holds the GIL,
about 0.3 ms for a piece; while a piece is written, other threads run."""

_THREADS = 2
_AT_ONCE = 64
"""Files read together: with a forged size, reading ends at the first missing chunk."""

MOST_METADATA = 2**30
"""Bytes of the largest metadata that are read; the document of a state lies in them."""

Read = Callable[[Mapping[str, int]], list[Buffer | Unreadable | None]]
"""Returns the content of files, None for a missing file, from the most bytes by name."""


class ArrayFiles(Mapping[str, Iterable[Buffer]]):
    """The files of an array: by name, the content of each in pieces.

    The checksums of chunks are computed while their pieces are written. The metadata come last,
    so that chunks are written while the attributes, which may hold checksums, are still computed.

    Parameters
    ----------
    data
        The bytes; they are not copied.
    attributes
        Returns the JSON for the array's metadata.
    """

    def __init__(self, data: Buffer, attributes: Callable[[], bytes]) -> None:
        self._data, self._attributes = data, attributes
        self._size = _chunk_size(data.size)

    def __iter__(self) -> Iterator[str]:
        yield from _chunk_names(self._data.size)
        yield METADATA

    def __len__(self) -> int:
        return _chunk_count(self._data.size) + 1

    def __getitem__(self, name: str) -> Iterable[Buffer]:
        if name == METADATA:
            content = _head(self._data.size) + self._attributes() + b"}"
            return [np.frombuffer(content, np.uint8)]
        start = int(name.removeprefix("c.")) * self._size
        part = self._data[start : start + self._size]
        fill = np.zeros(self._size - part.size, np.uint8)
        return _with_crc([*_pieces(part), fill])


class Chunks:
    """The bytes of an array in the chunks in which they were read.

    Parameters
    ----------
    chunks
        Equal in size, each with its CRC32C; the last one is padded.
    nbytes
        Number of bytes without the padding.
    """

    def __init__(self, chunks: Sequence[Buffer], nbytes: int) -> None:
        self._chunks, self.nbytes = chunks, nbytes
        self._size = _chunk_size(nbytes)

    def check(self) -> None:
        """Compare all chunks with their CRC32C.

        Raises
        ------
        CorruptCheckpointError
            If one is altered.
        """
        if len(self._chunks) <= 1:
            intact = list(map(_is_intact, self._chunks))
        else:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="dasktune-checks") as pool:
                intact = list(pool.map(_is_intact, self._chunks))
        if not all(intact):
            name = f"c.{intact.index(False)}"
            raise CorruptCheckpointError(f"chunk {name} is altered: CRC32C does not match")

    def __getitem__(self, part: slice) -> Buffer:
        """Return a part; it is a view if it lies in one chunk, else a copy."""
        start, stop, _ = part.indices(self.nbytes)
        pieces, at = [], start
        while at < stop:
            index, offset = divmod(at, self._size)
            pieces.append(self._chunks[index][offset : min(self._size, offset + stop - at)])
            at += pieces[-1].size
        if len(pieces) == 1:
            return pieces[0]
        whole = empty(at - start)
        return np.concatenate(pieces, out=whole) if pieces else whole


def read_array(read: Read, nbytes: int) -> tuple[Chunks, bytes]:
    """Return the data and the attributes of an array.

    Parameters
    ----------
    nbytes
        The size that the array must have.

    Raises
    ------
    CorruptCheckpointError
        If a file is missing or cut short. Checksums are left to `Chunks.check`.
    """
    size = _chunk_size(nbytes)
    names = itertools.chain([METADATA], _chunk_names(nbytes))
    files: list[Buffer] = []
    while batch := list(itertools.islice(names, _AT_ONCE)):
        most = {name: MOST_METADATA if name == METADATA else size + _CRC_BYTES for name in batch}
        files += map(_whole, batch, read(most), itertools.repeat(size))
    metadata, *chunks = files
    attributes = _attributes(metadata.tobytes(), nbytes)
    return Chunks(chunks, nbytes), attributes


def _chunk_count(nbytes: int) -> int:
    return -(-nbytes // _chunk_size(nbytes))


def _chunk_names(nbytes: int) -> Iterator[str]:
    return (f"c.{index}" for index in range(_chunk_count(nbytes)))


def _chunk_size(nbytes: int) -> int:
    """Return the size of equal chunks, a multiple of the alignment of tensors.

    Tensors can then be used in place; the format pads the last chunk to the common size.
    """
    count = -(-nbytes // CHUNK_BYTES)
    if count <= 1:
        return max(1, nbytes)
    return -(-nbytes // count // ALIGNMENT) * ALIGNMENT


def whole_pages(nbytes: int) -> int:
    """Return `nbytes`, rounded up so that each of several chunks begins at a page of memory."""
    count = -(-nbytes // CHUNK_BYTES)
    return nbytes if count <= 1 else -(-nbytes // (count * PAGE)) * count * PAGE


def _pieces(part: Buffer) -> list[Buffer]:
    """Cut a part into pieces; the rest belongs to the last one."""
    starts = range(0, max(1, part.size - _PIECE_BYTES + 1), _PIECE_BYTES)
    return [part[start : start + _PIECE_BYTES] for start in starts[:-1]] + [part[starts[-1] :]]


def _with_crc(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield pieces, and at last the CRC32C of them all."""
    value = 0
    for piece in pieces:
        value = google_crc32c.extend(value, piece)
        yield piece
    yield np.frombuffer(value.to_bytes(_CRC_BYTES, "little"), np.uint8)


def _whole(name: str, content: Buffer | Unreadable | None, size: int) -> Buffer:
    what = name if name == METADATA else f"chunk {name}"
    if content is None:
        raise CorruptCheckpointError(f"{what} is missing")
    if isinstance(content, Unreadable):
        raise CorruptCheckpointError(f"{what} {content.reason}")
    if name != METADATA and content.size != size + _CRC_BYTES:
        raise CorruptCheckpointError(
            f"{what} must have {size + _CRC_BYTES} bytes, got {content.size}"
        )
    return content


def _is_intact(content: Buffer) -> bool:
    *_, crc = _with_crc([content[:-_CRC_BYTES]])
    return np.array_equal(crc, content[-_CRC_BYTES:])


def _head(nbytes: int) -> bytes:
    """Return the metadata up to the attributes."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [nbytes],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [_chunk_size(nbytes)]}},
        # A dot, so that the chunks lie beside the metadata and not one folder further down.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}, {"name": "crc32c"}],
    }
    return json.dumps(metadata)[:-1].encode() + b', "attributes": '


def _attributes(content: bytes, nbytes: int) -> bytes:
    head = _head(nbytes)
    if not content.startswith(head) or not content.endswith(b"}"):
        raise CorruptCheckpointError(f"{METADATA} does not describe {nbytes} bytes as written")
    return content[len(head) : -1]
