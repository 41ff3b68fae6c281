"""The English of the code and of the pages: the rules that a program can check.

`docs/concepts.md` has the words. What remains for a reader to judge is the rest of a sentence:
whether it names an actor, and whether a pronoun can mean one noun only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parents[1]

CLEAN = (
    *("dasktune", "tests", "benchmarks", "docs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
)
"""The folders and files that keep the rules."""

FROZEN = ROOT / "tests" / "compatibility" / "small_net.py"
"""A trainer whose text is its fingerprint in stored files, so it stays as it is."""

OPENINGS = re.compile(r"(What|Who|Whoever|Take in|Take note|Let|Say|Return what)\b")
"""Openings of a summary that hide the noun it is about."""

NEGATIONS = re.compile(r"\b(not|no|nothing|none|never|nobody|nowhere)\b", re.IGNORECASE)
PERSONS = re.compile(r"\b(whoever|those who|who is not|nobody's)\b", re.IGNORECASE)
"""Words for callers and processes without a name; a page names them."""

VAGUE_NAMES = frozenset({"one", "found", "mine", "theirs", "said", "told"})
LONGEST_TEST_NAME = 60

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DOCUMENTED = get_args(Documented)
"""The same as a tuple, with which `isinstance` is much faster."""


def sources(place: str, suffix: str) -> list[Path]:
    """Return the files of a folder that have this suffix; of a file, itself."""
    path = ROOT / place
    files = sorted(path.rglob(f"*{suffix}")) if path.is_dir() else [path] * place.endswith(suffix)
    return [file for file in files if file != FROZEN]


def summary(node: Documented) -> str:
    """Return the first paragraph of a docstring as one line; empty without a docstring."""
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


def negations(text: str) -> int:
    """Return the largest number of negations in a clause.

    Examples
    --------
    >>> negations("There is no lock: nobody waits.")
    1
    >>> negations("Nothing is never removed.")
    2
    """
    clauses = re.split(r"[.;:]", re.sub(r"`[^`]*`", "", text))
    return max(len(NEGATIONS.findall(clause)) for clause in clauses)


def attributes_of(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield the names of annotated attributes: users read them, so that they stay."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from (item.target for item in node.body if isinstance(item, ast.AnnAssign))


def problems_of(path: Path) -> Iterator[str]:
    """Yield the places of a Python file that break a rule."""
    in_package = path.is_relative_to(ROOT / "dasktune")

    def at(node: ast.AST) -> str:
        return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"

    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    attributes = set(attributes_of(nodes))
    for node in nodes:
        if isinstance(node, DOCUMENTED):
            text = summary(node)
            if OPENINGS.match(text):
                yield f"{at(node)}: a summary must name its object with a noun: {text}"
            if negations(text) > 1:
                yield f"{at(node)}: a summary must have at most one negation: {text}"
        if isinstance(node, ast.FunctionDef) and len(node.name) > LONGEST_TEST_NAME:
            longest = f"at most {LONGEST_TEST_NAME} characters"
            yield f"{at(node)}: a name must have {longest}: {node.name}"
        is_variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if in_package and is_variable and node.id in VAGUE_NAMES and node not in attributes:
            yield f"{at(node)}: a variable must have the name of its value, got {node.id!r}"


def paragraphs(page: Path) -> Iterator[str]:
    """Yield the paragraphs, list items and table rows of a page; code is left out."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"(?m)^ {4,}.*$", "", text)
    for part in re.split(r"\n\s*\n|\n(?=\||- |\d+\. |#)", text):
        if words := " ".join(part.split()):
            yield words


@pytest.mark.parametrize("place", CLEAN)
def test_sources_keep_the_rules(place: str) -> None:
    problems = [text for path in sources(place, ".py") for text in problems_of(path)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("place", CLEAN)
def test_pages_name_their_actors(place: str) -> None:
    for page in sources(place, ".md"):
        problems = [text for text in paragraphs(page) if PERSONS.search(text)]
        assert not problems, f"{page.name}: name who acts:\n" + "\n".join(problems)


SHARED_NAMES = {"Branch"}
"""Class names that two folders use: the branch of a space and of a curve are both public."""


def test_class_names_in_the_package_are_unique() -> None:
    homes: dict[str, list[str]] = {}
    for place in (place for place in CLEAN if place.startswith("dasktune")):
        for path in sources(place, ".py"):
            for name in re.findall(r"(?m)^ *class (\w+)[(:]", path.read_text()):
                homes.setdefault(name, []).append(str(path.relative_to(ROOT)))
    repeated = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in repeated.items() if name not in SHARED_NAMES} == {}


def test_every_clean_place_exists() -> None:
    assert [place for place in CLEAN if not (ROOT / place).exists()] == []
