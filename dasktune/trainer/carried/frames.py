"""The variables of paused calls, and of functions that enclose variables: read and written."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_GENERATOR
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, Protocol

from dasktune.trainer.carried.loops import Loop, is_looping, loop_of, refuse_hidden_position
from dasktune.trainer.fingerprint.installed import is_installed_name

CAN_UNBIND = sys.version_info < (3, 12)
"""Whether a variable of a paused call can be unbound again."""

_MISSING = object()


class Scope(Protocol):
    """A place with variables."""

    @property
    def label(self) -> str:
        """The name in states and messages, equal in every process."""

    @property
    def loop(self) -> Loop:
        """The loop over the steps, as far as it sets these variables."""

    def values(self) -> dict[str, Any]:
        """Return the bound variables by name."""

    def write(self, values: Mapping[str, Any], unbound: Collection[str]) -> None:
        """Set variables, and unbind others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedCall:
    """The variables of a paused call, without those that belong to an outer function."""

    label: str
    frame: FrameType
    loop: Loop

    def values(self) -> dict[str, Any]:
        """Return the bound variables by name."""
        outer = self.frame.f_code.co_freevars
        local = self.frame.f_locals
        values = {name: value for name, value in local.items() if name not in outer}
        _forget(local)
        return values

    def write(self, values: Mapping[str, Any], unbound: Collection[str]) -> None:
        """Set variables, and unbind others."""
        local = self.frame.f_locals
        local.update(values)
        if isinstance(local, dict):  # before Python 3.13 a copy, which has to be written back
            for name in unbound:
                local.pop(name, None)
            ctypes.pythonapi.PyFrame_LocalsToFast(
                ctypes.py_object(self.frame), ctypes.c_int(bool(unbound))
            )
        _forget(local)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosed:
    """The variables of a function that has ended, which an inner function still uses."""

    label: str
    cells: Mapping[str, CellType]
    loop: Loop = field(default_factory=Loop)

    def values(self) -> dict[str, Any]:
        """Return the bound variables by name."""
        return {name: cell.cell_contents for name, cell in self.cells.items() if _is_full(cell)}

    def write(self, values: Mapping[str, Any], unbound: Collection[str]) -> None:
        """Set variables, and unbind others."""
        for name, value in values.items():
            self.cells[name].cell_contents = value
        for name in unbound:
            del self.cells[name].cell_contents


def scopes_of(frames: Iterable[FrameType], loops: dict[tuple[CodeType, int], Loop]) -> list[Scope]:
    """Return the scopes of paused calls, the innermost first, and of the functions in them.

    Parameters
    ----------
    loops
        The loops that are known by code and instruction; the others are added.
    """
    scopes: list[Scope] = []
    labels: set[str] = set()
    seen: set[int] = set()
    inner = Loop()
    is_endless = False
    for frame in frames:
        code = frame.f_code
        if not is_endless and (code, frame.f_lasti) not in loops:
            loops[code, frame.f_lasti] = loop_of(frame)
        own = Loop() if is_endless else loops[code, frame.f_lasti]
        loop = inner = _with_inner(own, inner, cells={*code.co_cellvars, *code.co_freevars})
        is_endless = is_endless or _is_endless(frame)
        label = _free(code.co_qualname, labels)
        call = PausedCall(label=label, frame=frame, loop=loop)
        scopes.append(call)
        for name, value in call.values().items():
            for function in _functions(value, frame.f_globals, seen):
                is_within = function.__code__.co_qualname.startswith(f"{code.co_qualname}.<locals>")
                known = {*code.co_cellvars, *code.co_freevars} if is_within else set()
                cells = {n: cell for n, cell in _cells(function) if n not in known}
                if cells:
                    scopes.append(Enclosed(label=_free(f"{label}.{name}", labels), cells=cells))
    return scopes


def values_in(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of variables that a paused call sees, those that are bound, by name."""
    local = frame.f_locals
    known = {name: local.get(name, frame.f_globals.get(name, _MISSING)) for name in names}
    _forget(local)
    return {name: value for name, value in known.items() if value is not _MISSING}


def refuse_hidden_positions(frames: Iterable[FrameType]) -> None:
    """Raise an error if the next step depends on a position in a paused call that is hidden.

    Raises
    ------
    TrainerError
        See `refuse_hidden_position`.
    """
    for frame in frames:
        refuse_hidden_position(frame)
        if _is_endless(frame):
            return  # the calls round it never go on


def _is_endless(frame: FrameType) -> bool:
    """Return whether a call waits in its loop over the steps until the training is over."""
    return is_looping(frame) and not frame.f_code.co_flags & CO_GENERATOR


def _with_inner(loop: Loop, inner: Loop, *, cells: Collection[str]) -> Loop:
    """Return a loop with the variables that a call within it shares with it."""
    shared = {name: line for name, line in inner.carries.items() if name in cells}
    carries = {**loop.carries, **shared}
    return Loop(
        carries=carries,
        drops=loop.drops.union(inner.drops & {*cells}) - carries.keys(),
        perhaps=(loop.perhaps | inner.perhaps) & carries.keys(),
    )


def _functions(value: Any, module: Mapping[str, Any], seen: set[int]) -> Iterator[FunctionType]:
    """Yield a function and the functions that it encloses, without those of modules."""
    if not isinstance(value, FunctionType) or id(value) in seen or not value.__closure__:
        return
    seen.add(id(value))
    is_of_module = any(
        value is other for names in (module, value.__globals__) for other in names.values()
    )
    if is_of_module or not is_own(str(value.__module__)):
        return
    yield value
    for _, cell in _cells(value):
        if _is_full(cell):
            yield from _functions(cell.cell_contents, module, seen)


def _cells(function: FunctionType) -> Iterator[tuple[str, CellType]]:
    yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises an error
    except ValueError:
        return False
    return True


@cache
def is_own(module: str) -> bool:
    """Return whether a module is the user's own: of no installed package."""
    top = module.partition(".")[0]
    return top == "__main__" or not is_installed_name(top)


def _forget(local: Any) -> None:
    if isinstance(local, dict):
        # Before Python 3.13 it is a copy that the frame keeps: a batch would live on.
        local.clear()


def _free(label: str, labels: set[str]) -> str:
    """Return a label that no scope has yet, and note it."""
    number, free = 2, label
    while free in labels:
        free, number = f"{label} {number}", number + 1
    labels.add(free)
    return free
