"""A trainer's state as one JSON document and one flat buffer, and back; never a pickle.

`encode` copies a state: all tensors go one after the other into a single ``uint8`` array,
because an object store is fast for one large object and slow for many small ones, and all
other values become JSON. `decode` builds new objects from the two. A document names no code, so
a checkpoint from an unknown author can be wrong but cannot run anything.

The document::

    {"format": "dasktune-state", "version": 2, "nbytes": 4608,
     "tensors": [{"name": "state['model']['fc.weight']", "kind": "torch", "dtype": "float32",
                  "shape": [10, 64], "offset": 0, "nbytes": 2560, "blake3": "90c1..."}, ...],
     "state": {"dict": [["epoch", 3], ["model", {"ordered": [[["fc.weight", {"tensor": 0}]]]}]]}}

A JSON null, boolean, number, string or array stands for itself. Any other value is an object
with one key, its kind: ``dict``, ``ordered``, ``tuple``, ``set``, ``size``
(torch.Size), ``tensor`` (index into ``tensors``), ``int`` (hexadecimal, beyond 53 bits),
``float`` and ``complex`` (their bytes in hexadecimal, so that every NaN survives).

The document holds a checksum of every tensor; the digest of the document is that of the state.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dasktune.errors import CorruptCheckpointError, StateError
from dasktune.storage.buffers import Buffer, address, empty
from dasktune.storage.tensors import (
    Json,
    Tensor,
    TensorSource,
    altered,
    bytes_source,
    checksums,
    digest_of,
    numpy_source,
    torch_module,
    torch_source,
)
from dasktune.storage.zarr_array import whole_pages
from dasktune.types import Config, HyperParameters

_FORMAT = "dasktune-state"
VERSION = 2
"""Version of the document; other versions are refused."""

_MAX_DEPTH = 100
_MOST_NAMES = 3
_EXACT_INT = 2**53
_SUPPORTED = (
    "a state may hold None, bool, int, float, complex, str, bytes, list, tuple, set, dict, "
    "OrderedDict, NumPy arrays and scalars, dense torch tensors and torch.Size"
)
_HINTS = (
    ("state_dict", "store its state_dict()"),
    ("get_state", "store its get_state()"),
    ("bit_generator", "store its bit_generator.state"),
    ("getstate", "store its getstate()"),
)


class Bytes(Protocol):
    """Bytes in memory that can be sliced, such as an array."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""

    def __getitem__(self, part: slice, /) -> Buffer:
        """Return the bytes of a part."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot:
    """A copy of a state, ready to be stored.

    Parameters
    ----------
    tree
        All values except tensors; JSON.
    tensors
        The places of the tensors in `data`.
    data
        The bytes of all tensors.
    """

    tree: Json
    tensors: tuple[Tensor, ...]
    data: Buffer

    @property
    def nbytes(self) -> int:
        """Number of bytes of the tensors."""
        return int(self.data.nbytes)

    @cached_property
    def document(self) -> dict[str, Json]:
        """The document; the first access computes the checksums of the tensors."""
        parts = [self.data[tensor.offset : tensor.end] for tensor in self.tensors]
        return {
            "format": _FORMAT,
            "version": VERSION,
            "nbytes": self.nbytes,
            "tensors": list(map(Tensor.to_json, self.tensors, checksums(parts))),
            "state": self.tree,
        }

    @cached_property
    def text(self) -> bytes:
        """The canonical text of the document."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode()

    @cached_property
    def digest(self) -> str:
        """BLAKE3-128 of the document's text, and so of the whole state."""
        return digest_of(self.text)

    @property
    def stored_nbytes(self) -> int:
        """Number of bytes of the stored state: the document and the tensors."""
        return len(self.text) + self.nbytes


def encode(state: object, *, allocate: Callable[[int], Buffer] = empty) -> Snapshot:
    """Return a copy of a state that later changes of the state do not affect.

    Equal arrays in the same memory (tied weights) are stored once. Other repeated objects, and
    arrays that overlap, become separate copies.

    Parameters
    ----------
    state
        The state.
    allocate
        Returns memory of a number of bytes; called once, before copying.

    Raises
    ------
    StateError
        If the state holds a value that cannot be stored; the error names its path.

    Examples
    --------
    >>> snapshot = encode({"epoch": 3, "weights": np.arange(3.0)})
    >>> decode(snapshot.document, snapshot.data)
    {'epoch': 3, 'weights': array([0., 1., 2.])}
    """
    writer = _Encoder()
    tree = writer.node(state, "state", 0)
    data, end = allocate(whole_pages(writer.end)), 0
    start = address(data)
    for tensor, source in zip(writer.tensors, writer.sources, strict=True):
        if end != tensor.offset:
            data[end : tensor.offset] = 0
        end = tensor.end
        tensor.write(data, start, source.value)
    data[end:] = 0
    return Snapshot(tree=tree, tensors=tuple(writer.tensors), data=data)


