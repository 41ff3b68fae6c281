"""Everything that a trainer could depend on, inside and outside its state, by path.

If a resumed trainer has the same state and continues differently, its state lacks something. To
find it, everything in reach is written down when a state is saved, and compared after the state
was loaded in another process: attributes of the trainer, the variables of a training function,
the global variables that its code reads, the attributes of its classes, the defaults and enclosed
variables of its functions, settings of the process, and the global random generators.
"""

from __future__ import annotations

import functools
import marshal
import operator
import os
import queue
import sys
import warnings
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dasktune.storage.tensors import digest_of
from dasktune.trainer.base import HARMLESS, OWN
from dasktune.trainer.fingerprint.installed import is_installed, is_installed_name
from dasktune.trainer.generators import generator_state, global_states, is_generator
from dasktune.trainer.liveness import Liveness
from dasktune.trainer.proof.differences import leaf_digest, leaves
from dasktune.trainer.settings import SETTINGS, is_loaded
from dasktune.trainer.slots import slots

GENERATOR = "global random generator"
"""End of the paths of the global generators."""

_LEAST_ID = 2**40
"""Integers from here on, as keys of a dict, are ids of objects."""

SETTING = "setting "
"""Begins the paths of the settings of the process."""

VARIABLE = "os.environ"
"""Begins the paths of the variables of the environment."""

_MAX_DEPTH = 12
_MAX_LEAVES = 50_000
_MAX_NAMED = 16
"""Items of a container of plain values that have a path each; a larger one has one in all."""

_OPAQUE = (BuiltinFunctionType, ModuleType, CodeType, type)
_MACHINERY = frozenset(
    {"_io", "_queue", "_thread", "_weakref", "asyncio", "concurrent", "fsspec", "io", "logging"}
    | {"multiprocessing", "queue", "threading", "weakref", "contextvars", "_contextvars", "_ctypes"}
    | {"socket", "ssl", "subprocess", "selectors", "tempfile", "_abc", "cloudpickle"}
    | {"tqdm", "rich", "alive_progress", "loguru", "structlog", "tensorboard", "tensorboardX"}
    | {"wandb", "mlflow", "neptune", "comet_ml", "clearml", "aim", "swanlab"}
)
"""Modules whose objects carry no result: threads, locks, files, loggers and progress bars."""

