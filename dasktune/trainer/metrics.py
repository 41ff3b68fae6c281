"""Names of the metrics that a trainer returns or reports, read from its source."""

from __future__ import annotations

import ast
import inspect

from dasktune.trainer.parsing import definition_of


def metric_names(trainer_class: type) -> frozenset[str]:
    """Return the metric names that ``evaluate`` returns; empty if they are unknown.

    They are known if every ``return`` of ``evaluate`` is a dict display with constant names, as
    usual. Those of a training function are the keywords of its calls of ``run.report``; they are
    known if the run stays within the function. A misspelt metric is then refused before any
    training.
    """
    method = inspect.unwrap(trainer_class.evaluate)  # type: ignore[attr-defined]
    if hasattr(trainer_class, "objective"):
        return _names_of_objective(trainer_class.objective)
    is_function = method.__module__ == "dasktune.trainer.function"
    function = definition_of(trainer_class.function if is_function else method)  # type: ignore[attr-defined]
    if function is None:
        return frozenset()
    if is_function:
        return _reported(function)
    names: set[str] = set()
    for statement in _returns(function):
        returned = _names_of(statement)
        if returned is None:
            return frozenset()
        names |= returned
    return frozenset(names)


def _names_of_objective(objective: object) -> frozenset[str]:
    """Return the one name of an objective of Optuna; empty if it may set further numbers."""
    try:
        is_known = "set_user_attr" not in inspect.getsource(objective)  # type: ignore[arg-type]
    except (OSError, TypeError):
        is_known = False
    return frozenset({"value"} if is_known else ())


def _reported(function: ast.FunctionDef) -> frozenset[str]:
    """Return the keywords of all reports of a training function; empty if one is unknown."""
    run = [*function.args.posonlyargs, *function.args.args][0].arg
    known: set[int] = set()
    names: set[str] = set()
    for node in ast.walk(function):  # a call comes before its parts
        if isinstance(node, ast.Call) and _is_report(node.func, run):
            known.add(id(node.func))
            if node.args or any(keyword.arg is None for keyword in node.keywords):
                return frozenset()
            names |= {str(keyword.arg) for keyword in node.keywords}
        elif isinstance(node, ast.Attribute | ast.Subscript):
            if _is_report(node, run) and id(node) not in known:
                return frozenset()  # kept under another name
            known.add(id(node.value))
        elif isinstance(node, ast.Name) and node.id == run and id(node) not in known:
            return frozenset()  # handed to another function, which may report
    return frozenset(names)


def _is_report(node: ast.expr, run: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "report"
        and isinstance(node.value, ast.Name)
        and node.value.id == run
    )


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
