"""The variables that the code of a function reads and writes, also in its inner functions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dasktune.trainer.liveness.flow import (
    NOTHING,
    Comprehension,
    Exits,
    Flow,
    Function,
    Live,
    evaluated_of,
)
from dasktune.trainer.liveness.managers import may_suppress
from dasktune.trainer.liveness.scopes import (
    Scope,
    called_in_place,
    lambdas_in_place,
    last_name,
    local_names,
)

_CONSUMING = frozenset(
    {"sum", "any", "all", "list", "tuple", "set", "frozenset", "dict", "max", "min", "sorted"}
    | {"join", "extend", "update", "fsum", "prod", "mean", "fromiter"}
)
"""Functions that read the whole of a generator which they get."""

_REFLECTING = frozenset({"locals", "eval", "exec", "_getframe", "currentframe", "stack"})
"""Functions that may read any variable."""


class FurtherPlaces(Protocol):
    """Which places other than variables expressions read and write, such as attributes."""

    def expression(self, node: ast.AST, live: Live, flow: Flow, reading: Reading) -> Live | None:
        """Return the places live before an expression; None if others decide."""

    def statement(self, node: ast.stmt, live: Live, flow: Flow, reading: Reading) -> Live | None:
        """Return the places live before a statement; None if others decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which variables expressions read and write; a `Meaning` of a `Flow`.

    Attributes
    ----------
    names
        The variables of interest that the present scope can see.
    namespace
        The global variables of the function, to look up context managers.
    in_place
        The inner functions that run only where the code names them.
    lambdas
        The lambdas that run only where they stand.
    reads
        The variables that the code reads anywhere; filled by the flow.
    always
        The variables that an inner function may read at any time; filled by the flow.
    """

    names: Live
    all_names: Live
    namespace: Mapping[str, Any]
    in_place: Mapping[str, tuple[Function, ...]]
    lambdas: frozenset[ast.Lambda]
    places: FurtherPlaces | None = None
    reads: set[str] = field(default_factory=set)
    always: set[str] = field(default_factory=set)
    _within: dict[tuple[ast.AST, Live], Live] = field(default_factory=dict)
    _busy: set[ast.AST] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        function: Function,
        names: Live,
        namespace: Mapping[str, Any],
        places: FurtherPlaces | None = None,
    ) -> Reading:
        """Return the reading of these variables of a function."""
        return cls(
            names=names,
            all_names=names,
            namespace=namespace,
            in_place=called_in_place(function),
            lambdas=lambdas_in_place(function),
            places=places,
        )

    def expression(self, node: ast.AST, live: Live, flow: Flow) -> Live | None:
        """Return the variables live before an expression; None if its parts decide."""
        if self.places is not None:
            before = self.places.expression(node, live, flow, self)
            if before is not None:
                return before
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()):
                return live - {node.id}
            case ast.Name():
                return live | self._read_by_name(node.id)
            case ast.Lambda():
                if node in self.lambdas:
                    live |= self._reads_within(node, self.names)
                elif not any(node in nodes for nodes in self.in_place.values()):
                    self._keep(node)
                return flow.expressions(evaluated_of(node), live)
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                live |= self._reads_within(node, self.names)
                return flow.expression(node.generators[0].iter, live)
            case ast.GeneratorExp():
                self._keep(node)
                return flow.expression(node.generators[0].iter, live)
            case ast.Call(args=[ast.GeneratorExp() as generator]) if (
                last_name(node.func) in _CONSUMING
            ):
                live |= self._reads_within(generator, self.names)
                parts = [node.func, generator.generators[0].iter, *node.keywords]
                return flow.expressions(parts, live)
            case ast.Call() if _looks_around(node):
                live |= self.read(self.names)
                return flow.expressions(ast.iter_child_nodes(node), live)
        return None

    def statement(self, node: ast.stmt, live: Live, flow: Flow) -> Live | None:
        """Note the inner functions and classes that may be kept; None: the parts decide."""
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node not in self.in_place.get(node.name, ())
        ):
            self._keep(node)
        return None if self.places is None else self.places.statement(node, live, flow, self)

    def suppresses(self, manager: ast.expr) -> bool:
        """Return whether a context manager may end an exception of its block."""
        return may_suppress(manager, self.namespace, self.names)

    def read(self, names: Live) -> Live:
        """Note that the code reads these places, and return them."""
        self.reads.update(names)
        return names

    def _read_by_name(self, name: str) -> Live:
        read = self.read(self.names & {name})
        if name in _REFLECTING and name not in self.names:
            self.always.update(self.names)
        for function in self.in_place.get(name, ()):
            # It may stand outside the present scope, and see names that this scope hides.
            read |= self._reads_within(function, self.all_names)
        return read

    def _keep(self, scope: Scope) -> None:
        self.always.update(self._reads_within(scope, self.names))

    def _reads_within(self, scope: Scope, names: Live) -> Live:
        """Return the variables that the code of an inner scope reads anywhere."""
        if (scope, names) in self._within:
            return self.read(self._within[scope, names])
        if scope in self._busy:
            return NOTHING
        inner = replace(self, names=names - local_names(scope), reads=set())
        self._busy.add(scope)
        _run(scope, Flow(inner))
        self._busy.discard(scope)
        if not self._busy:
            self._within[scope, names] = frozenset(inner.reads)
        return self.read(frozenset(inner.reads))


def _run(scope: Scope, flow: Flow) -> None:
    match scope:
        case ast.Lambda():
            flow.expression(scope.body, NOTHING)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            flow.block(scope.body, NOTHING, Exits())
        case _:
            flow.expressions(_parts_of(scope), NOTHING)


def _parts_of(scope: Comprehension) -> list[ast.expr]:
    """Return the parts of a comprehension in the order of their first evaluation."""
    parts: list[ast.expr] = []
    for index, part in enumerate(scope.generators):
        parts += [*([part.iter] if index else []), part.target, *part.ifs]
    results = [scope.key, scope.value] if isinstance(scope, ast.DictComp) else [scope.elt]
    return parts + results


def _looks_around(call: ast.Call) -> bool:
    """Return whether a call may read variables by name: `locals()`, `frame.query("a > @b")`."""
    match call:
        case ast.Call(func=ast.Name(id="vars" | "dir"), args=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="query" | "eval"), args=[_, *_]):
            return True
        case ast.Call(func=ast.Attribute(attr="evaluate"), args=[ast.Constant(), *_]):
            return True
        case ast.Call(func=ast.Attribute(attr="eval" | "exec")):
            return False  # model.eval()
    return last_name(call.func) in _REFLECTING
