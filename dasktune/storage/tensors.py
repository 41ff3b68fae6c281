"""Tensors as bytes in one flat buffer: NumPy arrays and scalars, bytes, torch tensors.

A `Source` is a tensor as the training code holds it, a `Tensor` the place that its bytes have
in the buffer. The bytes are in C order of the axes as listed in ``order`` (empty: as they
are), so Fortran arrays and channels-last tensors come back with their strides: the result of
a sum depends on them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.errors import StorageError

Buffer = NDArray[np.uint8]
"""One-dimensional bytes."""

Json = Any
"""What `json.dumps` takes with ``allow_nan=False``."""

_ALIGNMENT = 64
_NUMPY_KINDS = "biufcmMSUV"
_TORCH_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A tensor to be stored.

    Parameters
    ----------
    value
        Where the bytes come from.
    kind
        ``numpy``, ``scalar`` (of NumPy), ``bytes`` or ``torch``.
    dtype
        The library's own spelling; JSON.
    memory
        Equal for two tensors that are the same memory seen in the same way; None if that
        does not matter.
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
    """Where one tensor lies in the buffer, and what it is."""

    name: str
    kind: str
    dtype: Json
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    order: tuple[int, ...] = ()
    requires_grad: bool = False

    @classmethod
    def placed(cls, source: Source, *, name: str, end: int) -> Tensor:
        """Give a tensor the first aligned place at or after `end`."""
        return cls(
            name=name,
            kind=source.kind,
            dtype=source.dtype,
            shape=source.shape,
            offset=-(-end // _ALIGNMENT) * _ALIGNMENT,
            nbytes=math.prod(source.shape) * source.itemsize,
            order=source.order,
            requires_grad=source.requires_grad,
        )

    @property
    def end(self) -> int:
        """Where the bytes end."""
        return self.offset + self.nbytes

    def to_json(self) -> dict[str, Json]:
        """Return the tensor as JSON; what is usual is left out."""
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "offset": self.offset,
            "nbytes": self.nbytes,
            **({"order": list(self.order)} if self.order else {}),
            **({"requires_grad": True} if self.requires_grad else {}),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> Tensor:
        """Return the tensor that `to_json` wrote; raises ValueError or TypeError if it did not."""
        shape, order = tuple(document["shape"]), tuple(document.get("order", ()))
        tensor = cls(**{**document, "shape": shape, "order": order})
        for number in (*shape, tensor.offset, tensor.nbytes):
            if type(number) is not int or number < 0:
                raise ValueError(f"{tensor.name}: sizes must be integers >= 0, got {number!r}")
        if order and sorted(order) != list(range(len(shape))):
            raise ValueError(f"{tensor.name}: order must be a permutation of the axes")
        return tensor

    def write(self, data: Buffer, value: Any) -> None:
        """Copy the bytes of a source's value to their place in the buffer."""
        part = data[self.offset : self.end]
        if not self.nbytes:
            return
        if self.kind == "bytes":
            part[:] = np.frombuffer(value, np.uint8)
        elif self.kind == "torch":
            target = torch_module().from_numpy(part).view(value.dtype).view(self._stored_shape)
            target.copy_(value.permute(self.order or tuple(range(value.dim()))))
        else:
            target = np.ndarray(self._stored_shape, value.dtype, buffer=part)
            target[...] = value.transpose(self.order or range(value.ndim))

    def read(self, data: Buffer) -> Any:
        """Return a fresh object with the bytes at this place of the buffer.

        Raises
        ------
        ValueError, TypeError, RuntimeError
            If there can be no such tensor.
        """
        part = data[self.offset : self.end]
        if self.kind == "torch":
            return self._read_torch(part)
        if self.kind not in ("numpy", "scalar", "bytes"):
            raise ValueError(f"{self.name}: unknown kind {self.kind!r}")
        dtype = np.lib.format.descr_to_dtype(_tuples(self.dtype))
        if not _is_storable(dtype):
            raise ValueError(f"{self.name}: dtype {dtype} is not allowed")
        self._check_size(dtype.itemsize)
        if self.kind == "bytes":
            return part.tobytes()
        array = np.ndarray(self._stored_shape, dtype, buffer=part).copy()
        if self.order:
            array = array.transpose(np.argsort(self.order))
        return array[()] if self.kind == "scalar" else array

    def _read_torch(self, part: Buffer) -> Any:
        """Let torch allocate: kernels may round differently where memory is not aligned."""
        torch = torch_module()
        if self.dtype not in _TORCH_DTYPES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r} is not allowed")
        dtype = getattr(torch, self.dtype)
        self._check_size(dtype.itemsize)
        content = torch.empty(self.nbytes, dtype=torch.uint8)
        content.numpy()[:] = part
        value = content.view(dtype).view(self._stored_shape)
        if self.order:
            value = value.permute(*np.argsort(self.order).tolist())
        return value.requires_grad_() if self.requires_grad else value

    @property
    def _stored_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.order) or self.shape

    def _check_size(self, itemsize: int) -> None:
        if self.nbytes != math.prod(self.shape) * itemsize:
            raise ValueError(
                f"{self.name}: {self.shape} of {self.dtype} does not take {self.nbytes} bytes"
            )


def bytes_source(value: bytes) -> Source:
    """Return bytes as a source."""
    return Source(value=value, kind="bytes", dtype="|u1", shape=(len(value),), itemsize=1)


def numpy_source(value: NDArray[Any], kind: str) -> Source:
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
    return Source(
        value=value,
        kind=kind,
        dtype=spelling,
        shape=value.shape,
        itemsize=dtype.itemsize,
        order=() if value.flags.c_contiguous else _axis_order(value.strides),
        memory=(kind, where, dtype, value.shape, value.strides) if kind == "numpy" else None,
    )


def torch_source(value: Any) -> Source:
    """Return a torch tensor as a source.

    Raises
    ------
    ValueError
        If it is of a subclass, sparse, quantised or without data.
    """
    torch = torch_module()
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise ValueError(f"tensors must be plain, got the subclass {type(value).__qualname__}")
    if value.layout != torch.strided or value.device.type == "meta":
        raise ValueError(f"tensors must be dense, got layout {value.layout} on {value.device}")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _TORCH_DTYPES:
        raise ValueError(f"tensors of dtype {value.dtype} cannot be stored")
    where = value.data_ptr() if value.numel() else id(value)
    flags = (value.requires_grad, value.is_conj(), value.is_neg())
    return Source(
        value=value.detach(),
        kind="torch",
        dtype=dtype,
        shape=tuple(value.shape),
        itemsize=value.element_size(),
        order=() if value.is_contiguous() else _axis_order(value.stride()),
        memory=(value.device, where, dtype, value.shape, value.stride(), *flags),
        requires_grad=value.requires_grad,
    )


def torch_module() -> Any:
    """Import torch when a tensor is met, and not before: it takes seconds."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise StorageError(
            "the state holds torch tensors, and torch is not installed: "
            "pip install 'dasktune[torch]'"
        ) from error


def _axis_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes from the slowest to the fastest in memory."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -abs(strides[axis])))


def _is_storable(dtype: np.dtype[Any]) -> bool:
    return not dtype.hasobject and dtype.kind in _NUMPY_KINDS and dtype.itemsize > 0


def _tuples(description: Json) -> Json:
    """Return a dtype's description with the tuples that JSON turned into arrays."""
    if not isinstance(description, list):
        return description
    return [
        (tuple(name) if isinstance(name, list) else name, _tuples(dtype), *map(tuple, rest))
        for name, dtype, *rest in description
    ]
