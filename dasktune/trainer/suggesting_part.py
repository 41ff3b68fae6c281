"""The part of an Optuna objective that suggests values, told apart from the part that trains."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.trainer.parsing import parsed

_TRAINING = frozenset({"report", "should_prune"})


class _SuggestionsOver(BaseException):
    """Raised at the first line behind the suggestions."""


def run_suggestions(objective: Callable[[Any], object], trial: object) -> None:
    """Run an objective up to the line behind its last suggestion.

    Raises
    ------
    ConfigurationError
        If suggestions and training cannot be told apart; see `last_line`.
    """
    code, last = inspect.unwrap(objective).__code__, last_line(objective)

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_lineno > last:
            raise _SuggestionsOver
        return at_line

    def at_call(frame: FrameType, *_: object) -> Any:
        return at_line if frame.f_code is code else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        objective(trial)
    except _SuggestionsOver:
        pass
    finally:
        sys.settrace(before)


def last_line(objective: Callable[[Any], object]) -> int:
    """Return the last line, as its file counts, of the statements of an objective that suggest.

    The statements of its body come in two parts: all that use the trial before the first one that
    reports, or asks whether to prune, suggest; the others train. A statement that hands the
    trial to a function of Python reports if that function does.

    Raises
    ------
    ConfigurationError
        If its source is unknown, or a suggestion stands in a statement that trains or returns.
    """
    function = inspect.unwrap(objective)
    name = function.__qualname__
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        raise ConfigurationError(
            f"the source of {name} must be known to draw its trials; or give the tuner a Space"
        )
    trial = [*tree.args.posonlyargs, *tree.args.args][0].arg
    offset, last, is_training = function.__code__.co_firstlineno - 1, 0, False
    for statement in _statements(tree.body):
        if not _mentions(statement, trial):
            continue
        is_training |= _uses(statement, trial, function, _TRAINING)
        if is_training or isinstance(statement, ast.Return):
            if _uses(statement, trial, function, None):
                line = statement.lineno + offset
                raise ConfigurationError(
                    f"{function.__code__.co_filename}:{line}: {name} must suggest its values in "
                    "statements before those that report or return, got a suggestion in this "
                    "one: to draw a trial, the part before is run; or give the tuner a Space"
                )
        else:
            last = (statement.end_lineno or statement.lineno) + offset
    return last


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those within `with` and `try` one by one."""
    for statement in body:
        if isinstance(statement, ast.With | ast.Try):
            yield from _statements(statement.body)
        else:
            yield statement


def _mentions(tree: ast.AST, trial: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == trial for node in ast.walk(tree))


def _uses(
    tree: ast.AST, trial: str, function: Any, names: frozenset[str] | None, depth: int = 0
) -> bool:
    """Return whether code uses such attributes of the trial; None stands for all suggestions.

    Functions that get the trial count, too.
    """
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == trial
            and (node.attr in names if names else node.attr.startswith("suggest_"))
        ):
            return True
        if isinstance(node, ast.Call) and depth < 9 and isinstance(node.func, ast.Name):
            called = _named(node.func.id, function)
            for other, parameter in _handed(node, trial, called):
                if _uses(other, parameter, called, names, depth + 1):
                    return True
    return False


def _named(name: str, function: Any) -> Any:
    """Return the Python function that a function calls by a name, or None."""
    inner = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    if name in inner:
        try:
            value = inner[name].cell_contents
        except ValueError:  # it is not filled yet
            return None
    else:
        value = function.__globals__.get(name)
    value = inspect.unwrap(value) if callable(value) else None
    return value if inspect.isfunction(value) else None


def _handed(call: ast.Call, trial: str, called: Any) -> Iterator[tuple[ast.AST, str]]:
    """Yield the tree of a called function and its parameter that gets the trial."""
    if called is None or not _mentions(call, trial):
        return
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(called))).body[0]
    except (OSError, TypeError, SyntaxError):
        return
    if not isinstance(tree, ast.FunctionDef):
        return
    parameters = [each.arg for each in (*tree.args.posonlyargs, *tree.args.args)]
    for given, parameter in zip(call.args, parameters, strict=False):
        if isinstance(given, ast.Name) and given.id == trial:
            yield tree, parameter
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name) and keyword.value.id == trial and keyword.arg:
            yield tree, keyword.arg
