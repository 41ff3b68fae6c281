"""The attributes of a torch trainer: objects with a state, values, and others.

*Objects* can save and load themselves (modules, optimizers, schedulers, scalers, loaders,
generators); they are found in containers and in the attributes of other objects, too. *Values*
are numbers, strings, None, arrays, tensors, and lists, tuples, dicts and sets of these. *Others*
(data sets, objects of other classes, a `deque`) cannot be saved: they must be after loading what
they were when the state was saved, which the proof of each resume shows.
"""

from __future__ import annotations

import copy
import io
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from dasktune.errors import StateError
from dasktune.trainer.generators import generator_state, is_generator, restore_generator
from dasktune.trainer.optional_torch import torch
from dasktune.trainer.slots import slots
from dasktune.types import HyperParameters

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
"""Types of values that need no copy."""

MOST_ITEMS = 100_000
"""Items in one attribute that are looked at for objects: a list of all samples may be longer."""


def objects(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects with a state by path, such as ``heads[0]`` or ``agent.net``, each once.

    Raises
    ------
    StateError
        If there is an iterator, because its position can neither be read nor set.
    """
    by_path: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in attributes.items():
        for path, item in items_within(name, value, seen):
            if is_object(item):
                by_path[path] = item
            elif isinstance(item, Iterator) and not is_file(item):
                raise StateError(
                    f"trainer.{path}",
                    f"the position of a {type(item).__name__} cannot be saved; "
                    "draw batches from a ResumableLoader, or make the iterator within train()",
                )
    return by_path


def values(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are values by name."""
    return {name: value for name, value in attributes.items() if is_value(value)}


def is_object(value: object) -> bool:
    """Return whether a value can save and load its own state."""
    if isinstance(value, type):
        return False
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return is_generator(value) or all(callable(method) for method in methods)


def is_prepared(item: object) -> bool:
    """Return whether an object is a prepared loader of Accelerate whose inner loader has no state.

    Then its methods for saving and loading fail.
    """
    inner = getattr(item, "base_dataloader", None)
    return inner is not None and not hasattr(inner, "state_dict")


def within_prepared(loader: Any) -> dict[str, Any]:
    """Return the objects with a state in a loader that Accelerate has prepared, by path.

    A generator of its sampler's own does not count: the sampler seeds it anew in each epoch.
    """
    inner, sampler = loader.base_dataloader, loader.get_sampler()
    own = sampler.generator if hasattr(sampler, "initial_seed") else None
    made = objects({"base_dataloader": inner})
    return {path: item for path, item in made.items() if item is not own or own is inner.generator}


def is_file(value: object) -> bool:
    """Return whether a value is an open file, which is an iterator of its lines."""
    return isinstance(value, io.IOBase)


def is_value(value: object) -> bool:
    """Return whether a value consists of data only."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_value(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, PLAIN) and is_value(item) for key, item in value.items())
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return isinstance(value, (*PLAIN, torch.Tensor))


def holds_arrays(value: object) -> bool:
    """Return whether a value holds arrays or tensors."""
    return any(
        isinstance(item, (np.ndarray, torch.Tensor)) for _, item in items_within("", value, set())
    )


def state_of(item: Any) -> Any:
    """Return the state of an object as dicts, lists, numbers and arrays."""
    if is_generator(item):
        return generator_state(item)
    if is_prepared(item):
        # Between two steps it is between two epochs: an iterator would have been refused.
        inner = {path: state_of(part) for path, part in within_prepared(item).items()}
        return {"iteration": item.iteration, "objects": inner}
    if not isinstance(item, torch.nn.Module):
        return _plain(item.state_dict())
    saved = item.state_dict()
    return {
        "tensors": dict(saved),
        # The next step depends on these, but the module's state_dict leaves them out.
        "buffers": {name: b for name, b in item.named_buffers() if name not in saved},
        "evaluating": [name for name, part in item.named_modules() if not part.training],
        "frozen": [name for name, p in item.named_parameters() if not p.requires_grad],
    }


def load_into(item: Any, state: Any) -> None:
    """Load a state into an object, which stays the same object on the same device."""
    if is_generator(item):
        restore_generator(item, state)
    elif is_prepared(item):
        item.iteration = state["iteration"]
        for path, part in within_prepared(item).items():
            load_into(part, state["objects"][path])
    elif isinstance(item, torch.nn.Module):
        _load_module(item, state)
    else:
        own = item.state_dict()
        state = _typed_like(state, own)
        if isinstance(item, torch.optim.Optimizer):
            # torch moves the state of the parameters, but not a learning rate in a tensor.
            groups = zip(state["param_groups"], own["param_groups"], strict=False)
            state = {**state, "param_groups": [placed_like(*pair) for pair in groups]}
        item.load_state_dict(state)


def revived(saved: Any, current: Any, device: str) -> Any:
    """Return a saved value to take the place of `current`, in place where that is possible.

    Other objects may hold the same array or tensor (an optimizer its parameters), so one
    of the same shape and type is written into. A tensor without predecessor goes to
    `device`.
    """
    if isinstance(saved, torch.Tensor):
        if _same_form(saved, current):
            with torch.no_grad():
                current.copy_(saved)
            return current
        return saved.to(current.device if isinstance(current, torch.Tensor) else device)
    if isinstance(saved, np.ndarray):
        if _same_form(saved, current) and current.flags.writeable:
            current[...] = saved
            return current
        return saved
    if isinstance(saved, (list, tuple)):
        olds = current if isinstance(current, (list, tuple)) else ()
        padded = [*olds, *[None] * (len(saved) - len(olds))]
        items = [revived(s, c, device) for s, c in zip(saved, padded, strict=False)]
        return type(saved)(items)
    if isinstance(saved, dict):
        old = current if isinstance(current, dict) else {}
        if isinstance(current, HyperParameters):  # stored as a dict of what it shows
            return HyperParameters(saved, current.current)
        return type(saved)({key: revived(s, old.get(key), device) for key, s in saved.items()})
    return saved


def placed_like(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved values with each tensor on the device of the trainer's own one."""
    return {
        name: value.to(own[name].device)
        if isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor)
        else value
        for name, value in saved.items()
    }


