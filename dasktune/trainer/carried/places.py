"""Where in a run a value lies that the state holds already."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dasktune.trainer import attributes
from dasktune.trainer.carried.frames import is_own
from dasktune.trainer.carried.kinds import ARRAYS, inner_parts, is_plain_key, kind_of, parts
from dasktune.trainer.optional_torch import torch

Place = tuple[Any, ...]
"""``"state"`` and keys, or ``"tracked"`` and the name of an object and of its part."""


class SavedParts:
    """The places of `Run.state` and of the tracked objects, and of their parts.

    A variable may hold one of them: ``weight = model.weight``, ``seen = run.state["seen"]``.
    """

    def __init__(self, state: Mapping[str, Any], tracked: Mapping[str, Any]) -> None:
        self._tracked = tracked
        self._by_id: dict[int, tuple[Place, Any]] = {}
        for place, value in _all(state, tracked):
            self._by_id.setdefault(id(value), (place, value))
        self._by_place = dict(self._by_id.values())
        self.memory: dict[int, Place] = {}
        """The places by the addresses of the memory that they use."""
        for place, value in self._by_id.values():
            if (address := memory_of(value)) is not None:
                self.memory.setdefault(address, place)

    def of(self, value: Any) -> Place | None:
        """Return the place of a value, or None."""
        known = self._by_id.get(id(value))
        return None if known is None else known[0]

    def is_moved_by_loading(self, place: Place | None) -> bool:
        """Return whether another object may lie at a place once the state is loaded."""
        if place is None or place[0] != "tracked" or len(place) == 2:
            return False
        return not isinstance(self._tracked[place[1]], torch.nn.Module)

    def at(self, place: Place) -> Any:
        """Return the value at a place.

        Raises
        ------
        KeyError
            If there is nothing.
        """
        return self._by_place[place]


def memory_of(value: Any) -> int | None:
    """Return the address of the memory that an array or tensor uses, or None."""
    kind = kind_of(value)
    if kind == "array":
        while kind_of(value.base) == "array":
            value = value.base
        return int(value.__array_interface__["data"][0]) if value.nbytes else None
    if kind in ARRAYS:
        try:
            return value.untyped_storage().data_ptr() or None
        except (NotImplementedError, RuntimeError):  # sparse tensors and others
            return None
    return None


def users_of_memory(values: Iterable[Any]) -> dict[int, list[Any]]:
    """Return the arrays and tensors in values, each once, by the address of their memory."""
    users: dict[int, list[Any]] = defaultdict(list)
    waiting, seen = [*values], dict[int, Any]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if (address := memory_of(value)) is not None:
            users[address].append(value)
        kind = kind_of(value)
        if isinstance(value, torch.nn.Module):
            waiting += [*value.parameters(), *value.buffers()]
        if kind == "other" and is_own(type(value).__module__):
            waiting += [part for _, part in attributes.members(value)]
        else:
            waiting += [part for _, part in inner_parts(value, kind)]
    return dict(users)


def _all(state: Mapping[str, Any], tracked: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    yield from _within(("state",), state, set())
    for name, item in tracked.items():
        place: Place = ("tracked", name)
        yield place, item
        if isinstance(item, torch.nn.Module):
            yield from ((("tracked", name, "", n), part) for n, part in item.named_modules() if n)
            yield from (((*place, n), part) for n, part in item.named_parameters())
            yield from (((*place, n), part) for n, part in item.named_buffers())
        elif isinstance(item, torch.optim.Optimizer):
            yield from _of_optimizer(place, item)
        elif kind_of(item) == "other" and is_own(type(item).__module__):
            for key, part in attributes.members(item):
                yield from _within((*place, key), part, set())


def _of_optimizer(place: Place, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Place, Any]]:
    """Yield the parts of an optimizer but for the parameters, which it does not save."""
    yield (*place, "param_groups"), optimizer.param_groups
    for index, group in enumerate(optimizer.param_groups):
        yield (*place, "param_groups", index), group
        yield (*place, "param_groups", index, "params"), group["params"]
        for number, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            for key, part in state.items():
                if kind_of(part) != "scalar":
                    yield (*place, "state", index, number, key), part


def _within(place: Place, value: Any, seen: set[int]) -> Iterator[tuple[Place, Any]]:
    """Yield a value and its parts that may change in place."""
    kind = kind_of(value)
    if kind in ("scalar", "other") or id(value) in seen:
        return
    seen.add(id(value))
    yield place, value
    for key, part in parts(value, kind):
        if is_plain_key(key):
            yield from _within((*place, key), part, seen)
