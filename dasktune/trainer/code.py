"""Sending a trainer's code to the workers.

A class from an installed package, or from an editable install, travels as its import path, because
every worker has the package, too, and with digests of its code: a worker with another version of
the package, or a driver that changed the class after its import, would train other code than the
fingerprint says.
Any other class (of a script, a study file, a notebook, a test) travels by value:
its code and the code of the modules that it uses and that are not installed; compiled ones are
imported by the workers. Opening such bytes
can run anything, so they go over Dask's own connection, which can run anything anyway, and are
never stored.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import io
import linecache
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from importlib.machinery import EXTENSION_SUFFIXES
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Literal

import cloudpickle

from dasktune.errors import ClusterError, ConfigurationError
from dasktune.trainer.fingerprint.fingerprint import code_parts, differing, followed
from dasktune.trainer.fingerprint.installed import is_editable, is_installed
from dasktune.trainer.fingerprint.late_imports import differing_modules, digests_of
from dasktune.trainer.fingerprint.written import Key
from dasktune.trainer.proof.reached_code import code_of
from dasktune.trainer.settings import Value, carrying, changed_settings

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

_SENT: set[str] = set()
"""The files whose source was sent to this process."""

REGISTERING = threading.RLock()  # a value may call `dumps_by_value` while it is pickled
"""Held while modules are registered: the registry of `cloudpickle` belongs to all threads.

Of two threads the first one would end the registration while the second one still pickles, and
the code of the second one would lack its modules.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCode:
    """A trainer class on its way to another process.

    Parameters
    ----------
    kind
        ``import``: imported by the worker; ``bytes``: contained in `payload`.
    module, qualname
        Module and name of the class.
    payload
        The class by value; empty if it is imported.
    digest
        Checksum of the payload (BLAKE2b, 128 bits, hexadecimal).
    python
        Version of Python that made the payload; other minor versions cannot read it.
    parts
        Digests of the code of an imported class, by name; see `code_parts`.
    sources
        The source of the class by value, by file name: workers look into it, and may have no file.
    late
        Digests of the code of own modules that a class by value imports when it runs, by name.
    settings
        The settings of the driver's process that differ from defaults, by name.
    """

    kind: Literal["import", "bytes"]
    module: str
    qualname: str
    payload: bytes
    digest: str
    python: tuple[int, int]
    parts: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=dict)


def pack(trainer_class: type) -> TrainerCode:
    """Return the code of a class in a form that any worker can open.

    Raises
    ------
    ConfigurationError
        If the class refers to a value that cannot be pickled, such as an open file.
    """
    importable = _is_importable(trainer_class)
    code = None if importable else followed(trainer_class)
    firsts = {} if code is None else code.firsts.changed
    payload = b"" if importable else _by_value(trainer_class, firsts)
    return TrainerCode(
        kind="import" if importable else "bytes",
        module=trainer_class.__module__,
        qualname=trainer_class.__qualname__,
        payload=payload,
        digest=_digest(payload),
        python=sys.version_info[:2],
        parts=code_parts(trainer_class) if importable else {},
        sources={} if importable else _sources_of(trainer_class),
        late={} if code is None else digests_of(code.imported),
        settings=changed_settings(),
    )


def unpack(code: TrainerCode) -> type:
    """Return the class that was packed; runs the code in which it is defined.

    Raises
    ------
    ClusterError
        If the class cannot be imported here, is another one here, or its bytes cannot be read.
    """
    return carrying(_opened(code), code.settings)