_COMPILERS = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch.fx",
    "torch.utils.hooks",
    "numba.core",
)
"""Modules of compilers and handles: what they keep is made anew in each process."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_MANY_TIMES = (list, tuple, dict, set, frozenset, np.ndarray)
"""Types of values that are compared under each of their paths: that of a batch may not count."""

_GIVEN = ("division",)
"""Attributes that dasktune gives a trainer, and that differ where others train with it."""

VARIABLES = "variables"
"""Attribute of the trainer of a training function: the variables of the function."""

_CALLABLE = (FunctionType, BuiltinFunctionType, type)
"""Types of values that are compared by their names."""

_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

_CONTAINERS = (list, tuple, dict, set, frozenset)
_GENERATORS = {"python": "Python's", "numpy": "NumPy's", "torch": "torch's", "cuda": "CUDA's"}
_OF_MODULES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")
_OF_OPTIMIZERS = ("param_groups", "state", "defaults")


class PartText(str):
    """The text of a part that has no value to compare by itself, such as a generator."""


class TimeText(PartText):
    """The text of a date and time, with its epoch seconds."""

    seconds: float


@dataclass(slots=True)
class Reach:
    """The parts that a trainer could depend on.

    Attributes
    ----------
    left_out
        By path, the parts that nobody can look into, and why.
    """

    trainer: Any
    device: str
    has_trainer: bool = True
    """Whether the trainer itself counts; if not, it may be its class."""
    has_generators: bool = True
    """Whether the global generators count: not if the state holds them in any case."""
    left_out: dict[str, str] = field(default_factory=dict)
    _seen: dict[int, object] = field(default_factory=dict)
    """By id; the objects are held, so that no other one gets their ids meanwhile."""
    _open: set[int] = field(default_factory=set)
    """The ids of the containers that are being looked into."""

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield path and value, or text, of every part.

        It draws no numbers, calls no methods of the user's code and changes nothing.
        """
        self._seen[id(self.trainer)] = self.trainer
        if self.has_generators:
            yield from generator_texts(self.device).items()
        inner = (item for path, value in self._roots() for item in self._leaves(value, path, 0))
        for number, item in enumerate(inner):
            if number == _MAX_LEAVES:
                self.left_out[item[0]] = f"it comes after {_MAX_LEAVES:,} other parts"
                return
            yield item

    def _roots(self) -> Iterator[tuple[str, Any]]:
        kind = self.trainer if isinstance(self.trainer, type) else type(self.trainer)
        if self.has_trainer:
            yield from self._own_roots(kind)
        code = code_of(kind)
        for kind in code.classes:
            yield from _class_attributes(kind)
        yield from sorted(_global_variables(code).items())
        for function in code.functions:
            yield from _of_function(function).items()
        for cached in code.cached:
            yield f"cache of {cached.__qualname__}", cached.cache_info().currsize

    def _own_roots(self, kind: type) -> Iterator[tuple[str, Any]]:
        """Yield the trainer's attributes, and the variables of a function, one by one.

        An object is named by the first path to it. So those come last that a step overwrites: what
        they share with others is compared under a name that counts.
        """
        own = getattr(self.trainer, "__dict__", {})
        roots: dict[str, Any] = {}
        for name in sorted({*own, *slots(kind)}):
            if name.startswith(OWN) or name in _GIVEN or not hasattr(self.trainer, name):
                continue
            if name == VARIABLES and "function" in vars(kind):
                roots |= {f"trainer.{name}[{key!r}]": item for key, item in own[name].items()}
            else:
                roots[f"trainer.{name}"] = getattr(self.trainer, name)
        liveness = Liveness.of(kind)
        yield from sorted(roots.items(), key=lambda each: liveness.is_dead(each[0], before="train"))

    def _leaves(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield path and value, or text, of every part of a value."""
        if isinstance(value, _PLAIN):
            yield path, value
            return
        if isinstance(value, _CALLABLE):
            yield path, PartText(_name_of(value))
        is_within = isinstance(value, _MANY_TIMES) and id(value) not in self._open
        if isinstance(value, _OPAQUE) or (id(value) in self._seen and not is_within):
            return
        if depth > _MAX_DEPTH:
            self.left_out[path] = f"it lies more than {_MAX_DEPTH} levels deep"
            return
        self._seen[id(value)] = value
        self._open.add(id(value))
        yield from self._within(value, path, depth)
        self._open.discard(id(value))

    def _within(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        if (text := _text_at_once(value)) is not None:
            yield path, text
        elif isinstance(value, ContextVar):
            yield from self._leaves(value.get(None), f"{path}.get()", depth + 1)
        elif is_array(value):
            yield path, value
            yield from self._beside_tensor(value, path, depth)
        elif _is_machinery(value) and not isinstance(value, queue.Queue):
            return
        elif is_generator(value):
            yield path, PartText(_whole(generator_state(value)))
        else:
            for place, item in self._parts(value, path):
                yield from self._leaves(item, place, depth + 1)

    def _beside_tensor(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the gradient and the hooks of a tensor."""
        if getattr(value, "is_leaf", False) and getattr(value, "grad", None) is not None:
            yield f"{path}.grad", value.grad
        for name in _TENSOR_HOOKS:
            hooks = getattr(value, name, None) or {}
            for index, hook in enumerate(hooks.values()):
                yield from self._leaves(hook, f"{path}.{name}[{index}]", depth + 1)

    def _parts(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield path and value of the direct parts of a container, function or object."""
        if isinstance(value, FunctionType):
            yield from _of_function(value).items() if _is_ours(value) else ()
        elif isinstance(value, MethodType):
            if _is_ours(value.__func__) or _is_ours(type(value.__self__)):
                yield f"{path}.__self__", value.__self__
                yield f"{path}.__func__", value.__func__
        elif isinstance(value, functools.partial):
            yield f"{path}.func", value.func
            yield f"{path}.args", value.args
            yield f"{path}.keywords", value.keywords
        elif isinstance(value, Mapping):
            yield from _items(value, path)
        elif isinstance(value, queue.Queue):
            yield from _items(list(value.queue), path)
        elif isinstance(value, (list, tuple, deque)):
            yield from _items(value, path)
        elif isinstance(value, GeneratorType):
            yield from _of_generator(value, path)
        elif isinstance(value, Iterator):
            yield from _of_iterator(value, path)
        elif _has_library_state(value):
            # Names such as "fc.weight" are clearer than the attributes behind them, and a library
            # knows which of its attributes are only caches.
            yield from _parts_of_state(value, path)
        else:
            yield from self._attributes(value, path)

    def _attributes(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if getattr(value, "num_workers", 0) and _home(value) == "torch":
            self.left_out[path] = "it has worker processes, whose memory nobody can look into"
        is_ours = _is_ours(type(value))
        if is_ours:
            yield f"{path}.__class__", type(value)
        names = [*getattr(value, "__dict__", ()), *slots(type(value))]
        if names:
            for name in names:
                # Libraries note there what they have found out about a value, such as its order.
                if is_ours or not name.startswith(("_has_", "_cache", "_item_cache")):
                    yield f"{path}.{name}", getattr(value, name, None)
            return
        kind = type(value)
        if kind.__flags__ & _HEAP_TYPE and _is_ours(kind):
            return  # an object without attributes
        reduced = _reduced(value)
        if reduced is None:
            self.left_out[path] = f"nobody can look into a {kind.__name__}"
            return
        for index, item in enumerate(reduced):
            yield f"{path} (a {kind.__name__}, part {index})", item


_HEAP_TYPE = 1 << 9


def text_of(value: Any) -> str:
    """Return a text that is equal for equal values: short ones as they are, others by a digest."""
    if isinstance(value, PartText):
        kind = value.partition(" ")[0]
        return str(value) if len(value) <= 40 else f"{kind} {digest_of(value.encode())}"
    if isinstance(value, np.generic):
        text = f"{value.dtype.str} {value.item()!r}"
    elif isinstance(value, _PLAIN):
        text = f"{type(value).__name__} {value!r}"
    elif (numbers := as_numpy(value)) is not None:
        return f"{form_of(value)} {digest_of(_bytes_of(numbers))}"
    else:
        text = f"{type(value).__qualname__} {leaf_digest(value)}"
    if len(text) <= 40:
        return text
    return f"{type(value).__name__} {digest_of(text.encode('utf-8', 'surrogatepass'))}"


def form_of(value: Any) -> str:
    """Return kind, type and shape of an array."""
    return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"


def _bytes_of(numbers: np.ndarray[Any, Any]) -> Any:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def _torch() -> Any:
    """Return torch; None before its import."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numbers: of NumPy, torch, or another package."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if _home(value) == "pandas":
        return False  # its parts are arrays
    torch = _torch()
    if torch is not None and isinstance(value, torch.Tensor):
        return not (value.is_meta or value.is_sparse or value.layout is not torch.strided)
    # A JAX or CuPy array.
    kind = type(value)
    is_array_like = hasattr(kind, "__array__") and hasattr(kind, "dtype") and not _is_ours(kind)
    return is_array_like and isinstance(value.dtype, np.dtype)  # keys of JAX have another


def as_numpy(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array as one of NumPy with the same bytes; None for other values."""
    if not is_array(value):
        return None
    torch = _torch()
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach()
        if tensor.is_quantized:
            tensor = tensor.int_repr()
        tensor = tensor.cpu().resolve_conj().resolve_neg()
        try:
            return tensor.numpy()  # type: ignore[no-any-return]
        except TypeError:  # NumPy has no bfloat16 and no 8-bit floats
            return tensor.contiguous().view(torch.uint8).numpy()  # type: ignore[no-any-return]
    return np.asarray(value)


def generator_texts(device: str) -> dict[str, PartText]:
    """Return texts of the states of the global random generators by name."""
    return {
        f"{_GENERATORS[name]} {GENERATOR}": PartText(_whole(state))
        for name, state in global_states(device).items()
    }


def settings() -> dict[str, Any]:
    """Return the settings of this process that change results, by path."""
    values = {
        f"{SETTING}{name}": repr(setting.read())
        for name, setting in SETTINGS.items()
        if is_loaded(setting)
    }
    torch = _torch()
    if torch is not None and hasattr(torch, "get_num_threads"):
        values[f"{SETTING}torch threads"] = torch.get_num_threads()
    return {**values, f"{SETTING}folder": os.getcwd()}


# ------------------------------------------------------------------------------- the code


@dataclass(frozen=True, slots=True)
class ReachedCode:
    """The functions and classes that a trainer's code can reach, outside installed packages."""

    functions: tuple[FunctionType, ...]
    classes: tuple[type, ...]
    names: tuple[tuple[FunctionType, tuple[str, ...]], ...]
    """The names that each function reads or writes outside itself."""
    cached: tuple[Any, ...]
    """Functions whose results are kept by `functools.lru_cache`."""
    texts: frozenset[str]
    """The texts in the code, among them the variables of the environment that it names."""


_CODE: WeakKeyDictionary[type, ReachedCode] = WeakKeyDictionary()


def code_of(trainer_class: type) -> ReachedCode:
    """Return the code that a trainer's class can reach; found once for each class."""
    known = _CODE.get(trainer_class)
    if known is None:
        known = _CODE[trainer_class] = _find_code(trainer_class)
    return known


def _find_code(trainer_class: type) -> ReachedCode:
    functions: list[FunctionType] = []
    classes: list[type] = []
    cached: list[Any] = []
    seen: dict[int, object] = {}
    waiting: list[Any] = [trainer_class]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, functools.partial):
            waiting.append(thing.func)
            continue
        if _is_cached(thing):
            if _is_ours(thing.__wrapped__) and id(thing) not in seen:
                seen[id(thing)] = thing
                cached.append(thing)
                waiting.append(thing.__wrapped__)
            continue
        if id(thing) in seen or not _is_ours(thing):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, type):
            classes.append(thing)
            waiting += [*thing.__bases__, *map(_reached_from, vars(thing).values())]
            continue
        functions.append(thing)
        named = _names(thing.__code__)
        values = [thing.__globals__.get(name) for name in named]
        waiting += map(_reached_from, values)
        for module in values:
            if isinstance(module, ModuleType) and not is_installed(module):
                inner = vars(module)
                waiting += [_reached_from(inner[name]) for name in named if name in inner]
        waiting += map(_reached_from, _enclosed(thing).values())
        if isinstance(getattr(thing, "__wrapped__", None), FunctionType):
            waiting.append(thing.__wrapped__)
    names = tuple((function, tuple(sorted(_names(function.__code__)))) for function in functions)
    texts = frozenset().union(*(_texts(function.__code__) for function in functions))
    return ReachedCode(tuple(functions), tuple(classes), names, tuple(cached), texts)


def _is_cached(thing: Any) -> bool:
    return hasattr(thing, "cache_info") and isinstance(
        getattr(thing, "__wrapped__", None), FunctionType
    )


def _reached_from(member: Any) -> Any:
    """Return the function behind a method, property or cached function; else the thing itself."""
    if isinstance(member, (FunctionType, type, functools.partial)) or _is_cached(member):
        return member
    if isinstance(member, functools.cached_property):
        return member.func
    inner = getattr(member, "__func__", getattr(member, "fget", None))
    return inner if isinstance(inner, FunctionType) else None


def _global_variables(code: ReachedCode) -> dict[str, Any]:
    """Return the global variables that code reads or writes, by path.

    Of modules outside installed packages it returns the variables that the code names, such as
    ``shared.count``.
    """
    variables: dict[str, Any] = {}
    for function, names in code.names:
        space = function.__globals__
        for name in names:
            if name not in space:
                continue
            value = space[name]
            if isinstance(value, ModuleType):
                if not is_installed(value):
                    inner = vars(value)
                    variables |= {
                        f"global {name}.{part}": inner[part]
                        for part in names
                        if part in inner and not isinstance(inner[part], (*_OPAQUE, FunctionType))
                    }
            elif not isinstance(value, (*_OPAQUE, FunctionType)) and not name.startswith("__"):
                variables[f"global {name}"] = value
    return variables


def _class_attributes(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        is_hidden = name.startswith(("__", OWN, "_abc_")) or name == HARMLESS
        if isinstance(value, FunctionType) and not is_hidden:
            yield f"{kind.__name__}.{name}", value  # another one may take its place
            continue
        if is_hidden or _reached_from(value) is not None or isinstance(value, _OPAQUE):
            continue
        if hasattr(type(value), "__get__") or hasattr(value, "cache_info"):
            continue
        yield f"{kind.__name__}.{name}", value


def _of_function(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function keeps between calls: defaults, closure, attributes."""
    name = function.__qualname__
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    kept = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    kept |= function.__kwdefaults__ or {}
    values = {f"default {each} of {name}": value for each, value in kept.items()}
    values |= {f"variable {each} of {name}": value for each, value in _enclosed(function).items()}
    values |= {
        f"{name}.{each}": value
        for each, value in vars(function).items()
        if each not in ("__wrapped__", HARMLESS)
    }
    return values


def _enclosed(function: FunctionType) -> dict[str, Any]:
    values = {}
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with suppress(ValueError):  # an empty cell
            values[name] = cell.cell_contents
    return values


def _is_ours(thing: Any) -> bool:
    if not isinstance(thing, (FunctionType, type)):
        return False
    name = thing.__module__ or ""
    if name.partition(".")[0] in ("builtins", "dasktune"):
        return False
    module = sys.modules.get(name)
    return module is None or not is_installed(module)


def _texts(code: CodeType) -> frozenset[str]:
    inner = (_texts(item) for item in code.co_consts if isinstance(item, CodeType))
    return frozenset(item for item in code.co_consts if isinstance(item, str)).union(*inner)


def _names(code: CodeType) -> set[str]:
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*inner)


# -------------------------------------------------------------------------------- the parts


def _text_at_once(value: Any) -> PartText | None:
    """Return the text of a value that needs no path for each of its parts; None for others."""
    kind = type(value)
    if isinstance(value, (bytearray, array, memoryview)):
        return PartText(f"{kind.__name__} {digest_of(bytes(value))}")
    is_c_data = any(base.__module__ == "_ctypes" for base in kind.__mro__)
    if is_c_data and not kind.__name__.endswith("_p") and not callable(value):
        return PartText(f"{kind.__name__} {bytes(value)!r}")  # a pointer is of the process
    if kind in _CONTAINERS and len(value) > _MAX_NAMED:
        with suppress(ValueError):  # it holds other objects
            return PartText(f"{kind.__name__} {digest_of(marshal.dumps(value, 2))}")
    if isinstance(value, (set, frozenset)):
        # The text of other objects shows their address.
        items = sorted(repr(x) if isinstance(x, _PLAIN) else _home(x) for x in value)
        return PartText(f"{kind.__name__} {items!r}")
    if isinstance(value, count):
        return PartText(repr(value))
    if isinstance(value, datetime):
        text = TimeText(f"{kind.__name__} {value!r}")
        text.seconds = value.timestamp()
        return text
    if kind.__module__ in ("decimal", "fractions", "datetime", "pathlib", "uuid", "re") or kind in (
        range,
        slice,
    ):
        return PartText(f"{kind.__name__} {value!r}")
    if isinstance(value, np.dtype):
        return PartText(repr(value))
    return None


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield f"len({path})", len(value)
    if isinstance(value, OrderedDict):
        yield f"{path} (its order)", [key if isinstance(key, _PLAIN) else None for key in value]
    if isinstance(value, Mapping):
        for index, (key, item) in enumerate(list(value.items())):
            # An id belongs to the process, and so does the text of another object.
            is_named = isinstance(key, _PLAIN) and not (isinstance(key, int) and key > _LEAST_ID)
            yield f"{path}[{key if is_named else index!r}]", item
    else:
        for index, item in enumerate(list(value)):
            yield f"{path}[{index}]", item


def _of_generator(value: GeneratorType[Any, Any, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield where a suspended generator of own code stands, and its variables."""
    frame = value.gi_frame
    if frame is None:
        yield f"{path} (a generator)", "ended"
        return
    yield f"{path} (a generator)", frame.f_lasti
    if value.gi_running or is_installed_name(
        str(frame.f_globals.get("__name__", "")).partition(".")[0]
    ):
        return
    for name, item in dict(frame.f_locals).items():
        yield f"{path}.{name}", item


def _of_iterator(value: Iterator[Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield where an iterator stands, as far as it tells."""
    yield f"{path} (an iterator)", operator.length_hint(value, -1)
    if type(value).__module__ in ("builtins", "itertools"):
        for index, item in enumerate(_reduced(value) or ()):
            yield f"{path} (an iterator)[{index}]", item


def _reduced(value: Any) -> list[Any] | None:
    """Return the parts by which an object written in C is copied; None without any."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - anything may come of an unknown class
        return None
    if not isinstance(reduced, tuple):
        return []
    parts = [part for part in reduced[1:] if part is not None]
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def _has_library_state(value: Any) -> bool:
    """Return whether a library defines the state of an object, by its `state_dict`."""
    if not all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    torch = _torch()
    if torch is not None and isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return True
    name = _home(value)
    return name == "dasktune" or (bool(name) and is_installed_name(name))


def _is_machinery(value: Any) -> bool:
    """Return whether a value is of a class of `_MACHINERY`, or of a library's class below one."""
    kind = type(value)
    kinds = (kind,) if _is_ours(kind) else kind.__mro__
    modules = [each.__module__ or "" for each in kinds]
    is_compiler = modules[0].startswith(_COMPILERS)
    return is_compiler or any(name.partition(".")[0] in _MACHINERY for name in modules)


def _home(value: Any) -> str:
    """Return the top-level module of a value's class."""
    return (type(value).__module__ or "").partition(".")[0]


def _parts_of_state(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    torch = _torch()
    if torch is not None and isinstance(value, torch.nn.Module):
        yield from _parts_of_module(value, path)
        return
    for place, item in leaves(_state_of(value), ""):
        yield f"{path}{place}", item
    for name, item in getattr(value, "__dict__", {}).items():
        if any(map(_is_own_code, item if isinstance(item, (list, tuple)) else [item])):
            yield f"{path}.{name}", item
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        yield from _outside_state(value, path, _OF_OPTIMIZERS)


def _parts_of_module(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, tensor in (*value.named_parameters(), *value.named_buffers()):
        yield f"{path}[{name!r}]", tensor
    for name, parameter in value.named_parameters():
        if not parameter.requires_grad:
            yield f"{path}[{name!r}].requires_grad", False
    for name, part in value.named_modules():
        place = f"{path}{'.' if name else ''}{name}"
        yield f"{place}.training", part.training
        yield from _outside_state(part, place, _OF_MODULES)


def _outside_state(value: Any, path: str, inside: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module or an optimizer that its `state_dict` leaves out.

    Of a library's class only public ones, and hooks: it knows what its private ones are for.
    """
    is_ours = _is_ours(type(value))
    for name, item in vars(value).items():
        if name in inside:
            continue
        if name.endswith("_hooks") and isinstance(item, dict):
            if item:
                yield f"len({path}.{name})", len(item)
            for index, hook in enumerate(item.values()):
                yield f"{path}.{name}[{index}]", hook
        elif "_hooks" in name or name.endswith("_hook"):
            continue
        elif not name.startswith("_") or (is_ours and name not in _PRIVATE):
            yield f"{path}.{name}", item


_PRIVATE = frozenset({"_is_full_backward_hook", "_compiled_call_impl", "_is_hf_initialized"})


def _is_own_code(item: Any) -> bool:
    """Return whether a value is a function of own code, or an object with such a call."""
    if isinstance(item, functools.partial):
        return _is_own_code(item.func)
    return _is_ours(item) or (callable(item) and _is_ours(type(item)))


def _name_of(value: Any) -> str:
    line = value.__code__.co_firstlineno if "<lambda>" in value.__qualname__ else ""
    return f"{value.__module__}.{value.__qualname__}{line}"


def _state_of(value: Any) -> Any:
    if "torch" in sys.modules:
        # Else this would import torch between two looks, and its generator would differ.
        from dasktune.trainer import attributes

        if attributes.is_prepared(value):
            return attributes.state_of(value)
    return value.state_dict()


def _whole(state: Any) -> str:
    return leaf_digest([leaf_digest(item) for _, item in leaves(state, "")])
