"""Context managers that may end an exception: behind their block it is unknown what was run."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.trainer.fingerprint.source import Sources
from dasktune.trainer.liveness.scopes import last_name

_SUPPRESSING = frozenset(
    {"suppress", "raises", "assertRaises", "assert_raises", "ExitStack", "AsyncExitStack"}
)
"""Context managers of libraries that end exceptions."""

_PASSING = frozenset(
    {"no_grad", "enable_grad", "inference_mode", "autocast", "set_grad_enabled", "no_sync", "join"}
    | {"open", "lock", "_lock", "Lock", "RLock", "nullcontext", "tqdm", "record_function"}
    | {"profile", "errstate", "catch_warnings", "fork_rng", "device", "stream", "accumulate"}
)
"""Names of context managers that raise exceptions on, where an object cannot be looked up."""


def may_suppress(
    manager: ast.expr, namespace: Mapping[str, Any], variables: Collection[str]
) -> bool:
    """Return whether a context manager may end an exception of its block.

    Parameters
    ----------
    variables
        The names that mean no global variable.
    """
    called = manager.func if isinstance(manager, ast.Call) else manager
    name, thing = last_name(called), looked_up(called, namespace, variables)
    if name in _SUPPRESSING:
        return True
    home = getattr(thing, "__module__", None)
    if thing is None or not isinstance(home, str):
        return name not in _PASSING
    if is_installed_name(home.partition(".")[0]):
        return getattr(thing, "__name__", "") in _SUPPRESSING
    # A generator with `contextlib.contextmanager`.
    code = getattr(getattr(thing, "__wrapped__", None), "__code__", None)
    return not isinstance(code, CodeType) or _may_catch(code)


def looked_up(
    node: ast.expr, namespace: Mapping[str, Any], variables: Collection[str]
) -> Any | None:
    """Return the object that a dotted name means, without running code; None if unknown."""
    match node:
        case ast.Name(id=name) if name not in variables:
            return namespace.get(name, vars(builtins).get(name))
        case ast.Attribute(value=value, attr=name):
            thing = looked_up(value, namespace, variables)
            if isinstance(thing, (ModuleType, type)):
                return vars(thing).get(name)
    return None


@lru_cache(maxsize=256)
def _may_catch(code: CodeType) -> bool:
    """Return whether code may end an exception."""
    node = Sources().definition(code)
    return node is None or any(
        isinstance(item, (ast.With, ast.AsyncWith)) or getattr(item, "handlers", None)
        for item in ast.walk(node)
    )
