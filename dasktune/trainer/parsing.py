"""Syntax trees of source text, also where several threads ask for them."""

from __future__ import annotations

import ast
import inspect
import textwrap
import threading

_PARSING = threading.Lock()


def parsed(text: str) -> ast.Module:
    """Return the syntax tree of source text; errors as of `ast.parse`.

    CPython before 3.11.8 counts the depth of a tree for all threads together and raises
    `SystemError` if two of them parse at a time (python/cpython#106905). Our own threads take
    turns. If another thread of the process was parsing, the text is parsed once more.
    """
    with _PARSING:
        try:
            return ast.parse(text)
        except SystemError:
            return ast.parse(text)


def definition_of(function: object) -> ast.FunctionDef | None:
    """Return the syntax tree of a function; None if its source is unknown."""
    try:
        tree = parsed(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return None
    return tree.body[0] if isinstance(tree.body[0], ast.FunctionDef) else None