def is_on_host(value: object) -> bool:
    """Return whether all tensors of a value are on the CPU."""
    devices = {
        item.device.type
        for _, item in items_within("", value, set())
        if isinstance(item, torch.Tensor)
    }
    return devices == {"cpu"}


def detached(value: Any) -> Any:
    """Return a value with its tensors detached from their graphs."""
    return mapped(value, lambda tensor: tensor.detach())


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a value with each of its tensors replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, dict):
        made = copy.copy(value)  # others than dicts are not made from pairs
        for key, item in value.items():
            made[key] = mapped(item, change)
        return made
    return value


def items_within(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield a value and the items in it, each object once, those on the surface first.

    Opens containers, and objects of other classes that cannot save themselves.
    """
    waiting = deque([(path, value)])
    count = 0
    while waiting:
        place, item = waiting.popleft()
        if isinstance(item, PLAIN) or id(item) in seen:
            continue
        seen.add(id(item))
        yield place, item
        count += 1
        inner = ((p, part) for p, part in _parts(place, item) if not isinstance(part, PLAIN))
        waiting.extend(islice(inner, max(0, MOST_ITEMS - count - len(waiting))))


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the direct parts of a container or an object."""
    if isinstance(value, (list, tuple, deque)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        for index, item in enumerate(value.flat):
            yield f"{path}.flat[{index}]", item
    elif not is_object(value) and _can_be_opened(value):
        for name, item in members(value):
            yield f"{path}.{name}", item


def members(value: object) -> list[tuple[str, Any]]:
    """Return names and values of an object's attributes, also those in slots."""
    names = [name for name in slots(type(value)) if hasattr(value, name)]
    by_name = {name: getattr(value, name) for name in names}
    return [*(by_name | getattr(value, "__dict__", {})).items()]


def _can_be_opened(value: object) -> bool:
    """Return whether a trainer's state may lie in an object's attributes.

    Arrays have none. Functions, classes and what the standard library makes (threads, locks,
    loggers, paths) hold much that belongs to the process and not to the training.
    """
    if isinstance(value, (np.ndarray, torch.Tensor, type, ModuleType)):
        return False
    return type(value).__module__.partition(".")[0] not in sys.stdlib_module_names


def _load_module(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    tensors = OrderedDict(state["tensors"])
    # Versions of the module's parts: torch keeps them in an attribute of the dict.
    tensors._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    buffers = dict(module.named_buffers())
    for name, saved in tensors.items():
        if name in buffers and buffers[name].shape != saved.shape:
            _put_buffer(module, name, saved, is_saved=True)
    module.load_state_dict(tensors)
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for name, saved in state["buffers"].items():
            if name not in buffers or buffers[name].shape != saved.shape:
                _put_buffer(module, name, saved)  # it grows, or is made when first needed
            else:
                buffers[name].copy_(saved)
    for name, part in module.named_modules():
        part.training = name not in state["evaluating"]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in state["frozen"])


def _put_buffer(
    module: torch.nn.Module, name: str, saved: torch.Tensor, *, is_saved: bool = False
) -> None:
    """Set a buffer that is not the module's in number or shape, on the module's device."""
    owner, _, last = name.rpartition(".")
    part = module.get_submodule(owner)
    known = part._buffers.get(last) if last in part._buffers else None
    like = known if known is not None else next(module.parameters(), saved)
    part.register_buffer(last, saved.to(like.device), persistent=is_saved)


def _plain(state: Any) -> Any:
    """Return a state with subclasses of dict (a scheduler's Counter) as plain dicts."""
    if isinstance(state, dict):
        return {key: _plain(item) for key, item in state.items()}
    if isinstance(state, (list, tuple)) and not hasattr(state, "_fields"):
        return type(state)(_plain(item) for item in state)
    return state


def _typed_like(state: Any, own: Any) -> Any:
    """Undo `_plain` at the first level, with the types of the object's own state."""
    if not isinstance(own, dict) or not isinstance(state, dict):
        return state
    return {
        key: type(own[key])(value)
        if isinstance(value, dict) and isinstance(own.get(key), dict) and type(own[key]) is not dict
        else value
        for key, value in state.items()
    }


def _same_form(saved: Any, current: Any) -> bool:
    return (
        isinstance(current, type(saved) if isinstance(saved, np.ndarray) else torch.Tensor)
        and saved.shape == current.shape
        and saved.dtype == current.dtype
    )
