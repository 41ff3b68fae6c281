"""Tests of syntax trees that several threads ask for."""

from __future__ import annotations

import ast

import pytest

from dasktune.trainer import parsing
from dasktune.trainer.parsing import parsed


def test_text_is_parsed_again_after_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython before 3.11.8 raises this by chance while another thread parses."""
    parse = ast.parse
    problems = [SystemError("AST constructor recursion depth mismatch (before=90, after=65)")]

    def by_chance(text: str) -> ast.Module:
        if problems:
            raise problems.pop()
        return parse(text)

    monkeypatch.setattr(parsing.ast, "parse", by_chance)
    assert ast.dump(parsed("x = 1")) == ast.dump(parse("x = 1"))


def test_wrong_text_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parsed("x = ")
