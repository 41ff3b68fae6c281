"""Variables that hold times: they decide nothing that two runs have in common."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping

from dasktune.trainer.liveness.scopes import last_name

_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns")
_CALLS = frozenset(
    {*_CLOCKS, *(f"time.{name}" for name in _CLOCKS), "default_timer", "timeit.default_timer"}
    | {"datetime.now", "datetime.utcnow", "datetime.datetime.now", "datetime.datetime.utcnow"}
)
_ROUNDING = frozenset({"float", "int", "round"})

_SPEAKING = frozenset({"print", "debug", "info"})
"""Functions whose effects decide no result."""

_SUMMING = frozenset({"sum", "len", "min", "max", "round", "sorted", "items", "values", "get"})
"""Functions and methods that only look at a dict or list of numbers."""

_DECIDING = (
    *(ast.NamedExpr, ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.comprehension),
    *(ast.BoolOp, ast.IfExp),
)
"""Expressions by which what is printed may do more."""

_REFLECTING = frozenset({"locals", "vars", "eval", "exec", "globals"})
_MAKING = frozenset({"dict", "list", "deque", "defaultdict", "Counter"})

Functions = Mapping[str, ast.FunctionDef | None]
"""Own functions by name; None for methods, and where two have the same name."""


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


def timings_in(function: ast.AST, functions: Functions) -> frozenset[str]:
    """Return the variables with dicts and lists of times that the code only adds to and prints."""
    nodes = [*ast.walk(function)]
    calls = (last_name(node.func) for node in nodes if isinstance(node, ast.Call))
    if not _REFLECTING.isdisjoint(calls):
        return frozenset()
    given = [pair for node in nodes for pair in _assigned(node)]
    names = {name for name, value in given if not isinstance(value, ast.Constant)}
    names -= {name for name, value in given if not _is_beginning(value)}
    outer = (node for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)))
    names -= {name for node in outer for name in node.names}
    names -= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(name for name in names if _Timing(function, functions, name).is_harmless)


def timings_of(methods: Iterable[ast.AST], functions: Functions) -> frozenset[str]:
    """Return the attributes with dicts and lists of times that methods only add to and print."""
    replaced = [_ByName().visit(copy.deepcopy(method)) for method in methods]
    names = timings_in(ast.Module(body=replaced, type_ignores=[]), functions)
    return frozenset(name.removeprefix("self.") for name in names if name.startswith("self."))


class _Timing:
    """The uses of a variable in a function: whether it only gets times, and is only printed."""

    def __init__(self, function: ast.AST, functions: Functions, name: str) -> None:
        self._function, self._functions, self._name = function, functions, name
        self._times = times_in(function)
        self._bound = {name for node in ast.walk(function) for name, _ in _assigned(node)}
        self._parents = {
            child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)
        }

    @property
    def is_harmless(self) -> bool:
        """Whether each use is."""
        uses = (node for node in ast.walk(self._function) if self._is_use(node))
        return all(map(self._is_harmless_use, uses))

    def _is_use(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._name

    def _is_harmless_use(self, use: ast.AST) -> bool:
        parent = self._parents[use]
        match parent:
            case ast.AugAssign(target=target) | ast.NamedExpr(target=target) if target is use:
                return False
            case _ if isinstance(getattr(use, "ctx", None), ast.Store):
                return True  # `timings_in` has seen what it becomes
            case ast.Attribute(attr="setdefault"):
                call = self._parents[parent]
                is_plain = isinstance(call, ast.Call) and all(map(_is_beginning, call.args[1:]))
                return is_plain and self._gets_time(call)
            case ast.Subscript(value=value) if value is use:
                return self._gets_time(parent) or self._is_read_for_time(use)
            case ast.Call() if use in parent.args and self._is_given_on(parent, use):
                return True
        return self._gets_time(use) or self._is_read_for_time(use)

    def _gets_time(self, place: ast.AST) -> bool:
        """Return whether a statement adds a time to a place, or sets it to one."""
        parent = self._parents[place]
        match parent:
            case ast.Assign(targets=[target], value=value) if target is place:
                return isinstance(place, ast.Subscript) and self._is_time(value)
            case ast.AugAssign(target=target, value=value) if target is place:
                return isinstance(place, ast.Subscript) and self._is_time(value)
            case ast.Attribute(attr="append"):
                call = self._parents[parent]
                match call:
                    case ast.Call(args=[value], keywords=[]) if call.func is parent:
                        is_alone = isinstance(self._parents[call], ast.Expr)
                        return is_alone and self._is_time(value)
        return False

    def _is_read_for_time(self, use: ast.AST) -> bool:
        """Return whether a read serves a text that is printed, or the next time in the place."""
        node = use
        while not isinstance(parent := self._parents[node], ast.stmt):
            if isinstance(parent, _DECIDING):
                return False
            if isinstance(parent, ast.Call):
                name = last_name(parent.func)
                if name in self._functions or name in self._bound or parent.keywords:
                    return False
                if name not in _SUMMING:
                    is_method = isinstance(parent.func, ast.Attribute)
                    speaks = name in _SPEAKING and is_method is (name != "print")
                    return speaks and isinstance(self._parents[parent], ast.Expr)
            node = parent
        match parent:
            case ast.Assign(targets=[ast.Subscript(value=place)], value=value):
                return self._is_use(place) and value is node and self._is_time(value)
        return False

    def _is_given_on(self, call: ast.Call, use: ast.AST) -> bool:
        """Return whether a call gives the dict or list to an own function that does the same."""
        function = self._functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is None or any(isinstance(item, ast.Starred) for item in call.args):
            return False
        decorators = {last_name(item) for item in function.decorator_list}
        if last_name(call.func) in self._bound or decorators - {"contextmanager"}:
            return False
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        index = next(i for i, item in enumerate(call.args) if item is use)
        if index >= len(names):
            return False
        others = {name: each for name, each in self._functions.items() if each is not function}
        inner = _Timing(function, others, names[index])
        return names[index] not in inner._bound and inner.is_harmless

    def _is_time(self, value: ast.expr) -> bool:
        """Return whether a value is computed from clocks, and from what is in the place."""
        return _is_time(_Without(self._name).visit(copy.deepcopy(value)), {*self._times})


class _Without(ast.NodeTransformer):
    """Replaces what is read from a dict or list by a number: ``x["a"]``, ``x.get("a", 0.0)``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Return the number."""
        return ast.Constant(0.0) if self._is_it(node.value) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return the number."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=value, attr="get"), args=[_, ast.Constant()], keywords=[]
            ) if self._is_it(value):
                return ast.Constant(0.0)
        self.generic_visit(node)
        return node

    def _is_it(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._name


def _is_beginning(value: ast.AST) -> bool:
    """Return whether a value is a number, or a dict or list of none but numbers and such."""
    match value:
        case ast.Constant():
            return True
        case ast.List(elts=parts):
            return all(map(_is_beginning, parts))
        case ast.Dict(keys=keys, values=parts):
            return None not in keys and all(map(_is_beginning, parts))
        case ast.Call(func=function, args=[]) | ast.Call(func=function, args=[ast.Name()]):
            return last_name(function) in _MAKING and not value.keywords
    return False


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