def _opened(code: TrainerCode) -> type:
    if code.kind == "import":
        return _imported(code)
    name = f"{code.module}.{code.qualname}"
    if _digest(code.payload) != code.digest:
        raise ClusterError(f"the code of {name} was altered on its way")
    if code.python != sys.version_info[:2]:
        made, here = (".".join(map(str, pair)) for pair in (code.python, sys.version_info[:2]))
        raise ClusterError(f"the code of {name} was packed by Python {made}; this is {here}")
    for file, text in code.sources.items():
        # In the driver's own process the source is known, and may be newer.
        if file in _SENT or file not in linecache.cache:
            # Without a time of change, nobody looks for a newer file.
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            _SENT.add(file)
    try:
        opened = loads_apart(code.payload)
        differs = [*differing_modules(code.late)]
    except (ImportError, AttributeError, pickle.UnpicklingError) as error:
        raise ClusterError(f"the code of {name} cannot be opened here: {error}") from error
    if differs:
        raise ClusterError(
            f"{name} imports modules when it runs that are not the same here as on the driver: "
            f"{', '.join(differs)}; copy the driver's files to the workers, and start the workers "
            "anew if they have loaded the modules before"
        )
    return _checked(opened, name)


def _sources_of(trainer_class: type) -> dict[str, str]:
    """Return the texts of the files with a trainer's own code."""
    files = {function.__code__.co_filename for function in code_of(trainer_class).functions}
    lines = {file: linecache.getlines(file) for file in sorted(files)}
    return {file: "".join(each) for file, each in lines.items() if each}


def _is_importable(trainer_class: type) -> bool:
    module = sys.modules.get(trainer_class.__module__)
    if module is None or not (is_installed(module) or is_editable(module)):
        return False
    try:
        return _attribute(module, trainer_class.__qualname__) is trainer_class
    except AttributeError:
        return False


def _attribute(module: ModuleType, qualname: str) -> object:
    return reduce(getattr, qualname.split("."), module)


def dumps_by_value(thing: object, firsts: Mapping[Key, Any] = _NOTHING) -> bytes:
    """Return a pickle that `cloudpickle` opens in a process without these modules.

    Parameters
    ----------
    firsts
        Values that globals have there in place of their values here.
    """
    with REGISTERING, travelling_by_value(), io.BytesIO() as payload:
        packing = _Packing(payload)
        packing.firsts = firsts
        packing.dump(thing)
        return payload.getvalue()


