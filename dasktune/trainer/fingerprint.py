"""What decides a result beside hyper-parameters and seed, as one digest.

States are found again under the fingerprint of the trainer that made them. It covers the
trainer's code and the code and constants which that refers to, its config, its declared
version, and its data if it says what they are.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from dasktune.errors import ConfigurationError, refuse
from dasktune.trainer.installed import is_installed
from dasktune.trainer.source import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What was covered, and the digest of it.

    Parameters
    ----------
    digest
        BLAKE2b of 128 bits, hexadecimal.
    parts
        By name (``class Net``, ``function augment``, ``config``, ``version``, ``data``)
        the digest of each part, or what could not be covered and why.
    """

    digest: str
    parts: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join([self.digest, *(f"  {name}: {part}" for name, part in self.parts.items())])


def fingerprint(
    trainer_class: type, config: Mapping[str, object], *, depends_on: Iterable[object] = ()
) -> Fingerprint:
    """Return the fingerprint of a trainer with its config.

    Covered are the class, its bases, and the functions, classes and constants that they
    refer to by global name or closure, and so on from there. Code from installed packages
    is covered only if the trainer is of the same package, Python's own and dasktune's
    never: the environment is recorded with every checkpoint instead. What a module holds
    beside that does not count, so a study file may change its search space.

    Parameters
    ----------
    trainer_class
        The trainer. A class method ``fingerprint_data(config)``, if there is one, returns
        a JSON value that identifies its data; see `data_digest`.
    config
        What the trainer gets as ``config``: JSON values. Keys in the class's
        ``ignored_config`` do not count.
    depends_on
        More functions, classes or constants to cover, for what is reached in other ways.

    Raises
    ------
    ConfigurationError
        If the config is not made of JSON values, or source cannot be read.
    """
    ignored = getattr(trainer_class, "ignored_config", ())
    kept = {key: value for key, value in config.items() if key not in ignored}
    refuse(_json_problems(kept, "config"))
    code = _Code(trainer_class)
    roots = [code.add(trainer_class), *(code.add(thing) for thing in depends_on)]
    parts = [*sorted(code.parts), ("config", _digest(kept))]
    parts.append(("version", str(getattr(trainer_class, "version", "1"))))
    if (data := _data(trainer_class, config)) is not None:
        parts.append(("data", _digest(data)))
    return Fingerprint(digest=_digest([roots, parts]), parts=_named(parts))


def data_digest(data: Any) -> str:
    """Return a digest of an array, a tensor, a file, a folder, or a collection of them.

    Parameters
    ----------
    data
        Arrays count by type, shape and content, a path by the content of the file, a
        folder by names and contents of all files below it.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _data_bytes(data):
        digest.update(part)
    return digest.hexdigest()


class _Code:
    """Follows references from one class to all that its results depend on."""

    def __init__(self, home: type) -> None:
        self.parts: list[tuple[str, str]] = []
        self._home = home.__module__.partition(".")[0]
        self._sources = Sources()
        # By identity, and kept alive so that no identity is used twice.
        self._seen: dict[int, object] = {}
        self._instances: dict[int, tuple[object, str]] = {}

    def add(self, thing: Any) -> str:
        """Cover a thing, and return what it is called in what refers to it."""
        if isinstance(thing, functools.partial):
            arguments = [self.add(item) for item in (*thing.args, *thing.keywords.values())]
            return f"partial {self.add(thing.func)} {arguments} {list(thing.keywords)}"
        thing = inspect.unwrap(getattr(thing, "__func__", thing)) if callable(thing) else thing
        if isinstance(thing, ModuleType):
            return f"module {thing.__name__}"
        if isinstance(thing, (FunctionType, type)):
            return self._definition(thing)
        value = self._constant(thing)
        if value is not None:
            return f"constant {value}"
        return self._uncovered(thing)

    def _definition(self, thing: FunctionType | type) -> str:
        if not self._is_ours(thing.__module__):
            # The package only: where in it things are defined moves between versions.
            return f"{(thing.__module__ or '').partition('.')[0]} {thing.__qualname__}"
        kind = "class" if isinstance(thing, type) else "function"
        label = f"{kind} {thing.__qualname__}"
        if id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            bases = [self.add(base) for base in getattr(thing, "__bases__", ())]
            piece = self._sources.piece(thing)
            scope = _scope(thing)
            found = [(chain, self._reference(chain, scope)) for chain in piece.names]
            used = [(".".join(chain), label) for chain, label in found if label]
            self.parts.append((label, _digest([piece.canonical, bases, used])))
        return label

    def _reference(self, chain: tuple[str, ...], scope: Mapping[str, Any]) -> str | None:
        """Return the label of what a dotted name stands for; None if it is not from outside."""
        if chain[0] not in scope:
            return None
        thing = scope[chain[0]]
        for name in chain[1:]:
            if not isinstance(thing, ModuleType) or not self._is_ours(thing.__name__):
                break
            # A submodule that is imported only when it runs is not there yet.
            thing = getattr(thing, name, None)
        return self.add(thing)

    def _constant(self, thing: Any) -> str | None:
        """Return the value of a simple constant as text; None if it is none."""
        if thing is None or isinstance(thing, (bool, int, str)):
            return f"{type(thing).__name__} {thing!a}" if not isinstance(thing, Enum) else None
        if isinstance(thing, (float, complex, bytes, range, np.generic, np.dtype)):
            return f"{type(thing).__name__} {thing!r}"
        if isinstance(thing, (PurePath, re.Pattern)) or _is_torch(thing, "dtype", "device"):
            return repr(thing)
        if _is_torch(thing, "Tensor") or (
            isinstance(thing, np.ndarray) and not thing.dtype.hasobject
        ):
            return f"array {data_digest(thing)}"
        if isinstance(thing, (tuple, list, set, frozenset)):
            items = [self.add(item) for item in thing]
            ordered = items if isinstance(thing, (tuple, list)) else sorted(items)
            return f"{type(thing).__name__} {ordered}"
        if isinstance(thing, Mapping):
            pairs = [f"{self.add(key)}: {self.add(value)}" for key, value in thing.items()]
            return f"{type(thing).__name__} {pairs}"
        return self._instance(thing)

    def _instance(self, thing: Any) -> str | None:
        """Return an object of one of our classes as its class and attributes."""
        kind = type(thing)
        if not self._is_ours(kind.__module__):
            return None
        if isinstance(thing, Enum):
            return f"{self.add(kind)} {thing.name}"
        if id(thing) not in self._instances:
            label = self.add(kind)
            self._instances[id(thing)] = (thing, label)  # should it refer to itself
            names = [*getattr(kind, "__slots__", ()), *getattr(thing, "__dict__", ())]
            values = [(name, self.add(getattr(thing, name, None))) for name in names]
            self._instances[id(thing)] = (thing, f"{label} {values}")
        return self._instances[id(thing)][1]

    def _uncovered(self, thing: Any) -> str:
        kind = type(thing)
        name = getattr(thing, "__name__", "")
        label = f"{kind.__module__}.{kind.__qualname__} {name}".strip()
        if not callable(thing) and id(thing) not in self._seen:
            self._seen[id(thing)] = thing
            self.parts.append((label, "not covered: say what it is in depends_on or version"))
        return label

    def _is_ours(self, name: str | None) -> bool:
        """Return whether code of a module counts."""
        top = (name or "").partition(".")[0]
        if top in ("dasktune", "builtins", "") or top in sys.stdlib_module_names:
            return False
        module = sys.modules.get(name or "")
        return top == self._home or module is None or not is_installed(module)


def _scope(thing: FunctionType | type) -> Mapping[str, Any]:
    """Return what the names in a definition stand for: closures, else the module's names."""
    if isinstance(thing, FunctionType):
        return {**thing.__globals__, **_closure(thing)}
    functions = [
        function
        for member in vars(thing).values()
        if isinstance(
            function := inspect.unwrap(
                getattr(member, "__func__", getattr(member, "fget", member))
            ),
            FunctionType,
        )
    ]
    scope = dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    for function in functions:
        if function.__module__ == thing.__module__:
            scope = {**function.__globals__, **scope, **_closure(function)}
    return scope


