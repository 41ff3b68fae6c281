"""The options of tracked objects that a training function has made with its hyper-parameters.

A function may write ``SGD([{"params": weights, "weight_decay": run["weight_decay"]}, {"params":
biases, "weight_decay": 0.0}])``. When the value changes from 0.0, only the first option is meant. A
run hands out a number object of its own for each hyper-parameter, and torch keeps the object in the
group. So the object tells the option that came from the run from one with an equal number. Small
integers and texts have one object in all of Python: for these, equal values are not told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType
from typing import Any

from dasktune.trainer.carried.frames import is_own
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.optional_torch import torch
from dasktune.types import Value

_SHARED_INTS = range(-5, 257)
"""Integers of which Python has one object each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionPlace:
    """An option of a tracked object.

    Parameters
    ----------
    line
        The line that sets it, without the value.
    group
        Index of the group of an optimizer; None for a loader.
    """

    item: Any
    name: str
    group: int | None
    line: str

    @property
    def value(self) -> Any:
        """The present value."""
        if self.group is None:
            return self.item.batch_size
        return self.item.param_groups[self.group].get(self.name)

    def put(self, value: Value) -> None:
        """Set a value."""
        if self.group is None:
            self.item.batch_size = value
        else:
            self.item.param_groups[self.group][self.name] = value


@dataclass(slots=True, kw_only=True)
class OptionPlaces:
    """The options of tracked objects with the value of a hyper-parameter of their name.

    Parameters
    ----------
    possible
        Those with an equal value of unknown origin.
    """

    sure: list[OptionPlace] = field(default_factory=list)
    possible: list[OptionPlace] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        name: str,
        values: Mapping[str, Value],
        tracked: Mapping[str, Any],
        constants: Collection[int],
    ) -> OptionPlaces:
        """Return the places of a hyper-parameter where the loop begins.

        Parameters
        ----------
        values
            The hyper-parameters of step 0, as the run hands them out.
        constants
            The ids of numbers that the code names: these came from no run.
        """
        places, value = cls(), values[name]
        strangers = {*constants, *(id(other) for key, other in values.items() if key != name)}
        for place, held in _options(name, tracked):
            if not is_same(place.value, value):
                continue
            if any(each is value for each in held) and _is_unique(value):
                places.sure.append(place)
            elif not (_is_unique(value) and any(id(each) in strangers for each in held)):
                places.possible.append(place)
        if not places.sure and _are_one(places.possible, name, value):
            places.sure, places.possible = places.possible, []
        return places

    def holding(self, value: Value) -> OptionPlaces:
        """Return the places that have a value now."""
        return OptionPlaces(
            sure=[place for place in self.sure if is_same(place.value, value)],
            possible=[place for place in self.possible if is_same(place.value, value)],
        )


def own_copy(value: Value) -> Value:
    """Return an equal value that is another object, where Python allows it."""
    if type(value) is float:
        return value * 1.0
    if type(value) is int and value not in _SHARED_INTS:
        return int(str(value))
    return value


def constants_of(frames: Collection[FrameType]) -> set[int]:
    """Return the ids of the numbers that paused calls, and the code beside them, name."""
    ids: set[int] = set()
    for frame in frames:
        codes = [frame.f_code]
        for value in frame.f_globals.values():
            if isinstance(value, FunctionType) and is_own(str(value.__module__)):
                codes.append(value.__code__)
            elif isinstance(value, (int, float)):
                ids.add(id(value))
        ids.update(id(value) for code in codes for value in _constants(code))
    return ids


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of one type."""
    return type(one) is type(other) and bool(one == other)


def _constants(code: CodeType) -> Iterator[object]:
    waiting: list[Any] = [code]
    while waiting:
        item = waiting.pop()
        if isinstance(item, CodeType):
            waiting += item.co_consts
        elif isinstance(item, tuple):
            waiting += item
        elif isinstance(item, (int, float)):
            yield item


def _options(name: str, tracked: Mapping[str, Any]) -> Iterator[tuple[OptionPlace, list[Any]]]:
    """Yield the options of a name, and the objects that show where each came from."""
    for label, item in tracked.items():
        if isinstance(item, torch.optim.Optimizer):
            for index, group in enumerate(item.param_groups):
                line = f"{label}.param_groups[{index}][{name!r}]"
                place = OptionPlace(item=item, name=name, group=index, line=line)
                # A scheduler keeps here what the function gave.
                yield place, [group.get(name), group.get(f"initial_{name}")]
        elif isinstance(item, ResumableLoader) and name == "batch_size":
            line = f"{label}.batch_size"
            place = OptionPlace(item=item, name=name, group=None, line=line)
            yield place, [item.batch_size]


def _is_unique(value: Value) -> bool:
    """Return whether no other number shares the object of this one."""
    return type(value) is float or (type(value) is int and value not in _SHARED_INTS)


def _are_one(places: list[OptionPlace], name: str, value: Value) -> bool:
    """Return whether places of unknown origin are those of one argument.

    That is a single place, or all groups of one optimizer that took its default.
    """
    if len(places) <= 1:
        return True
    optimizer = places[0].item
    if any(place.item is not optimizer for place in places) or places[0].group is None:
        return False
    is_whole = len(places) == len(optimizer.param_groups)
    is_default = is_same(optimizer.defaults.get(name), value)
    groups = optimizer.param_groups
    return is_whole and is_default and all(_may_be_default(optimizer, g, name) for g in groups)


def _may_be_default(optimizer: Any, group: Mapping[str, Any], name: str) -> bool:
    """Return whether a group may have an option from the optimizer's defaults.

    torch adds the defaults behind the options that the group was given, in their own order.
    """
    given = [key for key in group if key in optimizer.defaults]
    for count in range(len(given)):
        filled = [key for key in optimizer.defaults if key not in given[:count]]
        if given[count:] == filled:
            return name not in given[:count]
    return False
