"""The names that functions bind, and inner functions that are only called in place."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from dasktune.trainer.liveness.flow import Comprehension, Function, captures_of, evaluated_of

Scope = Function | ast.ClassDef | Comprehension
"""Nodes with names of their own."""

_CALLING = frozenset({"step", "sorted", "min", "max"})
"""Functions that call a function which they get, and then forget it: `optimizer.step(closure)`."""

_TRANSFORMING = frozenset({"grad", "value_and_grad", "vmap", "jacfwd", "jacrev", "hessian"})
"""Functions whose result calls the function that they get: `jax.grad(loss)(weights)`."""

_WRAPPING = frozenset({"no_grad", "enable_grad", "inference_mode", "autocast", "jit", "compile"})
"""Decorators that keep no function for later calls."""


def own_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of one scope; of inner functions and classes what their definition runs."""
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                outside = [*getattr(node, "decorator_list", ()), *evaluated_of(node)]
                waiting += [item for item in outside if item is not None]
            case ast.ClassDef():
                waiting += [*node.decorator_list, *node.bases, *node.keywords]
            case ast.comprehension():
                waiting += [node.iter, *node.ifs]
            case ast.AnnAssign(target=ast.Name(), value=None):
                pass  # it binds no name
            case _:
                waiting += ast.iter_child_nodes(node)


def bindings(node: ast.AST) -> list[str]:
    """Return the names that a node itself binds or deletes."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return [node.id]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.alias():
            return [node.asname or node.name.partition(".")[0]]
        case ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.pattern():
            return captures_of(node)
    return []


def local_names(scope: Scope) -> frozenset[str]:
    """Return the names that mean something else in a scope than around it."""
    match scope:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            body = scope.body if isinstance(scope.body, list) else [scope.body]
            nodes = [*own_nodes(body)]
            names = {item.arg for item in ast.walk(scope.args) if isinstance(item, ast.arg)}
            names |= {name for node in nodes for name in bindings(node)}
            outer = {
                name for node in nodes if isinstance(node, ast.Nonlocal) for name in node.names
            }
            names |= {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
            return frozenset(names - outer)
        case ast.ClassDef():
            return frozenset()
    targets = [item for part in scope.generators for item in ast.walk(part.target)]
    return frozenset(item.id for item in targets if isinstance(item, ast.Name))


@lru_cache(maxsize=1024)
def called_in_place(function: Function) -> Mapping[str, tuple[Function, ...]]:
    """Return the inner functions that only run where the code names them, by name.

    All others may be kept, and called at any time.
    """
    named: dict[str, list[Function]] = defaultdict(list)
    kept: set[str] = set()
    nodes = [*ast.walk(function)]
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                named[node.name].append(node)
                kept |= {node.name} if _runs_later(node) else set()
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as value):
                named[name].append(value)
            case ast.Nonlocal() | ast.Global():
                kept.update(node.names)
    in_place = {id(item) for node in nodes for item in _called_by(node)}
    kept |= {
        node.id
        for node in nodes
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and id(node) not in in_place
    }
    return {name: tuple(items) for name, items in named.items() if name not in kept}


@lru_cache(maxsize=1024)
def lambdas_in_place(function: Function) -> frozenset[ast.Lambda]:
    """Return the lambdas without a name that run only where they stand."""
    items = (item for node in ast.walk(function) for item in _called_by(node))
    return frozenset(item for item in items if isinstance(item, ast.Lambda))


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name: ``"step"`` of ``optimizer.step``."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _called_by(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions that a call itself calls, and nobody later."""
    if not isinstance(node, ast.Call):
        return
    yield node.func
    name, arguments = last_name(node.func), [*node.args, *(item.value for item in node.keywords)]
    if name in _CALLING:
        yield from arguments
    if isinstance(node.func, ast.Call) and last_name(node.func.func) in _TRANSFORMING:
        yield from node.func.args


def _runs_later(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a call only begins a function, or a decorator may keep it."""
    decorators = (item.func if isinstance(item, ast.Call) else item for item in node.decorator_list)
    return (
        isinstance(node, ast.AsyncFunctionDef)
        or any(last_name(item) not in _WRAPPING for item in decorators)
        or any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in own_nodes(node.body))
    )