def _closure(function: FunctionType) -> dict[str, Any]:
    names = function.__code__.co_freevars
    cells = function.__closure__ or ()
    return {
        name: cell.cell_contents
        for name, cell in zip(names, cells, strict=True)
        if name != "__class__" and _is_filled(cell)
    }


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_torch(thing: Any, *kinds: str) -> bool:
    """Return whether a thing is of a type of torch, without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, tuple(getattr(torch, kind) for kind in kinds))


def _data(trainer_class: type, config: Mapping[str, object]) -> object:
    describe: Callable[[Mapping[str, object]], object] | None
    describe = getattr(trainer_class, "fingerprint_data", None)
    if describe is None:
        return None
    value = describe(config)
    refuse(_json_problems(value, f"{trainer_class.__name__}.fingerprint_data(config)"))
    return value


def _json_problems(value: object, path: str) -> Iterator[str]:
    if value is None or type(value) in (bool, int, str):
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if type(value) in (list, tuple):
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            yield from _json_problems(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{path} must have names as keys, got {key!r}"
            yield from _json_problems(item, f"{path}[{key!r}]")
    else:
        yield f"{path} must be a JSON value, got {value!r} ({type(value).__name__})"


def _data_bytes(data: Any) -> Iterator[bytes | memoryview]:
    if isinstance(data, (str, Path)):
        yield from _file_bytes(Path(data))
    elif isinstance(data, Mapping):
        for key in sorted(data):
            yield f"key {key!r}".encode()
            yield data_digest(data[key]).encode()
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield b"item " + data_digest(item).encode()
    else:
        yield from _array_bytes(data)


def _array_bytes(data: Any) -> Iterator[bytes | memoryview]:
    if _is_torch(data, "Tensor"):
        # Through bytes, because NumPy has no bfloat16.
        torch = sys.modules["torch"]
        yield f"tensor {data.dtype} {tuple(data.shape)}".encode()
        flat = data.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
        return
    if not isinstance(data, np.ndarray) or data.dtype.hasobject:
        raise ConfigurationError(
            f"data must be arrays, tensors or paths, got {type(data).__name__}"
        )
    yield f"array {data.dtype.str} {data.shape}".encode()
    yield np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _file_bytes(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        for file in sorted(item for item in path.rglob("*") if item.is_file()):
            yield f"file {file.relative_to(path).as_posix()!r} ".encode()
            yield data_digest(file).encode()
        return
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                yield block
    except OSError as error:
        raise ConfigurationError(f"data cannot be read: {error}") from error


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _named(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parts by name; those of one name are numbered."""
    named: dict[str, str] = {}
    for name, part in parts:
        count = 2
        unique = name
        while unique in named:
            unique, count = f"{name} ({count})", count + 1
        named[unique] = part
    return named
