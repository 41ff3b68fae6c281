"""Which sets own code uses by more than what is in them, so that their order may count."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from dasktune.trainer.liveness.scopes import last_name

_ANY_ORDER = frozenset({"sorted", "min", "max"})
"""Functions whose result follows from the items alone, if they compare the items themselves."""

_OF_ALL = frozenset({"len", "bool", "any", "all"})

_METHODS = frozenset(
    {"add", "discard", "remove", "update", "clear", "issubset", "issuperset", "isdisjoint"}
    | {"intersection_update", "difference_update", "symmetric_difference_update"}
)
"""Methods of sets that look through nothing in its order."""

_SAVING = ("state_dict", "load_state_dict")
"""Methods that hand a set on as it is."""


def names_in_order(trees: Iterable[ast.AST]) -> frozenset[str]:
    r"""Return the names of attributes and variables of which own code may use the order.

    Examples
    --------
    >>> code = "for x in self.seen: f(x)\nsorted(self.left)\nfirst = self.open.pop()\n1 in self.all"
    >>> sorted(names_in_order([ast.parse(code)]))
    ['open', 'seen', 'self', 'x']
    """
    names: set[str] = set()
    waiting = [*trees]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node.name in _SAVING:
            continue
        free = {id(each) for each in _without_order(node)}
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Name, ast.Attribute)) and isinstance(child.ctx, ast.Load):
                names |= {last_name(child) or ""} if id(child) not in free else set()
            waiting.append(child)
    return frozenset(names)


def _without_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node of which it does not use the order."""
    if isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, (ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.IfExp)):
        yield from getattr(node, "values", ())
        yield from (getattr(node, "operand", None) or node, getattr(node, "test", None) or node)
    elif isinstance(node, ast.Attribute):
        if node.attr in _METHODS:
            yield node.value
    elif isinstance(node, ast.Call):
        yield node.func
        name = last_name(node.func)
        compares = name in _ANY_ORDER and all(each.arg != "key" for each in node.keywords)
        if compares or name in _OF_ALL:
            yield from node.args
