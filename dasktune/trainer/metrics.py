"""Which metrics a trainer's ``evaluate`` gives, as far as its source says so."""

from __future__ import annotations

import ast
import inspect
import textwrap


def metric_names(trainer_class: type) -> frozenset[str]:
    """Return the metric names that ``evaluate`` returns; empty if the source cannot tell.

    It can where every ``return`` of ``evaluate`` is a dict display with constant names,
    which is the usual case: a misspelt metric is then refused before anything is trained.
    """
    method = inspect.unwrap(trainer_class.evaluate)  # type: ignore[attr-defined]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return frozenset()
    names: set[str] = set()
    for statement in _returns(function):
        found = _names_of(statement)
        if found is None:
            return frozenset()
        names |= found
    return frozenset(names)


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Return the function's own return statements, not those of functions in it."""
    found, stack = [], list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Return):
            found.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            stack.extend(
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            )
    return found


def _names_of(statement: ast.Return) -> set[str] | None:
    if not isinstance(statement.value, ast.Dict):
        return None
    names = set()
    for key in statement.value.keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        names.add(key.value)
    return names
