"""Tests use what a part of the package shows to others: no attribute that begins with `_`.

Such a test breaks whenever the inside of a part changes, though nothing that others see does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

Functions = ast.FunctionDef | ast.AsyncFunctionDef

LIBRARY = "the name of another library, which the package happens to use too"
NO_NAME = "what a test starts, stops or looks at there has no name that others see yet"
INSIDE = "the test is about memory, time or order, which nothing shows to others"

EXCEPTIONS: dict[str, dict[str, str]] = {
    "cluster/test_fork_server.py": {"_STARTED": NO_NAME},
    "cluster/test_workers.py": {"_resources": NO_NAME, "_greet": NO_NAME, "_known": NO_NAME},
    "driver/retention/test_evict.py": {"_dispatcher": NO_NAME},
    "driver/test_attempts.py": {"_open": INSIDE},
    "driver/test_clock_set_back.py": {"_run": NO_NAME},
    "driver/test_failures.py": {"_optimizer": NO_NAME, "_engine": NO_NAME},
    "driver/test_going_on.py": {"_print_results": NO_NAME},
    "driver/test_leases.py": {"_file": NO_NAME},
    "driver/test_look_ups.py": {
        "_turn": INSIDE,
        "_optimizer": NO_NAME,
        "_engine": NO_NAME,
        "_open": INSIDE,
    },
    "driver/test_lost_workers.py": {"_optimizer": NO_NAME, "_engine": NO_NAME},
    "driver/test_numeric_classes.py": {"_put": NO_NAME},
    "driver/test_restart.py": {"_optimizer": NO_NAME, "_leaving": INSIDE, "_futures": INSIDE},
    "driver/test_runner.py": {"_optimizer": NO_NAME, "_engine": NO_NAME, "_leaving": INSIDE},
    "driver/test_save_requests.py": {"_running": INSIDE, "_requested": INSIDE},
    "engine/test_engine.py": {"_session": INSIDE},
    "graph/test_dispatch.py": {"_rows": INSIDE},
    "graph/test_ends.py": {"_heap": INSIDE},
    "graph/test_gang_machine.py": {"_end": NO_NAME},
    "graph/test_known.py": {"_rows": INSIDE},
    "graph/test_market.py": {"_dispatcher": NO_NAME, "_draining": INSIDE},
    "graph/test_numeric_classes.py": {"_on_new": NO_NAME},
    "holding.py": {"_controls": INSIDE, "_saves": INSIDE},
    "integrations/test_mlflow.py": {"_client": NO_NAME},
    "results/test_results.py": {"_shown": INSIDE},
    "storage/test_codec.py": {"_metadata": LIBRARY},
    "study/test_open_code.py": {
        "_training": NO_NAME,
        "_states": NO_NAME,
        "_exports": NO_NAME,
        "_module": NO_NAME,
    },
    "torture/bugs.py": {"_dispatcher": NO_NAME},
    "torture/driver.py": {"_waiting": NO_NAME, "_removals": NO_NAME, "_held": NO_NAME},
    "trainer/resume_kinds/hidden.py": {"_version": LIBRARY},
    "trainer/test_contents.py": {"_version": LIBRARY},
    "trainer/test_settings.py": {"_LAST": NO_NAME, "_MADE": NO_NAME},
    "worker/test_clean_process.py": {"_STARTS": NO_NAME},
    "worker/test_divided.py": {"_pipe": NO_NAME, "_peers": NO_NAME},
}
"""The names that a test file may still use, each with its reason. Take out, add none."""


def is_private(name: str) -> bool:
    """Return whether a name is private; names such as `_repr_html_` belong to protocols."""
    return name.startswith("_") and not name.endswith("_")


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Yield the private functions, classes, attributes and variables that a tree defines."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield from filter(is_private, [name])
            case ast.AsyncFunctionDef(name=name):
                yield from filter(is_private, [name])
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield from filter(is_private, [name])


def defined_by_classes(tree: ast.AST) -> set[str]:
    """Return the private names that the classes of a tree define."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {name for node in classes for part in node.body for name in defined_in(part)}


def uses_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private name that a tree takes from elsewhere.

    Attributes of other things than `self`, imports from the package, and names as texts, as in
    ``monkeypatch.setattr(module, "_name", value)``.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("dasktune"):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.Call(args=[_, ast.Constant(value=str(name)), *_]):
                yield node.lineno, name
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if "dasktune." in name:
                yield node.lineno, name.rpartition(".")[2]


def private_uses(tree: ast.AST, defined: frozenset[str]) -> dict[str, int]:
    """Return the lines of the private names of the package that a test file uses, by name."""
    own = defined_by_classes(tree)
    return {
        name: line
        for line, name in sorted(uses_in(tree), reverse=True)
        if is_private(name) and name in defined and name not in own
    }


@pytest.fixture(scope="module")
def defined() -> frozenset[str]:
    """Return the private names that the package defines."""
    files = (ROOT / "dasktune").rglob("*.py")
    return frozenset(name for file in files for name in defined_in(ast.parse(file.read_text())))


def test_tests_use_no_private_names(defined: frozenset[str]) -> None:
    problems, needless = [], []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        place = file.relative_to(ROOT / "tests").as_posix()
        allowed = EXCEPTIONS.get(place, {})
        uses = private_uses(ast.parse(file.read_text()), defined)
        problems += [f"{place}:{uses[name]} {name}" for name in uses if name not in allowed]
        needless += [f"{place} {name}" for name in allowed if name not in uses]
    assert not problems, "test what others see, or make the name public:\n" + "\n".join(problems)
    assert not needless, "no longer used, so take it out of EXCEPTIONS:\n" + "\n".join(needless)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("study._loop.run()", {"_loop"}),
        ("from dasktune.part import _loop", {"_loop"}),
        ("from another.part import _loop", set()),
        ("monkeypatch.setattr(part, '_loop', None)", {"_loop"}),
        ("monkeypatch.setattr('dasktune.part._loop', None)", {"_loop"}),
        ("self._loop, cls._loop, part._other", set()),
        ("class Own:\n    def _loop(self): ...\nOwn()._loop()", set()),
        ("class Own:\n    def __init__(self): self._loop = 1\nOwn()._loop", set()),
    ],
)
def test_private_uses_are_those_of_the_package(text: str, names: set[str]) -> None:
    assert private_uses(ast.parse(text), frozenset({"_loop"})).keys() == names
