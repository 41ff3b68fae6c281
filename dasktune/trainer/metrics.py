"""Names of the metrics that a trainer's ``evaluate`` returns, read from its source."""

from __future__ import annotations

import ast
import inspect
import textwrap

from dasktune.trainer.parsing import parsed


def metric_names(trainer_class: type) -> frozenset[str]:
    """Return the metric names that ``evaluate`` returns; empty if they are unknown.

    They are known if every ``return`` of ``evaluate`` is a dict display with constant names, as
    usual. A misspelt metric is then refused before any training.
    """
    method = inspect.unwrap(trainer_class.evaluate)  # type: ignore[attr-defined]
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return frozenset()
    names: set[str] = set()
    for statement in _returns(function):
        returned = _names_of(statement)
        if returned is None:
            return frozenset()
        names |= returned
    return frozenset(names)


def _returns(function: ast.FunctionDef) -> list[ast.Return]:
    """Return the function's own return statements, without those of inner functions."""
    returns, stack = [], list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Return):
            returns.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            stack.extend(
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            )
    return returns


def _names_of(statement: ast.Return) -> set[str] | None:
    if not isinstance(statement.value, ast.Dict):
        return None
    names = set()
    for key in statement.value.keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        names.add(key.value)
    return names
