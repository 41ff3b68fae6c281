"""The size of the code: what one must read to change the placement of stages, and what grows.

Counted from the syntax trees of the checkout, so the figures are the same on every machine.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dasktune"
CORE = ("graph", "_engine", "_driver", "_worker", "_study")
PLACEMENT = PACKAGE / "graph" / "placement.py"


def measure(short: bool) -> list[Figure]:
    """Count lines, classes and callables; a short run counts the same."""
    read = [PLACEMENT, *sorted(set(_imported_by(PLACEMENT)))]
    sizes = sorted(_sizes_of_classes(), reverse=True)
    return [
        Figure(
            name="lines of placement and the modules that it imports",
            value=sum(map(_lines, read)),
            unit="lines",
            at_most=2800,
            note=", ".join(path.stem for path in read),
        ),
        Figure(name="modules of these", value=len(read), unit="files", at_most=8),
        Figure(
            name="lines of the largest class of graph, engine, driver, worker and study",
            value=sizes[0][0],
            unit="lines",
            at_most=650,
            note=", ".join(f"{name} {lines}" for lines, name in sizes[:5]),
        ),
        Figure(
            name="callables among constructor arguments and fields of graph, engine, worker",
            value=sum(map(_callables, _modules(*CORE[:2], "_worker"))),
            unit="callables",
            at_most=0,
        ),
        *(
            Figure(name=f"lines of {folder}", value=sum(map(_lines, _files(folder))), unit="lines")
            for folder in ("dasktune", "tests", "benchmarks")
        ),
    ]


def _files(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


def _modules(*rooms: str) -> Iterator[Path]:
    for room in rooms:
        yield from sorted((PACKAGE / room).rglob("*.py"))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _imported_by(path: Path) -> Iterator[Path]:
    """Yield the modules of dasktune that a module imports, also for types only."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dasktune."):
            home = ROOT / Path(*str(node.module).split("."))
            names = [home / alias.name for alias in node.names] if home.is_dir() else [home]
            yield from (file for each in names if (file := each.with_suffix(".py")).is_file())


def _sizes_of_classes() -> Iterator[tuple[int, str]]:
    for path in _modules(*CORE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def _callables(path: Path) -> int:
    """Return the number of annotations with `Callable` of constructors and fields of classes."""
    count = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        for each in node.body:
            if isinstance(each, ast.AnnAssign):
                count += "Callable[" in ast.unparse(each.annotation)
            elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
                given = (*each.args.args, *each.args.kwonlyargs)
                texts = (ast.unparse(arg.annotation) for arg in given if arg.annotation)
                count += sum("Callable[" in text for text in texts)
    return count


if __name__ == "__main__":
    sys.exit(main("structure", measure))
