"""Tensors as bytes in one flat buffer: NumPy arrays and scalars, bytes, torch tensors.

A `TensorSource` is a tensor as the training code holds it, a `Tensor` its place in the buffer.
The bytes are in C order of the axes listed in ``order`` (empty: the order of the shape), so
Fortran arrays and channels-last tensors come back with their strides: the result of a sum
depends on them. Each tensor has its own checksum, so that errors can name a damaged tensor.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from dasktune.errors import StorageError
from dasktune.storage.buffers import ALIGNMENT, Buffer, is_aligned

Json = Any
"""A value for `json.dumps` with ``allow_nan=False``."""

DIGEST_BYTES = 16
"""Length of a BLAKE3 digest; making two states with one digest takes 2**64 tries."""

_THREADS = 2
"""Threads that compute checksums; other cores stay free for training."""

_MANY_BYTES = 4 * 2**20
"""Bytes from which on starting threads pays off."""

_SHARED_BYTES = 64 * 2**10
"""Bytes from which on a tensor stays in the memory it was read into: a smaller one would keep
all of that memory alive."""

_NUMPY_KINDS = "biufcmMSUV"
_SPELLING = re.compile(rf"[<>|=][{_NUMPY_KINDS}]\d+(\[[^\[\]]*\])?")
_TORCH_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorSource:
    """A tensor to be stored.

    Parameters
    ----------
    value
        The array, tensor or bytes.
    kind
        ``numpy``, ``scalar`` (of NumPy), ``bytes`` or ``torch``.
    dtype
        The library's own spelling; JSON.
    memory
        Equal for two tensors that are equal views of the same memory; None if they are always
        stored separately.
    """

    value: Any
    kind: str
    dtype: Json
    shape: tuple[int, ...]
    itemsize: int
    order: tuple[int, ...] = ()
    memory: tuple[object, ...] | None = None
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Type, shape and place in the buffer of one tensor."""

    name: str
    kind: str
    dtype: Json
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    order: tuple[int, ...] = ()
    requires_grad: bool = False
    blake3: str = ""

    @classmethod
    def placed(cls, source: TensorSource, *, name: str, end: int) -> Tensor:
        """Return the tensor at the first aligned place at or after `end`."""
        return cls(
            name=name,
            kind=source.kind,
            dtype=source.dtype,
            shape=source.shape,
            offset=-(-end // ALIGNMENT) * ALIGNMENT,
            nbytes=math.prod(source.shape) * source.itemsize,
            order=source.order,
            requires_grad=source.requires_grad,
        )

    @property
    def end(self) -> int:
        """End of the bytes in the buffer."""
        return self.offset + self.nbytes

    def to_json(self, checksum: str) -> dict[str, Json]:
        """Return the tensor as JSON with the checksum of its bytes; defaults are left out."""
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "nbytes": self.nbytes,
            "blake3": checksum,
            **({"order": list(self.order)} if self.order else {}),
            **({"requires_grad": True} if self.requires_grad else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> Tensor:
        """Return the tensor that `to_json` wrote; ValueError or TypeError for other documents."""
        shape, order = tuple(document["shape"]), tuple(document.get("order", ()))
        tensor = cls(**{**document, "shape": shape, "order": order})
        if type(tensor.name) is not str or not tensor.name.isprintable():
            raise ValueError(f"names must be printable text, got {tensor.name!r:.100}")
        if type(tensor.blake3) is not str or len(tensor.blake3) != 2 * DIGEST_BYTES:
            raise ValueError(f"{tensor.name}: blake3 must be {2 * DIGEST_BYTES} digits")
        for number in (*shape, tensor.offset, tensor.nbytes):
            if type(number) is not int or number < 0:
                raise ValueError(f"{tensor.name}: sizes must be integers >= 0, got {number!r}")
        if order and sorted(order) != list(range(len(shape))):
            raise ValueError(f"{tensor.name}: order must be a permutation of the axes")
        return tensor

    def write(self, data: Buffer, start: int, value: Any) -> None:
        """Copy the value of a source to its place in a buffer that begins at address `start`."""
        if not self.nbytes:
            return
        if self.kind == "torch":
            value = value.permute(self.order) if self.order else value
            plain = value.is_cpu and value.is_contiguous()
            if plain and not value.is_conj() and not value.is_neg():
                # torch would start threads and take five times as long for a small tensor.
                ctypes.memmove(start + self.offset, value.data_ptr(), self.nbytes)
                return
            part = data[self.offset : self.end]
            _torch_view(part, value.dtype, self._stored_shape).copy_(value)
        elif self.kind == "bytes":
            data[self.offset : self.end] = np.frombuffer(value, np.uint8)
        else:
            target = np.ndarray(self._stored_shape, value.dtype, data, self.offset)
            target[...] = value.transpose(self.order) if self.order else value

    def read(self, part: Buffer, *, copy: bool = True) -> Any:
        """Return the object whose bytes are `part`, the tensor's part of the buffer.

        Without `copy` a large object may use the memory of `part`. ValueError, TypeError and
        RuntimeError mean that no such tensor exists.
        """
        copy = copy or self.nbytes < _SHARED_BYTES or not part.flags.writeable
        copy = copy or not is_aligned(part)
        if self.kind == "torch":
            return self._read_torch(part, copy)
        if self.kind not in ("numpy", "scalar", "bytes"):
            raise ValueError(f"{self.name}: unknown kind {self.kind!r}")
        dtype = np.lib.format.descr_to_dtype(_tuples(self.dtype))
        if not _is_storable(dtype):
            raise ValueError(f"{self.name}: dtype {dtype} is not allowed")
        self._check_size(dtype.itemsize)
        if self.kind == "bytes":
            return part.tobytes()
        array = np.ndarray(self._stored_shape, dtype, buffer=part)
        if copy:
            array = array.copy()
        if self.order:
            array = array.transpose(np.argsort(self.order))
        return array[()].copy() if self.kind == "scalar" else array

    def _read_torch(self, part: Buffer, copy: bool) -> Any:
        torch = torch_module()
        if self.dtype not in _TORCH_DTYPES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r} is not allowed")
        dtype = getattr(torch, self.dtype)
        self._check_size(dtype.itemsize)
        if copy:
            content = torch.empty(self.nbytes, dtype=torch.uint8)
            content.numpy()[:] = part
            value = content.view(dtype).view(self._stored_shape)
        else:
            value = _torch_view(part, dtype, self._stored_shape)
        if self.order:
            value = value.permute(*np.argsort(self.order).tolist())
        return value.requires_grad_() if self.requires_grad else value

    @property
    def _stored_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.order) if self.order else self.shape

    def _check_size(self, itemsize: int) -> None:
        if self.nbytes != math.prod(self.shape) * itemsize:
            raise ValueError(
                f"{self.name}: {self.shape} of {self.dtype} does not take {self.nbytes} bytes"
            )


