"""Everything that a trainer could depend on, inside and outside its state, by path.

If a resumed trainer has the same state and continues differently, its state lacks something. To
find it, everything in reach is written down when a state is saved, and compared after the state
was loaded in another process: attributes of the trainer, the variables of a training function,
the global variables that its code reads, the attributes of its classes, the defaults and enclosed
variables of its functions, settings of the process, and the global random generators.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import gc
import io
import logging
import operator
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from argparse import Namespace
from bisect import bisect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MappingView
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from dasktune.trainer.base import OWN
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.trainer.generators import (
    generator_state,
    global_states,
    is_generator,
)
from dasktune.trainer.liveness import Liveness
from dasktune.trainer.proof.differences import leaf_digest, leaves
from dasktune.trainer.proof.reached_code import (
    OPAQUE,
    Holder,
    class_attributes,
    code_of,
    global_variables,
    is_ours,
    kept_by,
)
from dasktune.trainer.proof.texts import (
    CONTAINERS,
    MAX_DEPTH,
    PLAIN,
    UNSEEN,
    PartText,
    Unseen,
    home_of,
    is_array,
    is_usual_array,
    loaded_torch,
    memory_of,
    span_of,
    text_at_once,
)
from dasktune.trainer.settings import SETTINGS, hooks_of_all_modules, is_loaded
from dasktune.trainer.slots import slots

GENERATOR = "global random generator"
"""End of the paths of the global generators."""

_LEAST_ID = 2**40
"""Integers from here on, as keys of a dict, are ids of objects."""

SETTING = "setting "
"""Begins the paths of the settings of the process."""

IDS = "ids in "
"""Begins the paths of the keys of dicts that are ids of objects."""

THREAD = "a thread that runs"
"""The path of a running thread of own code."""

ORDER = " (its order)"
"""End of the paths of the orders of dicts."""

VARIABLE = "os.environ"
"""Begins the paths of the variables of the environment."""

_MAX_LEAVES = 50_000

_MACHINERY = frozenset(
    {"_io", "_queue", "_thread", "_weakref", "asyncio", "concurrent", "fsspec", "io", "logging"}
    | {"multiprocessing", "queue", "threading", "weakref", "contextvars", "_contextvars", "_ctypes"}
    | {"socket", "ssl", "subprocess", "selectors", "tempfile", "_abc", "cloudpickle"}
    | {"dask", "distributed", "tornado"}
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

_FRAMEWORKS = frozenset({"builtins", "torch", "jax", "jaxlib", "numba", "cupy", "tensorflow"})
"""Modules whose objects that nobody can look into are handles of a device or of a compiler."""

_TREES = ("cKDTree",)
"""Types of search trees of SciPy: their data decide them."""

_OF_PYTHON = frozenset(
    {"PyCapsule", "cell", "code", "frame", "traceback", "mappingproxy", "method-wrapper"}
    | {"wrapper_descriptor", "method_descriptor", "getset_descriptor", "member_descriptor"}
    | {"classmethod_descriptor", "ellipsis", "NotImplementedType"}
)
"""Types of Python that no module names."""

_MANY_TIMES = (list, tuple, dict, set, frozenset, np.ndarray)
"""Types of values that are compared under each of their paths: that of a batch may not count."""

_BUILT_IN = (list, tuple, dict, set, frozenset, deque, np.ndarray)
"""Types whose own subclasses may have attributes beside their items."""

_TIED = (list, dict, set)
"""Those among them that can change, arrays apart."""

_NAMESPACES = (SimpleNamespace, Namespace, threading.local)
"""Types of objects that are nothing but their attributes."""

_CALLING = type(iter(int, 1))
"""An iterator that calls something, such as a scanner of `re`, which alone knows its position."""

_UNCHANGING_ITERATORS = (type(iter(())), type(iter(range(0))), type(iter("")))
"""Iterators over what cannot change: what is left decides."""

_UNCHANGING = (tuple, frozenset, *OPAQUE, type(None))
"""Types of objects that no step changes."""

_GIVEN = ("division",)
"""Attributes that dasktune gives a trainer, and that differ where others train with it."""

VARIABLES = "variables"
"""Attribute of the trainer of a training function: the variables of the function."""

_CALLABLE = (FunctionType, BuiltinFunctionType, type)
"""Types of values that are compared by their names."""

_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

_OPENED = (*CONTAINERS, deque, Mapping, *_NAMESPACES, FunctionType, MethodType, functools.partial)
"""Types of objects that hold what own code has put there."""
_GENERATORS = {"python": "Python's", "numpy": "NumPy's", "torch": "torch's", "cuda": "CUDA's"}
_OF_MODULES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")
_OF_OPTIMIZERS = ("param_groups", "state", "defaults")


@dataclass(frozen=True, slots=True)
class Tie:
    """The first use of an array or container: path and id, and whether gradients change it."""

    path: str
    identity: int
    is_trained: bool

    def is_that_of(self, other: Tie | None) -> bool:
        """Return whether another look has found the same."""
        return other is not None and (self.path, self.identity) == (other.path, other.identity)


def _is_leaf(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False) and getattr(value, "is_leaf", False))


@dataclass
class Reach:
    """The parts that a trainer could depend on.

    Attributes
    ----------
    left_out
        By path, the parts that nobody can look into, and why.
    holders
        By path, the attributes and variables of own code that can be set.
    spaces
        By path, the attributes of own objects by name.
    unit_of
        By path of a part, the path of the attribute or variable that holds it.
    shared
        The paths of the attributes and variables whose values share an object, or memory, with
        others, or hold one twice.
    arrays
        Weak references to the arrays by path: one and the same while an array lives.
    ties
        By path of an array or container whose memory was reached before: how, and as what.
    """

    trainer: Any
    device: str
    has_trainer: bool = True
    """Whether the trainer itself counts; if not, it may be its class."""
    has_generators: bool = True
    """Whether the global generators count: not if the state holds them in any case."""
    left_out: dict[str, str] = field(default_factory=dict)
    holders: dict[str, Holder] = field(default_factory=dict)
    spaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    unit_of: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    arrays: dict[str, Any] = field(default_factory=dict)
    ties: dict[str, Tie] = field(default_factory=dict)
    _seen: dict[int, object] = field(default_factory=dict)
    """By id; the objects are held, so that no other one gets their ids meanwhile."""
    _open: set[int] = field(default_factory=set)
    """The ids of the containers that are being looked into."""
    _unit: str = ""
    """The path of the attribute or variable that is being looked into."""
    _users: dict[object, tuple[str, str, object]] = field(default_factory=dict)
    """By id, or place in memory, the attribute or variable that was the first to use it, how it
    reaches it, and what it is, held so that no other one gets its id meanwhile."""
    _spans: dict[int, list[tuple[int, int]] | None] = field(default_factory=dict)
    """By place in memory, the addresses of the arrays that use it; None if two share a byte."""
    _ids: dict[str, list[int]] = field(default_factory=dict)
    """By path of a dict, its keys that are ids of objects."""
    _foreign: int = 0
    """How many objects of libraries are being looked into."""
    _tied: int = 0
    """How many of the containers that are being looked into were reached before."""

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield path and value, or text, of every part.

        It draws no numbers, calls no methods of the user's code and changes nothing.
        """
        self._seen[id(self.trainer)] = self.trainer
        if self.has_generators:
            yield from generator_texts(self.device).items()
        yield from self._all_leaves()
        for path, ids in self._ids.items():
            owners = [self._users.get(each, ("", "no part", None))[1] for each in ids]
            yield f"{IDS}{path}", PartText(f"of {', '.join(owners)}")
        # What was looked at may be large, and may go.
        self._seen, self._users, self._spans = {}, {}, {}

    def _all_leaves(self) -> Iterator[tuple[str, Any]]:
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
            yield from self._held(class_attributes(kind))
        yield from self._held(sorted(global_variables(code).items(), key=operator.itemgetter(0)))
        for function in code.functions:
            yield from kept_by(function).items()
        for cached in code.cached:
            path = f"cache of {cached.__qualname__}"
            yield path, cached.cache_info().currsize
            yield from _of_cache(cached, path)
        yield from _of_loggers({*code.texts, *(each.__module__ for each in code.functions)})
        if self.has_trainer and self.has_generators:
            yield from self._threads()

    @functools.cached_property
    def _asked(self) -> frozenset[str]:
        """The attributes of arrays, beside their numbers, that own code reads."""
        kind = self.trainer if isinstance(self.trainer, type) else type(self.trainer)
        return code_of(kind).all_names & {"writeable", "_version"}

    @property
    def _liveness(self) -> Liveness:
        return Liveness.of(self.trainer if isinstance(self.trainer, type) else type(self.trainer))

    def _threads(self) -> Iterator[tuple[str, Any]]:
        """Yield the threads that run own code: nobody can look into their variables."""
        for thread in threading.enumerate():
            target = getattr(thread, "_target", None)
            if is_ours(getattr(target, "__func__", target)) or is_ours(type(thread)):
                yield THREAD, Unseen(f"{UNSEEN}{type(thread).__name__}")

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
        self._note_space("trainer", own)
        liveness = self._liveness
        yield from sorted(roots.items(), key=lambda each: liveness.is_dead(each[0], before="train"))

    def _held(self, holders: Iterable[tuple[str, Holder]]) -> Iterator[tuple[str, Any]]:
        """Yield path and value of variables that can be set."""
        for path, holder in holders:
            self.holders[path] = holder
            yield path, holder.value

    def _note_space(self, path: str, space: dict[str, Any]) -> None:
        """Note the attributes of an own object: they can be set."""
        self.spaces[path] = space
        for name in space:
            self.holders[f"{path}.{name}"] = Holder(space, name)

    def _leaves(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield path and value, or text, of every part of a value."""
        outer = self._unit
        if not depth or path in self.holders:
            self._unit = path
        self.unit_of[path] = self._unit
        if isinstance(value, Enum):
            yield path, PartText(f"{type(value).__qualname__} {value.name}")
        elif isinstance(value, (*PLAIN, Unseen)):
            yield path, value
            if is_ours(type(value)):  # a subclass may have attributes
                yield from self._own_attributes(value, path, depth)
        else:
            yield from self._leaves_of_object(value, path, depth)
        self._unit = outer

    def _own_attributes(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield what an object of an own subclass of a plain type has beside its value."""
        for name, item in getattr(value, "__dict__", {}).items():
            yield from self._leaves(item, f"{path}.{name}", depth + 1)

    def _leaves_of_object(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        if is_usual_array(value):  # there may be thousands
            is_new = id(value) not in self._users
            self._note_use(value, path)
            self.arrays[path] = weakref.ref(value)
            if is_new or type(value) is np.ndarray:
                yield path, value
                if self._asked:
                    yield from self._told_by_array(value, path)
            if is_new and type(value) is not np.ndarray:
                yield from self._beside_tensor(value, path, depth)
            return
        if isinstance(value, _CALLABLE):
            yield path, PartText(_name_of(value))
        if isinstance(value, OPAQUE):
            owner = getattr(value, "__self__", None)  # that of `losses.append`
            self._note_use(owner, path)
            if owner is not None and not isinstance(owner, (ModuleType, type)):
                yield from self._leaves(owner, f"{path}.__self__", depth + 1)
            return
        is_tied = self._note_use(value, path)
        is_within = isinstance(value, _MANY_TIMES) and id(value) not in self._open
        if id(value) in self._seen and not is_within:
            return
        if depth > MAX_DEPTH:
            self.left_out[path] = f"it lies more than {MAX_DEPTH} levels deep"
            return
        self._seen[id(value)] = value
        self._open.add(id(value))
        self._tied += is_tied
        yield from self._within(value, path, depth)
        self._tied -= is_tied
        self._open.discard(id(value))

    def _note_use(self, value: Any, path: str) -> bool:
        """Note which attribute or variable uses an object; return whether it was reached before."""
        if isinstance(value, _UNCHANGING):
            return False
        memory = memory_of(value)
        before: tuple[str, object] | None = None
        for key in (id(value),) if memory in (None, id(value)) else (id(value), memory):
            unit, first, known = self._users.setdefault(key, (self._unit, path, value))
            if first is not path:
                self.shared |= {unit, self._unit}
                before = before or (first, known)
        if before is None:
            return False
        if memory is not None and self._is_apart(value, memory, before[1]):
            return True  # such as batches of one order: none changes another
        if not self._tied and (isinstance(value, _TIED) or is_array(value)):
            self.ties[path] = Tie(before[0], id(before[1]), _is_leaf(value) or _is_leaf(before[1]))
        return True

    def _is_apart(self, value: Any, memory: int, first: Any) -> bool:
        """Return whether an array has no byte in common with those that use the same memory."""
        if memory not in self._spans:
            begun = span_of(first)
            self._spans[memory] = None if begun is None else [begun]
        spans, span = self._spans[memory], span_of(value)
        if spans is None or span is None:
            self._spans[memory] = None
            return False
        place = bisect(spans, span)
        near = spans[max(place - 1, 0) : place + 1]
        if any(start < span[1] and span[0] < end for start, end in near):
            self._spans[memory] = None
            return False
        spans.insert(place, span)
        return True

    def _within(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        if isinstance(value, _BUILT_IN) and is_ours(type(value)):
            yield from self._own_attributes(value, path, depth)
        if (text := text_at_once(value)) is not None:
            yield path, text
            if isinstance(value, (set, frozenset)) and self._liveness.is_in_order(path):
                yield f"{path}{ORDER}", PartText(f"order {', '.join(map(_key_text, value))}")
        elif isinstance(value, ContextVar):
            yield from self._leaves(value.get(None), f"{path}.get()", depth + 1)
        elif is_array(value):
            yield path, value
            yield from self._beside_tensor(value, path, depth)
        elif _is_machinery(value) and not isinstance(value, (queue.Queue, threading.local)):
            is_event = callable(getattr(value, "is_set", None))
            if is_event and self._liveness.is_waited_for(path):
                return
            for place, item in _told_by(value, path):
                yield from self._leaves(item, place, depth + 1)
        elif is_generator(value):
            yield path, PartText(reach_digest(generator_state(value)))
        else:
            is_foreign = not (isinstance(value, _OPENED) or is_ours(type(value)))
            self._foreign += is_foreign
            for place, item in self._parts(value, path):
                yield from self._leaves(item, place, depth + 1)
            self._foreign -= is_foreign

    def _told_by_array(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield what an array tells of itself, where own code asks for it."""
        if "writeable" in self._asked and type(value) is np.ndarray:
            yield f"{path}.flags.writeable", bool(value.flags.writeable)
        if "_version" in self._asked and hasattr(value, "_version"):
            yield f"{path}._version", value._version

    def _beside_tensor(self, value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the gradient and the hooks of a tensor."""
        if getattr(value, "is_leaf", False) and getattr(value, "grad", None) is not None:
            yield f"{path}.grad", value.grad
        if isinstance(value, np.ma.MaskedArray):
            yield f"{path}.mask", np.ma.getmaskarray(value)
            yield f"{path}.hardmask", value.hardmask
        is_own = is_ours(type(value)) and isinstance(value, _BUILT_IN)  # seen already
        for name, item in {} if is_own else getattr(value, "__dict__", {}).items():
            if not name.startswith("_"):
                yield from self._leaves(item, f"{path}.{name}", depth + 1)
        for name in _TENSOR_HOOKS:
            hooks = getattr(value, name, None) or {}
            for index, hook in enumerate(hooks.values()):
                yield from self._leaves(hook, f"{path}.{name}[{index}]", depth + 1)

    def _parts(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield path and value of the direct parts of a container, function or object."""
        if isinstance(value, FunctionType):
            yield from kept_by(value).items() if is_ours(value) else ()
        elif isinstance(value, MethodType):
            yield f"{path}.__self__", value.__self__
            if is_ours(value.__func__) or is_ours(type(value.__self__)):
                yield f"{path}.__func__", value.__func__
        elif isinstance(value, functools.partial):
            yield f"{path}.func", value.func
            yield f"{path}.args", value.args
            yield f"{path}.keywords", value.keywords
        elif isinstance(value, Mapping):
            yield from _items(value, path)
            if isinstance(value, dict) and len(value) > 1 and not self._foreign:
                yield f"{path}{ORDER}", PartText(f"order {', '.join(map(_key_text, value))}")
            if not self._foreign and (ids := [key for key in value if _is_id(key)]):
                self._ids[path] = ids
        elif isinstance(value, queue.Queue):
            yield from _items(list(value.queue), path)
        elif isinstance(value, (list, tuple, deque)):
            yield from _items(value, path)
        elif isinstance(value, MappingView):
            yield from _items(list(value), path)  # type: ignore[call-overload]
        elif isinstance(value, GeneratorType):
            yield from _of_generator(value, path)
        elif isinstance(value, Iterator) and not is_ours(type(value)):
            yield from _of_iterator(value, path)
        elif _has_library_state(value):
            # Names such as "fc.weight" are clearer than the attributes behind them, and a library
            # knows which of its attributes are only caches.
            yield from self._parts_of_state(value, path)
        else:
            yield from self._attributes(value, path)

    def _attributes(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if getattr(value, "num_workers", 0) and home_of(value) == "torch":
            self.left_out[path] = "it has worker processes, whose memory nobody can look into"
        is_own = is_ours(type(value))
        if is_own:
            yield f"{path}.__class__", type(value)
        if is_own or isinstance(value, _NAMESPACES):
            self._note_space(path, getattr(value, "__dict__", {}))
        names = [*getattr(value, "__dict__", ()), *slots(type(value))]
        if names:
            for name in names:
                # Libraries note there what they have found out about a value, such as its order.
                if is_own or not name.startswith(("_has_", "_cache", "_item_cache")):
                    yield f"{path}.{name}", getattr(value, name, None)
            return
        kind = type(value)
        if isinstance(value, _NAMESPACES) or (kind.__flags__ & _HEAP_TYPE and is_ours(kind)):
            return  # an object without attributes
        reduced = _reduced(value)
        if reduced is None:
            self.left_out[path] = f"nobody can look into a {kind.__name__}"
            # What a library holds in its own objects is its affair.
            if not _is_handle(value) and self._foreign == 1:
                yield path, Unseen(f"{UNSEEN}{kind.__name__}")
            return
        for index, item in enumerate(reduced):
            yield f"{path} (a {kind.__name__}, part {index})", item

    def _parts_of_state(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        torch = loaded_torch()
        if torch is not None and isinstance(value, torch.nn.Module):
            yield from self._parts_of_module(value, path)
            return
        for place, item in leaves(_state_of(value), ""):
            yield f"{path}{place}", item
        for name, item in getattr(value, "__dict__", {}).items():
            if any(map(_is_own_code, item if isinstance(item, (list, tuple)) else [item])):
                yield f"{path}.{name}", item
        if torch is not None and isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                for parameter in group["params"]:
                    self._note_use(parameter, path)
            yield from self._outside_state(value, path, _OF_OPTIMIZERS)

    def _parts_of_module(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, parameter in value.named_parameters():
            yield f"{path}[{name!r}]", parameter
            if not parameter.requires_grad:
                yield f"{path}[{name!r}].requires_grad", False
        for name, part in value.named_modules():
            for buffer_name, buffer in part._buffers.items():
                place = f"{path}[{name + '.' * bool(name) + buffer_name!r}]"
                self.holders[place] = Holder(part._buffers, buffer_name)
                yield place, buffer
            place = f"{path}{'.' if name else ''}{name}"
            yield f"{place}.training", part.training
            # A lazy module becomes another one in its first step.
            yield f"{place}.__class__", getattr(part, "cls_to_become", None) or type(part)
            yield from self._outside_state(part, place, _OF_MODULES)
            yield from _of_scripted(part, place)

    def _outside_state(
        self, value: Any, path: str, inside: tuple[str, ...]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of a module or an optimizer that its `state_dict` leaves out.

        Of a library's class only public ones, and hooks: it knows what its private ones are for.
        """
        is_own = is_ours(type(value))
        if is_own:  # a library's module that lacks an attribute may be another module
            self.spaces[path] = vars(value)
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
            elif not name.startswith("_") or (is_own and name not in _PRIVATE):
                self.holders[f"{path}.{name}"] = Holder(vars(value), name)
                yield f"{path}.{name}", item


_HEAP_TYPE = 1 << 9


def generator_texts(device: str) -> dict[str, PartText]:
    """Return texts of the states of the global random generators by path."""
    return {
        generator_path(name): PartText(reach_digest(state))
        for name, state in global_states(device).items()
    }


def generator_path(name: str) -> str:
    """Return the path of a global random generator by its name in `global_states`."""
    return f"{_GENERATORS[name]} {GENERATOR}"


def settings() -> dict[str, Any]:
    """Return the settings of this process that change results, by path."""
    values: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if is_loaded(setting):
            values |= {f"{SETTING}{name}{part}": text for part, text in setting.texts().items()}
    torch = loaded_torch()
    if torch is not None and hasattr(torch, "get_num_threads"):
        values[f"{SETTING}torch threads"] = torch.get_num_threads()
    if errors := [repr(each[1:]) for each in warnings.filters if each[0] == "error"]:
        values[f"{SETTING}warnings"] = f"errors: {', '.join(errors)}"
    for name, hooks in hooks_of_all_modules().items():
        if hooks:
            names = ", ".join(getattr(each, "__qualname__", "") for each in hooks.values())
            values[f"{SETTING}torch {name}"] = f"of all modules: {names}"
    return {**values, f"{SETTING}folder": os.getcwd()}


# ------------------------------------------------------------------------------- the code


# -------------------------------------------------------------------------------- the parts


def _items(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield f"len({path})", len(value)
    if isinstance(value, Mapping):
        for index, (key, item) in enumerate(list(value.items())):
            yield f"{path}[{key if _is_named(key) else index!r}]", item
    else:
        for index, item in enumerate(list(value)):
            yield f"{path}[{index}]", item


def _key_text(key: Any) -> str:
    return repr(key) if _is_named(key) else ""


def _is_named(key: Any) -> bool:
    """Return whether a key has a name; an id is of the process, as is the text of an object."""
    if isinstance(key, tuple):
        return all(map(_is_named, key))
    return isinstance(key, PLAIN) and not _is_id(key)


def _is_id(key: Any) -> bool:
    return isinstance(key, int) and key > _LEAST_ID


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


def _of_scripted(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module of `torch.jit.script`, which live outside of Python."""
    kind = vars(module).get("_concrete_type")
    for name in getattr(kind, "get_attributes", dict)():
        item = getattr(module, name, None)
        if isinstance(item, (*PLAIN, list, dict, tuple)) and not name.startswith("_"):
            yield f"{path}.{name}", item


def _of_cache(cached: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the results that a cache without a limit holds; one with a limit shows none."""
    for inner in gc.get_referents(cached) if cached.cache_info().maxsize is None else ():
        if type(inner) is dict and inner and "__wrapped__" not in inner:
            for index, result in enumerate(inner.values()):
                yield f"{path}[{index}]", result


LEVEL = "level of the logger "
"""Begins the paths of the levels of loggers; one that is not there yet has the level 0."""


def _of_loggers(names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the levels of loggers that own code may name, and their handlers of own classes."""
    loggers = logging.root.manager.loggerDict
    for name in sorted(names & loggers.keys()):
        logger = loggers[name]
        if isinstance(logger, logging.Logger):
            yield f"{LEVEL}{name}", logger.level
            yield from _of_handlers(logger, name)
    yield from _of_handlers(logging.root, "root")


def _of_handlers(logger: logging.Logger, name: str) -> Iterator[tuple[str, Any]]:
    for part in (*logger.handlers, *logger.filters):
        if is_ours(type(part)):
            yield f"{type(part).__name__} of the logger {name}", vars(part)


def _of_iterator(value: Iterator[Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield where an iterator stands, as far as it tells."""
    length = operator.length_hint(value, -1)
    place = value.index if isinstance(value, np.flatiter) else length
    yield f"{path} (an iterator)", place
    if isinstance(value, _UNCHANGING_ITERATORS):
        reduced: Any = value.__reduce__()
        (items, *_), first = reduced[1], reduced[2] if len(reduced) > 2 else 0
        yield f"{path} (an iterator)[0]", items[first:]
    elif type(value).__module__ in ("builtins", "itertools"):
        for index, item in enumerate(_reduced(value) or ()):
            yield f"{path} (an iterator)[{index}]", item
    if isinstance(value, _CALLING):
        yield f"{path} (an iterator)", Unseen(f"{UNSEEN}{type(value).__name__}")
    elif length == -1 and home_of(value) not in ("builtins", "itertools"):
        names = vars(value) if hasattr(value, "__dict__") else {}
        yield from ((f"{path}.{name}", item) for name, item in names.items())
        if not names and home_of(value) not in _FRAMEWORKS:
            yield f"{path} (an iterator)", Unseen(f"{UNSEEN}{type(value).__name__}")


def _is_handle(value: Any) -> bool:
    """Return whether an object that nobody can look into is a handle, or a part of Python itself.

    Some packages written in C name no module for their classes.
    """
    kind = type(value)
    if home_of(value) != "builtins":
        return home_of(value) in _FRAMEWORKS
    return kind.__name__ in _OF_PYTHON or getattr(builtins, kind.__name__, None) is kind


def _told_by(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what a lock, file or queue tells of itself on which results may depend."""
    if isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
        yield f"{path}.getvalue()", value.getvalue()
        yield f"{path}.tell()", value.tell()
    elif isinstance(value, logging.Logger):
        yield f"{path}.level", value.level
        yield from _of_handlers(value, value.name)
    elif isinstance(value, tempfile.SpooledTemporaryFile):
        yield from _told_by(value._file, path)
    elif isinstance(value, io.IOBase) and not value.closed and value.readable():
        yield from _of_file(value, path)
    elif isinstance(value, threading.Semaphore):
        yield f"{path}._value", value._value
    elif callable(getattr(value, "is_set", None)):  # an event of threads, processes or asyncio
        yield f"{path}.is_set()", bool(value.is_set())
    elif callable(getattr(value, "locked", None)):
        yield f"{path}.locked()", bool(value.locked())
    elif isinstance(value, (WeakKeyDictionary, WeakValueDictionary, Context)):
        yield f"{path} (its values)", [*value.values()]
    elif isinstance(value, (queue.SimpleQueue, asyncio.Queue)):
        yield f"{path}.qsize()", value.qsize()
        if isinstance(value, queue.SimpleQueue) and not value.empty():
            yield f"{path} (what it holds)", Unseen(f"{UNSEEN}SimpleQueue")
    elif isinstance(value, Future):
        yield path, Unseen(f"{UNSEEN}Future")
    elif type(value).__name__ in ("Synchronized", "SynchronizedArray"):
        raw = value.get_obj()
        yield f"{path}.value", raw.value if hasattr(raw, "value") else [*raw]
    elif isinstance(value, subprocess.Popen) and value.poll() is None:
        yield path, Unseen(f"{UNSEEN}Popen")


def _of_file(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the position of an open file that can be read, and its size if it can be written."""
    if not value.seekable():
        return
    try:
        yield f"{path}.tell()", value.tell()
    except OSError:  # a loop over its lines reads ahead
        yield f"{path}.tell()", Unseen(f"{UNSEEN}{type(value).__name__}")
    if value.writable():  # one that is only written is a log
        with suppress(OSError, ValueError):  # it may lie in memory
            value.flush()
            yield f"size of {path}", os.fstat(value.fileno()).st_size


def _reduced(value: Any) -> list[Any] | None:
    """Return the parts by which an object written in C is copied; None without any."""
    if type(value).__name__ in _TREES:  # its copy has addresses
        return [value.data]
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
    torch = loaded_torch()
    if torch is not None and isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return True
    name = home_of(value)
    return name == "dasktune" or (bool(name) and is_installed_name(name))


def _is_machinery(value: Any) -> bool:
    """Return whether a value is of a class of `_MACHINERY`, or of a library's class below one."""
    kind = type(value)
    kinds = (kind,) if is_ours(kind) else kind.__mro__
    modules = [each.__module__ or "" for each in kinds]
    is_compiler = modules[0].startswith(_COMPILERS)
    return is_compiler or any(name.partition(".")[0] in _MACHINERY for name in modules)


_PRIVATE = frozenset({"_is_full_backward_hook", "_compiled_call_impl", "_is_hf_initialized"})


def _is_own_code(item: Any) -> bool:
    """Return whether a value is a function of own code, or an object with such a call."""
    if isinstance(item, functools.partial):
        return _is_own_code(item.func)
    return is_ours(item) or (callable(item) and is_ours(type(item)))


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


def reach_digest(state: Any) -> str:
    """Return the digest of a whole state, such as that of a generator."""
    return leaf_digest([leaf_digest(item) for _, item in leaves(state, "")])
