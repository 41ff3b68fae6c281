"""The engine is the only door to the dispatcher: no other part reads or steers it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSIDE = ("dasktune/graph/", "dasktune/_engine/")
OUTSIDE = [
    path
    for folder in ("dasktune", "tests/torture")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(INSIDE)
    and path.name != "bugs.py"  # it breaks the dispatcher on purpose
]
MACHINERY = {"dasktune.graph.frontier", "dasktune.graph.placement"}
BREACHING = re.compile("dispatcher|frontier|placement")
"""Words of which a module with a breach has at least one."""

FOR_ITS_MAKER = {"learn", "measure", "plan", "register"}
"""All that a part may use of a dispatcher that it makes itself."""


def breaches(tree: ast.AST) -> Iterator[str]:
    """Yield the places where a module reaches behind the engine."""
    # A method of this name makes a dispatcher, to hand it on.
    made = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr="_dispatcher"):
                pass  # a dispatcher that it made, to hand it on
            case ast.Attribute(value=ast.Name(id="member"), attr="dispatcher"):
                pass  # of a functools.singledispatchmethod
            case ast.Attribute(attr="dispatcher" | "_dispatcher") if id(node) not in made:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.Attribute(
                value=ast.Name(id="dispatcher") | ast.Attribute(attr="_dispatcher"), attr=name
            ) if name not in FOR_ITS_MAKER:
                yield f"{node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(module=str(module)) if module in MACHINERY:
                yield f"{node.lineno}: imports {module}"


def test_no_module_outside_engine_reads_the_dispatcher() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{breach}"
        for path in OUTSIDE
        if BREACHING.search(text := path.read_text())
        for breach in breaches(ast.parse(text))
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "engine.dispatcher",
        "self._engine._dispatcher.slots",
        "dispatcher.attempts",
        "dispatcher.handle(event, 0.0)",
        "self._dispatcher.frontier",
        "from dasktune.graph.frontier import start_of",
    ],
)
def test_breach_is_found(text: str) -> None:
    assert BREACHING.search(text)
    assert len(list(breaches(ast.parse(text)))) >= 1