def bytes_source(value: bytes) -> TensorSource:
    """Return bytes as a source."""
    return TensorSource(value=value, kind="bytes", dtype="|u1", shape=(len(value),), itemsize=1)


def numpy_source(value: NDArray[Any], kind: str) -> TensorSource:
    """Return an array as a source.

    Raises
    ------
    ValueError
        If its dtype holds objects, or cannot be spelled.
    """
    dtype = value.dtype
    spelling = np.lib.format.dtype_to_descr(dtype) if _is_storable(dtype) else None
    if spelling is None or np.lib.format.descr_to_dtype(spelling) != dtype:
        raise ValueError(f"arrays of dtype {dtype} cannot be stored")
    where = value.__array_interface__["data"][0] if value.size else id(value)
    return TensorSource(
        value=value,
        kind=kind,
        dtype=spelling,
        shape=value.shape,
        itemsize=dtype.itemsize,
        order=() if value.flags.c_contiguous else _axis_order(value.strides),
        memory=(kind, where, dtype, value.shape, value.strides) if kind == "numpy" else None,
    )


def torch_source(value: Any) -> TensorSource:
    """Return a torch tensor as a source.

    Raises
    ------
    ValueError
        If it is of a subclass, sparse, quantised or without data.
    """
    torch = torch_module()
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise ValueError(f"tensors must be plain, got the subclass {type(value).__qualname__}")
    if value.layout is not torch.strided or value.is_meta:
        raise ValueError(f"tensors must be dense, got layout {value.layout} on {value.device}")
    dtype = _torch_names().get(value.dtype)
    if dtype is None:
        raise ValueError(f"tensors of dtype {value.dtype} cannot be stored")
    shape, stride, requires_grad = tuple(value.shape), value.stride(), value.requires_grad
    where = value.data_ptr() if value.numel() else id(value)
    flags = (requires_grad, value.is_conj(), value.is_neg())
    return TensorSource(
        value=value.detach() if requires_grad else value,
        kind="torch",
        dtype=dtype,
        shape=shape,
        itemsize=value.dtype.itemsize,
        order=() if value.is_contiguous() else _axis_order(stride),
        memory=(value.device, where, dtype, shape, stride, *flags),
        requires_grad=requires_grad,
    )


def altered(tensors: Sequence[Tensor], parts: Sequence[Buffer]) -> list[str]:
    """Return the names of tensors whose bytes do not match their checksums."""
    actual = zip(tensors, checksums(parts), strict=True)
    return [tensor.name for tensor, checksum in actual if tensor.blake3 != checksum]


def digest_of(content: memoryview | bytes) -> str:
    """Return the first 128 bits of the BLAKE3 of some bytes, in hexadecimal."""
    threads = _THREADS if len(content) >= _MANY_BYTES else 1
    return blake3(content, max_threads=threads).hexdigest(DIGEST_BYTES)


def checksums(parts: Sequence[Buffer]) -> list[str]:
    """Return the checksums of parts; for many bytes, several at a time."""
    contents = [part.data for part in parts]
    if sum(map(len, contents)) < _MANY_BYTES:
        return list(map(digest_of, contents))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dasktune-digests") as pool:
        return list(pool.map(digest_of, contents))


def torch_module() -> Any:
    """Return torch, imported at the first torch tensor because that takes seconds."""
    known = sys.modules.get("torch")
    if known is not None:
        return known
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise StorageError(
            "the state holds torch tensors, and torch is not installed: "
            "pip install 'dasktune[torch]'"
        ) from error


@cache
def _torch_names() -> dict[Any, str]:
    """Return the names of this torch version's dtypes."""
    torch = torch_module()
    return {getattr(torch, name): name for name in _TORCH_DTYPES if hasattr(torch, name)}


def _torch_view(part: Buffer, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return a tensor that uses the memory of a part of a buffer."""
    return torch_module().from_numpy(part).view(dtype).view(shape)


def _axis_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest in memory."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


def _is_storable(dtype: np.dtype[Any]) -> bool:
    return not dtype.hasobject and dtype.kind in _NUMPY_KINDS and dtype.itemsize > 0


def _tuples(description: Json) -> Json:
    """Return a dtype's description with the tuples that JSON turned into arrays."""
    if not isinstance(description, list):
        # NumPy warns of other spellings, such as "0a", in place of refusing them.
        if not _SPELLING.fullmatch(description):
            raise ValueError(f"dtype {description!r} is not allowed")
        return description
    return [
        (tuple(name) if isinstance(name, list) else name, _tuples(dtype), *map(tuple, rest))
        for name, dtype, *rest in description
    ]