def decode(document: Mapping[str, Json], data: Bytes, *, copy: bool = True) -> Any:
    """Return the state that a document and its data describe.

    Arrays are writable, torch tensors lie on the CPU. The document is not trusted; the caller
    checks its digest.

    Parameters
    ----------
    document
        The document.
    data
        The bytes of all tensors; each is checked.
    copy
        Whether all arrays get memory of their own; if not, they may use the memory of `data`,
        which the caller gives up.

    Raises
    ------
    CorruptCheckpointError
        If `encode` cannot have written the document, or it does not fit the data.
    StorageError
        If the state holds torch tensors and torch is not installed.
    """
    try:
        return _Decoder(document, data, copy).value(document["state"], 0)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise CorruptCheckpointError(
            f"document of the state cannot be read: {type(error).__name__}: {error}"
        ) from error


class _Encoder:
    """Turns a state into nodes and gives each of its tensors a place."""

    def __init__(self) -> None:
        self.end = 0
        self.tensors: list[Tensor] = []
        self.sources: list[TensorSource] = []
        self._known: dict[tuple[object, ...], int] = {}

    def node(self, value: Any, path: str, depth: int) -> Json:
        kind = type(value)
        if kind in _SCALAR_NODES:
            return _SCALAR_NODES[kind](value)
        if depth > _MAX_DEPTH:
            raise StateError(path, f"must be nested at most {_MAX_DEPTH} deep")
        if kind is list:
            return self._items(value, path, depth)
        if kind is tuple:
            return {"tuple": self._items(value, path, depth)}
        if kind in (dict, HyperParameters, Config):
            return {"dict": self._pairs(value, path, depth)}
        if kind is OrderedDict:
            return {"ordered": self._ordered(value, path, depth)}
        if kind is set:
            return {"set": self._members(value, path)}
        if kind is bytes:
            return self._add(bytes_source(value), path)
        return self._foreign(value, path)

    def _items(self, values: list[Any] | tuple[Any, ...], path: str, depth: int) -> Json:
        # No paths for scalars: the state of a generator has hundreds of numbers.
        return [
            _SCALAR_NODES[type(value)](value)
            if type(value) in _SCALAR_NODES
            else self.node(value, f"{path}[{index}]", depth + 1)
            for index, value in enumerate(values)
        ]

    def _pairs(self, values: Mapping[Any, Any], path: str, depth: int) -> Json:
        return [
            [_key_node(key, path), self.node(value, f"{path}[{key!r}]", depth + 1)]
            for key, value in values.items()
        ]

    def _ordered(self, values: Any, path: str, depth: int) -> Json:
        """Return pairs, and the metadata of a torch module's state: the versions of its parts."""
        node = [self._pairs(values, path, depth)]
        if hasattr(values, "_metadata"):
            node.append(self.node(values._metadata, f"{path}._metadata", depth + 1))
        return node

    def _members(self, values: set[Any], path: str) -> Json:
        """Return members sorted by spelling: the order of a set differs between processes."""
        return sorted((_key_node(value, path) for value in values), key=json.dumps)

    def _foreign(self, value: Any, path: str) -> Json:
        """Return the node of a NumPy or torch object; refuse all other types."""
        torch = sys.modules.get("torch")  # without the import there are no tensors
        try:
            if torch is not None and isinstance(value, torch.Tensor):
                return self._add(torch_source(value), path)
            if type(value) is np.ndarray:
                return self._add(numpy_source(value, "numpy"), path)
            if isinstance(value, np.generic):
                return self._add(numpy_source(np.asarray(value), "scalar"), path)
            if torch is not None and type(value) is torch.Size:
                return {"size": list(value)}
        except ValueError as error:
            raise StateError(path, str(error)) from error
        raise StateError(path, _refusal(value))

    def _add(self, source: TensorSource, path: str) -> Json:
        """Return the node of a tensor: a new place, or the place of the same memory."""
        index = len(self.tensors)
        if source.memory is not None:
            known = self._known.setdefault(source.memory, index)
            if known != index:
                return {"tensor": known}
        tensor = Tensor.placed(source, name=path, end=self.end)
        self.tensors.append(tensor)
        self.sources.append(source)
        self.end = tensor.end
        return {"tensor": index}


