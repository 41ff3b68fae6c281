"""One flat array of bytes in the zarr v3 format, as the files it consists of.

The array is ``uint8``, of one dimension, not compressed (float weights shrink by 3 to 8
percent), in as few chunks as objects may be large, each with a CRC32C at its end. Any zarr
reads it. It is written here without zarr because this way the files can be synced and sent
together, an array costs tens of microseconds instead of milliseconds, and because zarr
returns zeros for a chunk that is missing, where a checkpoint must be refused.

References
----------
Zarr core specification, version 3: array metadata, regular grid, codecs ``bytes`` and
``crc32c``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from dasktune.errors import CorruptCheckpointError

Buffer = NDArray[np.uint8]

CHUNK_BYTES = 32 * 2**20
"""Largest chunk; larger arrays are cut into equal ones."""

_METADATA = "zarr.json"
_CRC_BYTES = 4


def array_files(data: Buffer, attributes: Mapping[str, Any]) -> dict[str, list[Buffer]]:
    """Return the files of an array: their content in pieces, by name.

    Parameters
    ----------
    data
        The bytes; they are not copied.
    attributes
        JSON that is kept in the array's metadata.
    """
    size = _chunk_size(data.size)
    files = {
        f"c.{index}": _chunk(data[start : start + size], size)
        for index, start in enumerate(range(0, data.size, size))
    }
    text = json.dumps(_metadata(data.size, attributes), allow_nan=False).encode()
    return {**files, _METADATA: [np.frombuffer(text, np.uint8)]}


def read_array(
    read: Callable[[Sequence[str]], list[Buffer | None]], nbytes: int
) -> tuple[Buffer, dict[str, Any]]:
    """Return the data and the attributes of an array.

    Parameters
    ----------
    read
        Returns the content of the files of these names, None for what does not exist.
    nbytes
        The size that the array must have.

    Raises
    ------
    CorruptCheckpointError
        If a file is missing, cut short or altered.
    """
    attributes = _attributes(read([_METADATA])[0], nbytes)
    size = _chunk_size(nbytes)
    names = [f"c.{index}" for index in range(-(-nbytes // size))]
    chunks = [
        _checked(name, content, size) for name, content in zip(names, read(names), strict=True)
    ]
    data = chunks[0] if len(chunks) == 1 else np.concatenate([*chunks, np.empty(0, np.uint8)])
    return data[:nbytes], attributes


def _chunk_size(nbytes: int) -> int:
    """Cut into equal chunks: the format fills the last one up to the size of the others."""
    count = max(1, -(-nbytes // CHUNK_BYTES))
    return max(1, -(-nbytes // count))


def _chunk(part: Buffer, size: int) -> list[Buffer]:
    fill = np.zeros(size - part.size, np.uint8)
    return [part, fill, _crc(part, fill)]


def _crc(*parts: Buffer) -> Buffer:
    value = 0
    for part in parts:
        value = google_crc32c.extend(value, part)
    return np.frombuffer(value.to_bytes(_CRC_BYTES, "little"), np.uint8)


def _checked(name: str, content: Buffer | None, size: int) -> Buffer:
    if content is None:
        raise CorruptCheckpointError(f"chunk {name} is missing")
    if content.size != size + _CRC_BYTES:
        raise CorruptCheckpointError(
            f"chunk {name} must have {size + _CRC_BYTES} bytes, got {content.size}"
        )
    if not np.array_equal(_crc(content[:size]), content[size:]):
        raise CorruptCheckpointError(f"chunk {name} is altered: its CRC32C does not match")
    return content[:size]


def _metadata(nbytes: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [nbytes],
        "data_type": "uint8",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [_chunk_size(nbytes)]},
        },
        # A dot, so that the chunks lie beside the metadata and not one folder further down.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}, {"name": "crc32c"}],
        "attributes": dict(attributes),
    }


def _attributes(content: Buffer | None, nbytes: int) -> dict[str, Any]:
    if content is None:
        raise CorruptCheckpointError(f"{_METADATA} is missing")
    try:
        metadata = json.loads(content.tobytes())
        attributes: dict[str, Any] = dict(metadata["attributes"])
    except (LookupError, RecursionError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"{_METADATA} cannot be read: {error}") from error
    if metadata != _metadata(nbytes, attributes):
        raise CorruptCheckpointError(f"{_METADATA} does not describe {nbytes} bytes as written")
    return attributes
