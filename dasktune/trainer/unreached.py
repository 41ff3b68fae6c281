"""Code of a training function that never runs: it stands behind the loop over the steps."""

from __future__ import annotations

import ast
from typing import Any

from dasktune.trainer.parsing import definition_of


def unreached_code(trainer_class: type | None) -> str | None:
    """Return a sentence about the code behind the loop of a training function, or None.

    The loop never ends: how far a trial is trained is the tuner's choice.
    """
    function: Any = getattr(trainer_class, "function", None)
    if function is None or (tree := definition_of(function)) is None:
        return None
    steps = f"{[*tree.args.posonlyargs, *tree.args.args][0].arg}.steps("
    for node in ast.walk(tree):
        for statements in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for behind in _behind_loop(statements, steps):
                line = function.__code__.co_firstlineno + behind.lineno - 1
                return (
                    f"the code of {function.__name__} from line {line} on stands behind the loop "
                    f"over {steps}) and never runs: the loop does not end; code for the end of "
                    "the training belongs into a finally block round it"
                )
    return None


def _behind_loop(statements: object, steps: str) -> list[ast.stmt]:
    """Return the statements of a block behind the loop, without those that do nothing."""
    if not isinstance(statements, list):
        return []
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.For) and steps in ast.unparse(statement.iter):
            return [each for each in statements[index + 1 :] if not _is_idle(each)]
    return []


def _is_idle(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, (ast.Pass, ast.Return))