class _Decoder:
    """Builds a state from nodes and checks each: anyone may have written them."""

    def __init__(self, document: Mapping[str, Json], data: Bytes, copy: bool) -> None:
        if (document["format"], document["version"]) != (_FORMAT, VERSION):
            raise ValueError(
                f"format must be {_FORMAT} version {VERSION}, got {document['format']!r} "
                f"version {document['version']!r}: it was made by another version of dasktune"
            )
        if document["nbytes"] != data.nbytes:
            raise ValueError(f"{document['nbytes']} bytes expected, got {data.nbytes}")
        self._copy = copy
        self._tensors = [Tensor.from_json(tensor) for tensor in document["tensors"]]
        self._check_places(data.nbytes)
        self._parts = [data[tensor.offset : tensor.end] for tensor in self._tensors]
        self._check_parts()
        self._built: dict[int, Any] = {}
        self._readers: dict[str, Callable[[Json, int], Any]] = {
            "dict": lambda node, depth: dict(self._pairs(node, depth)),
            "ordered": self._ordered,
            "tuple": lambda node, depth: tuple(self._items(node, depth)),
            "set": lambda node, depth: {_key(item) for item in node},
            "size": lambda node, depth: torch_module().Size(node),
            "tensor": self._tensor,
        }

    def value(self, node: Json, depth: int) -> Any:
        if depth > _MAX_DEPTH + 1:  # numbers lie one below the innermost list
            raise ValueError(f"nested more than {_MAX_DEPTH} deep")
        if type(node) is list:
            return self._items(node, depth)
        if type(node) is dict and len(node) == 1:
            ((tag, payload),) = node.items()
            if tag in self._readers:
                return self._readers[tag](payload, depth)
        return _scalar(node)

    def _check_places(self, nbytes: int) -> None:
        """Refuse overlapping tensors, by which a small file could fill the memory."""
        end = 0
        for tensor in self._tensors:
            if tensor.offset < end or tensor.end > nbytes:
                raise ValueError(f"{tensor.name}: does not lie in its own part of the data")
            end = tensor.end

    def _check_parts(self) -> None:
        """Refuse altered tensors by name."""
        if names := altered(self._tensors, self._parts):
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            verb = "is" if len(names) == 1 else "are"
            raise CorruptCheckpointError(
                f"{', '.join(names[:_MOST_NAMES])}{more} {verb} altered: BLAKE3 does not match"
            )

    def _items(self, nodes: Json, depth: int) -> list[Any]:
        return [self.value(node, depth + 1) for node in nodes]

    def _pairs(self, nodes: Json, depth: int) -> list[tuple[Any, Any]]:
        return [(_key(key), self.value(node, depth + 1)) for key, node in nodes]

    def _ordered(self, node: Json, depth: int) -> OrderedDict[Any, Any]:
        pairs, *metadata = node
        values = OrderedDict(self._pairs(pairs, depth))
        for extra in metadata:
            values.__dict__["_metadata"] = self.value(extra, depth + 1)
        return values

    def _tensor(self, index: Json, depth: int) -> Any:
        if type(index) is not int or not 0 <= index < len(self._tensors):
            raise ValueError(f"tensor {index!r} is not one of {len(self._tensors)}")
        if index not in self._built:
            tensor, part = self._tensors[index], self._parts[index]
            self._built[index] = tensor.read(part, copy=self._copy)
        return self._built[index]


def _float_node(value: float) -> Json:
    return value if math.isfinite(value) else {"float": struct.pack("<d", value).hex()}


def _int_node(value: int) -> Json:
    return value if -_EXACT_INT <= value <= _EXACT_INT else {"int": hex(value)}


_SCALAR_NODES: dict[type, Callable[[Any], Json]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    str: lambda value: value,
    int: _int_node,
    float: _float_node,
    complex: lambda value: {"complex": struct.pack("<dd", value.real, value.imag).hex()},
}

_SCALAR_READERS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "float": lambda text: struct.unpack("<d", bytes.fromhex(text))[0],
    "complex": lambda text: complex(*struct.unpack("<dd", bytes.fromhex(text))),
}


def _scalar(node: Json) -> Any:
    if node is None or type(node) in (bool, str, int, float):
        return node
    ((tag, payload),) = node.items()
    if tag not in _SCALAR_READERS:
        raise ValueError(f"unknown kind of value {tag!r}")
    return _SCALAR_READERS[tag](payload)


def _key_node(key: object, path: str, depth: int = 0) -> Json:
    """Return the node of a dictionary's key or a set's member."""
    kind = type(key)
    if kind in _SCALAR_NODES:
        return _SCALAR_NODES[kind](key)
    if isinstance(key, tuple) and kind is tuple and depth <= _MAX_DEPTH:
        return {"tuple": [_key_node(item, path, depth + 1) for item in key]}
    raise StateError(
        path,
        "keys and members of sets must be None, bool, int, float, complex, str or tuples of "
        f"those, got {_type_name(key)} {key!r:.80}",
    )


def _key(node: Json) -> Any:
    if type(node) is dict and "tuple" in node:
        return tuple(_key(item) for item in node["tuple"])
    return _scalar(node)


def _refusal(value: object) -> str:
    name = _type_name(value)
    if isinstance(value, defaultdict):
        return f"{name} holds a function and cannot be stored; store dict(...) of it"
    for attribute, hint in _HINTS:
        if hasattr(value, attribute):
            return f"{name} cannot be stored; {hint}"
    return f"{name} cannot be stored; {_SUPPORTED}"


def _type_name(value: object) -> str:
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return prefix + kind.__qualname__
