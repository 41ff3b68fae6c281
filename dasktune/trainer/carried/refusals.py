"""Messages about variables that no state can hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from dasktune.errors import StateError
from dasktune.trainer import attributes
from dasktune.trainer.carried.frames import CAN_UNBIND, PausedCall, Scope
from dasktune.trainer.carried.kinds import ARRAYS, kind_of
from dasktune.trainer.carried.packing import UnpackableError

_MOST_KEYS = 4

_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)


def refusal(scope: Scope, name: str, value: Any, error: UnpackableError) -> StateError:
    """Return the error for a variable that has to be saved and cannot."""
    is_within = error.value is not value
    reason = error.reason
    if is_within:
        holds = "holds what uses" if reason.startswith("uses") else "holds what"
        reason = f"holds {reason.removeprefix('is ')}" if reason.startswith("is ") else reason
        reason = reason if reason.startswith("holds") else f"{holds} {reason.partition(' ')[2]}"
    if name in scope.loop.carries:
        reason = f"is carried from one step to the next and {reason}"
    else:
        reason = f"has changed since the loop began and {reason}"
    if is_within and (place := _place_in(value, error.value)):
        reason = f"{reason.replace(', which', f' at {name}{place}, which', 1)}"
    remedy = _remedy(name, error.value, is_within=is_within)
    return StateError(_where(scope, name), f"the variable {name!r} {reason}: {remedy}")


def _place_in(container: Any, value: Any, depth: int = 0) -> str:
    """Return the keys by which dicts, lists and tuples lead to a value; empty without such."""
    if depth == _MOST_KEYS or not isinstance(container, (dict, list, tuple)):
        return ""
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, item in items:
        if item is value:
            return f"[{key!r}]"
        if place := _place_in(item, value, depth + 1):
            return f"[{key!r}]{place}"
    return ""


def refuse_opaque(scope: Scope, name: str, value: Any) -> None:
    """Raise an error for a carried variable whose values no state can hold.

    A function or a class is fine until the loop sets another one.
    """
    if not isinstance(value, _CODE):
        error = UnpackableError(value, f"is a {type(value).__name__}, which cannot be saved")
        raise refusal(scope, name, value, error)


def refuse_unbound(scope: Scope, name: str) -> None:
    """Raise an error for a deleted variable if this version of Python cannot delete it again."""
    if isinstance(scope, PausedCall) and not CAN_UNBIND:
        raise StateError(
            _where(scope, name),
            f"the variable {name!r} is deleted in the loop, and this version of Python cannot "
            f"delete it where a training goes on: write {name} = None",
        )


def _where(scope: Scope, name: str) -> str:
    """Return file and line of the loop's statement that sets a variable, or the function."""
    if not isinstance(scope, PausedCall):
        return scope.label
    line = scope.loop.carries.get(name) or scope.frame.f_lineno
    return f"{Path(scope.frame.f_code.co_filename).name}:{line}"


def _remedy(name: str, value: Any, *, is_within: bool) -> str:
    kind = type(value).__name__
    if kind_of(value) in ARRAYS:
        copied = "copy()" if kind_of(value) == "array" else "detach().clone()"
        if is_within:
            return f"keep copies: x.{copied} for each of them"
        return f"write {name} = {name}.{copied}"
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return "hold JAX's arrays in dasktune.integrations.jax.Trees, and track it with run.track"
    if attributes.is_object(value):
        return f"call run.track({name}) before the loop, and let the loop change it in place"
    if isinstance(value, Iterator):
        return "draw batches from run.loader, or make the iterator in the step"
    return (
        "hold what later steps need of it as numbers, arrays, lists or dicts, such as "
        f'run.state["{name}"] = ..., or give {kind} the methods state_dict() and '
        "load_state_dict(), and call run.track with it before the loop; if it decides nothing, "
        "call run.keep_fixed with it"
    )