class _Packing(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Packs some things in other ways than `cloudpickle`.

    Modules of a class of their own, such as ``torch.backends.cudnn``, travel by name, as plain
    modules do. A cached property travels without its lock, which Python 3.11 gives it, and a
    cached function of a module that travels by value without what its cache holds.
    """

    firsts: Mapping[Key, Any] = _NOTHING

    def reducer_override(self, thing: Any) -> Any:
        """Return how a value is packed."""
        if isinstance(thing, ModuleType):
            return self._module(thing)
        if isinstance(thing, functools.cached_property):
            return _cached_property, (type(thing), thing.func, thing.attrname)
        if isinstance(thing, functools._lru_cache_wrapper) and _travels(thing.__module__):
            options = thing.cache_parameters()
            attributes = {
                name: value for name, value in vars(thing).items() if name not in _OF_CACHE
            }
            return _cached, (thing.__wrapped__, options["maxsize"], options["typed"], attributes)
        return super().reducer_override(thing)

    def _module(self, module: ModuleType) -> Any:
        function, arguments = self.dispatch_table[ModuleType](module)
        if len(arguments) == 2:
            self._set_firsts(arguments[1], vars(module))
        return function, arguments

    def _dynamic_function_reduce(self, function: FunctionType) -> Any:
        """Return how a function that travels by value is packed."""
        reduced = super()._dynamic_function_reduce(function)
        self._set_firsts(reduced[2][1]["__globals__"], function.__globals__)
        return reduced

    def _set_firsts(self, names: dict[str, Any], namespace: Mapping[str, Any]) -> None:
        """Set the first values of those names that come from a namespace."""
        for (identity, name), value in self.firsts.items():
            if identity == id(namespace) and name in names:
                names[name] = value


_OF_CACHE = frozenset({"__wrapped__", "cache_parameters", "__doc__", "__annotations__"})
_OF_CACHE |= {"__module__", "__name__", "__qualname__", "__type_params__"}
"""Attributes that `functools` sets on a cached function."""


def _travels(name: str | None) -> bool:
    """Return whether a module travels by value."""
    return name == "__main__" or name in cloudpickle.list_registry_pickle_by_value()


def _cached_property(kind: type, function: Any, name: str | None) -> Any:
    made = kind(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def _cached(
    function: Any, maxsize: int | None, typed: bool, attributes: Mapping[str, object]
) -> Any:
    made = functools.lru_cache(maxsize, typed)(function)
    vars(made).update(attributes)
    return made


def loads_apart(payload: bytes) -> Any:
    """Return the value that `dumps_by_value` has pickled; its classes are new ones each time.

    `cloudpickle` opens a class that it knows in this process in place: it gives the class copies
    of its functions, whose globals are copies, too. Where a worker is a thread of the driver's
    process, training would change the driver's class, and with it the fingerprint of later studies.
    """
    return _Opening(io.BytesIO(payload)).load()


class _Opening(pickle.Unpickler):
    """Opens classes without looking for those that are known by their tracker's identifier."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a global object; of a function that tracks classes, one that does not."""
        thing = super().find_class(module, name)
        if module.partition(".")[0] != "cloudpickle" or not inspect.isfunction(thing):
            return thing
        signature = inspect.signature(thing)
        if "class_tracker_id" not in signature.parameters:
            return thing

        def make_untracked(*arguments: object) -> object:
            bound = signature.bind(*arguments)
            bound.arguments["class_tracker_id"] = None
            return thing(*bound.args, **bound.kwargs)

        return make_untracked


def _by_value(trainer_class: type, firsts: Mapping[Key, Any]) -> bytes:
    try:
        return dumps_by_value(trainer_class, firsts)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        place = "the function itself" if hasattr(trainer_class, "function") else "build()"
        name = _unsendable_global(trainer_class)
        culprit = f" (the global variable {name})" if name else ""
        raise ConfigurationError(
            f"{trainer_class.__qualname__} cannot be sent to workers: {error}{culprit}; make what "
            f"it needs in {place}, or install its package on the workers"
        ) from error


def _unsendable_global(trainer_class: type) -> str:
    """Return the name of a global variable of the code that cannot be pickled; empty if unknown."""
    members = [member for base in trainer_class.__mro__ for member in vars(base).values()]
    functions = [each for each in members if isinstance(each, FunctionType)]
    for function in functions:
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, (FunctionType, ModuleType, type)):
                continue
            try:
                cloudpickle.dumps(value)
            except (TypeError, AttributeError, ValueError, RuntimeError, pickle.PicklingError):
                return name
    return ""


@contextmanager
def travelling_by_value() -> Iterator[None]:
    """Register every loaded module that is not installed for pickling by value, meanwhile."""
    before = set(cloudpickle.list_registry_pickle_by_value())
    ours = [
        module
        for name, module in sys.modules.copy().items()
        if isinstance(module, ModuleType)
        and module.__name__ == name
        and name not in before
        and not str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))
        and not is_installed(module)
    ]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


def _imported(code: TrainerCode) -> type:
    name = f"{code.module}.{code.qualname}"
    try:
        imported = _attribute(importlib.import_module(code.module), code.qualname)
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            f"{name} cannot be imported here: {error}; install its package on the workers"
        ) from error
    opened = _checked(imported, name)
    if differs := differing(code.parts, code_parts(opened)):
        raise ClusterError(
            f"{name} is not the same here as on the driver, it differs in {', '.join(differs)}: "
            "install the same version of its package on the workers, set no attributes of the "
            "package from outside, and compute in build() what depends on the machine"
        )
    return opened


def _checked(value: object, name: str) -> type:
    if not isinstance(value, type):
        raise ClusterError(f"{name} must be a class, got {value!r}")
    return value


def _digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=16).hexdigest()
