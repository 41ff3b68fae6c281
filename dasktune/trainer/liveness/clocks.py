"""Variables that hold times: they decide nothing that two runs have in common."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
_CALLS = frozenset(
    {*_CLOCKS, *(f"time.{name}" for name in _CLOCKS), "default_timer", "timeit.default_timer"}
    | {"datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow"}
)
_ROUNDING = frozenset({"float", "int", "round"})


def times_in(function: ast.AST) -> frozenset[str]:
    """Return the variables that a function sets to times, and to sums and parts of times.

    A first value that is a constant does not count: ``seconds = 0.0``.
    """
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        for name, value in _assigned(node):
            values.setdefault(name, []).append(value)
    times: set[str] = set()
    while new := {
        name
        for name, given in values.items()
        if name not in times and _are_times(name, given, times)
    }:
        times |= new
    return frozenset(times)


def times_of(functions: Iterable[ast.AST]) -> frozenset[str]:
    """Return the attributes that methods set to times, and to sums and parts of times."""
    methods = [_ByName().visit(copy.deepcopy(function)) for function in functions]
    names = times_in(ast.Module(body=methods, type_ignores=[]))
    return frozenset(name.removeprefix("self.") for name in names if name.startswith("self."))


class _ByName(ast.NodeTransformer):
    """Replaces attributes of `self` by variables, such as ``self.seconds``."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Return the variable."""
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            return ast.Name(id=f"self.{node.attr}", ctx=node.ctx)
        self.generic_visit(node)
        return node


def _are_times(name: str, values: list[ast.expr], times: set[str]) -> bool:
    given = [value for value in values if not isinstance(value, ast.Constant)]
    return bool(given) and all(_is_time(value, times - {name}) for value in given)


def _is_time(value: ast.expr, times: set[str]) -> bool:
    """Return whether an expression computes with a clock or a time, and calls nothing else."""
    has_time = False
    for node in ast.walk(value):
        match node:
            case ast.Call(args=[]) if ast.unparse(node.func) in _CALLS:
                has_time = True
            case ast.Call(func=ast.Name(id=name)) if name in _ROUNDING:
                pass
            case ast.Call():
                return False
            case ast.Name(id=name) if name in times:
                has_time = True
            case ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.Lambda() | ast.IfExp():
                return False
    return has_time


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement or an expression sets, and their values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _pairs(target, value)
        case (
            ast.AugAssign(target=ast.Name(id=name), value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            | ast.NamedExpr(target=ast.Name(id=name), value=value)
        ):
            yield name, value
        case ast.For(target=target) | ast.comprehension(target=target):
            yield from _unknown(target)
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from _unknown(target)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case (ast.Tuple(elts=names), ast.Tuple(elts=values)) if len(names) == len(values):
            for each, part in zip(names, values, strict=True):
                yield from _pairs(each, part)
        case _:
            yield from _unknown(target)


def _unknown(target: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a target whose values the source does not show."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, ast.Tuple(elts=[], ctx=ast.Load())
