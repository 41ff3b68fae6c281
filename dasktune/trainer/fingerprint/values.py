"""The text of a value for the fingerprint: equal for equal values, in every process."""

from __future__ import annotations

import os
import re
import sys
import types
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from struct import Struct
from types import EllipsisType, MemberDescriptorType, NotImplementedType
from typing import Any
from uuid import UUID

import numpy as np

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.data import data_digest, is_torch

_SHOWN_BY_REPR = (
    *(float, complex, bytes, bytearray, range, array, np.dtype, Fraction, Decimal),
    *(date, time, timedelta, tzinfo, slice, UUID, EllipsisType, NotImplementedType),
)


class Values:
    """Describes values by their content.

    Parameters
    ----------
    add
        Returns the label of a value inside another one.
    is_ours
        Returns whether the code of a module counts.
    folders
        Folders of the code: paths below them count without them.
    note
        Called with each value that is described.
    """

    def __init__(
        self,
        add: Callable[[Any], str],
        is_ours: Callable[[str | None], bool],
        folders: tuple[str, ...],
        note: Callable[[Any], None],
    ) -> None:
        self._note = note
        self._add = add
        self._is_ours = is_ours
        self._folders = folders
        # By id; the objects are kept alive so that each id stays unique.
        self._seen: dict[int, tuple[object, str]] = {}
        self._open: set[int] = set()

    def describe(self, thing: Any) -> str | None:
        """Return a value as text; None if its content is unknown."""
        kind = type(thing)
        self._note(thing)
        if id(thing) in self._open:
            return f"{kind.__name__} itself"
        self._open.add(id(thing))
        try:
            text = self._text(thing)
        finally:
            self._open.discard(id(thing))
        if text is None or isinstance(thing, Enum) or not self._is_ours(kind.__module__):
            return text if text is not None else self._instance(thing)
        return f"{self._add(kind)} {text} {self._attributes(thing)}"

    def _text(self, thing: Any) -> str | None:
        kind = type(thing)
        if thing is os.environ:
            return "os.environ"
        if isinstance(thing, Enum):
            return f"{self._add(kind)} {thing.name}"
        if isinstance(thing, np.generic):
            # Versions of NumPy differ in the repr.
            return f"{kind.__name__} {thing.dtype.str} {thing.item()!r}"
        if thing is None or isinstance(thing, (bool, int, str)):
            return f"{kind.__name__} {self.portable(thing)!a}"
        if isinstance(thing, _SHOWN_BY_REPR):
            return f"{kind.__name__} {thing!r}"
        if isinstance(thing, PurePath):
            return repr(kind(self.portable(str(thing))))
        if isinstance(thing, re.Pattern):
            # The repr of a long pattern shows only its beginning.
            return f"{thing!r}{thing.pattern[200:]!r}" if len(thing.pattern) > 150 else repr(thing)
        if isinstance(thing, Struct):
            return f"Struct {thing.format}"
        if kind.__module__ == "dataclasses" and kind.__name__[:1] == "_":
            return f"dataclasses {kind.__qualname__}"  # stands for a default that is missing
        if is_torch(thing, "dtype", "device"):
            return repr(thing)
        return self._array_text(thing) or self._container_text(thing) or self._library_text(thing)

    def _array_text(self, thing: Any) -> str | None:
        kind = type(thing)
        if is_torch(thing, "Tensor"):
            try:
                content = data_digest(thing.detach())
            except ConfigurationError:  # sparse, quantized, or without content
                return None
            return f"{kind.__name__} {content}{' with gradient' if thing.requires_grad else ''}"
        if not isinstance(thing, np.ndarray):
            return None
        if isinstance(thing, np.ma.MaskedArray):
            parts = [thing.data, np.ma.getmaskarray(thing), thing.fill_value]
            return f"masked array {[self._add(part) for part in parts]}"
        if not thing.dtype.hasobject:
            content = data_digest(np.asarray(thing))
        elif thing.dtype.names is None:
            content = f"{thing.shape} {[self._add(item) for item in thing.ravel().tolist()]}"
        else:
            return None
        return f"{'array' if kind is np.ndarray else kind.__name__} {content}"

    def _container_text(self, thing: Any) -> str | None:
        kind = type(thing)
        if isinstance(thing, (tuple, list, deque)):
            length = f" at most {thing.maxlen}" if isinstance(thing, deque) else ""
            return f"{kind.__name__} {[self._add(item) for item in thing]}{length}"
        if isinstance(thing, (set, frozenset)):
            items = sorted(self._add(item) for item in sorted(thing, key=rank))
            return f"{kind.__name__} {items}"
        if isinstance(thing, Mapping):
            pairs = [f"{self._add(key)}: {self._add(value)}" for key, value in thing.items()]
            made = f" {self._add(thing.default_factory)}" if isinstance(thing, defaultdict) else ""
            return f"{kind.__name__} {pairs}{made}"
        return None

    def _library_text(self, thing: Any) -> str | None:
        """Return the text of an object whose class a package defines, if its content is known."""
        kind = type(thing)
        if isinstance(thing, np.vectorize):
            names: tuple[str, ...] = ("pyfunc", "otypes", "signature", "excluded", "cache")
        elif isinstance(thing, np.poly1d):
            names = ("coeffs", "variable")
        elif _is_of(thing, "argparse", "Namespace"):
            names = tuple(vars(thing))
        elif _is_of(thing, "torch.nn", "Module") or _is_of(thing, "torch.utils.data", "Dataset"):
            # Most of what a module keeps for hooks is empty, and differs between versions.
            names = tuple(
                name
                for name, value in vars(thing).items()
                if name[:1] != "_" or (isinstance(value, Sized) and len(value))
            )
        elif _is_of(thing, "pandas", "DataFrame", "Series", "Index"):
            return f"{kind.__name__} {self._table(thing)}"
        else:
            return None
        if self._is_ours(kind.__module__):
            return None  # its attributes count as those of any object
        values = [(name, self._add(getattr(thing, name, None))) for name in names]
        return f"{self._add(kind)} {values}"

    def _table(self, table: Any) -> list[object]:
        """Return the parts of a table of pandas, a column of it, or its index."""
        pandas = sys.modules["pandas"]
        if isinstance(table, pandas.MultiIndex):
            return self._table(table.to_frame(index=False))
        if isinstance(table, pandas.DataFrame):
            columns = [self._table(table.iloc[:, place]) for place in range(table.shape[1])]
            return [self._table(table.columns), self._table(table.index), columns]
        kind, values = table.dtype, table.array
        is_plain = isinstance(kind, np.dtype) and not kind.hasobject
        array = np.asarray(values) if is_plain else np.asarray(values, dtype=object)
        shown: list[object] = [str(kind), self._add(table.name), self._add(array)]
        if isinstance(kind, pandas.CategoricalDtype):
            shown += [self._table(kind.categories), str(kind.ordered)]
        if isinstance(table, pandas.Series):
            shown.append(self._table(table.index))
        return shown

    def portable(self, thing: Any) -> Any:
        """Return text with the folder of the code replaced: it differs between machines."""
        if not isinstance(thing, str):
            return thing
        for folder in self._folders:
            if thing == folder or thing.startswith(folder + os.sep):
                return f"<folder>{thing[len(folder) :].replace(os.sep, '/')}"
        return thing

    def _instance(self, thing: Any) -> str | None:
        """Return the label of an object by its attributes, for the user's and for data classes."""
        kind = type(thing)
        if self._is_ours(kind.__module__) or isinstance(thing, types.SimpleNamespace):
            names = list(_attribute_names(thing))
        elif is_dataclass(thing):
            names = [field.name for field in fields(thing)]
        else:
            return None
        if id(thing) not in self._seen:
            label = self._add(kind)
            self._seen[id(thing)] = (thing, label)  # in case the object refers to itself
            values = [(name, self._add(getattr(thing, name, None))) for name in names]
            self._seen[id(thing)] = (thing, f"{label} {values}")
        return self._seen[id(thing)][1]

    def _attributes(self, thing: Any) -> list[tuple[str, str]]:
        return [(name, self._add(getattr(thing, name, None))) for name in _attribute_names(thing)]


def _is_of(thing: Any, module: str, *names: str) -> bool:
    """Return whether a thing has one of these types of a package, without importing it."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(thing, tuple(getattr(loaded, name) for name in names))


def rank(item: Any) -> tuple[str, str, int]:
    """Return a sort key for the definitions in a set, which has no stable order."""
    line = getattr(getattr(item, "__code__", None), "co_firstlineno", 0)
    return type(item).__name__, getattr(item, "__qualname__", ""), line


def _attribute_names(thing: Any) -> Iterator[str]:
    for kind in type(thing).__mro__:
        if "__slots__" in vars(kind):  # which may be an iterator at its end
            members = vars(kind).items()
            yield from (name for name, slot in members if isinstance(slot, MemberDescriptorType))
    yield from getattr(thing, "__dict__", ())
