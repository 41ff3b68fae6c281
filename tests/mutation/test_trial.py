"""Trials on a small tree: what catches a change, and what proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.planted import Planted
from tests.mutation.trial import caught_by, forked

# Python warns of forks beside other threads; here the fork runs small tests and ends.
pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

SOURCE = """
def area(a, b):
    while a < 0:
        a += 1
    return a * b
"""

TESTS = """
import small

def test_area():
    assert small.area(2, 3) == 6

def test_sign():
    assert small.area(-1, 3) == 0

def test_wrong_anyway():
    assert small.area(2, 2) == 5
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree of one module and its tests."""
    folder = tmp_path / "small-tree"
    (folder / "tests").mkdir(parents=True)
    (folder / "small.py").write_text(SOURCE)
    (folder / "tests" / "test_small.py").write_text(TESTS)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return folder


def caught(tree: Path, before: str, after: str, *tests: str) -> str:
    """Return the test that catches a change of the module, of these tests."""
    bug = Planted(name="a bug", path="small.py", before=before, after=after)
    return caught_by(tree, bug, [f"tests/test_small.py::{test}" for test in tests], lambda _: 0.0)


def test_change_is_caught_by_the_test_that_fails(tree: Path) -> None:
    name = "tests/test_small.py::test_sign"
    assert caught(tree, "a += 1", "a += 2", "test_area", "test_sign") == name
    assert (tree / "small.py").read_text() == SOURCE


def test_change_that_no_test_notices_survives(tree: Path) -> None:
    assert caught(tree, "a < 0", "a < -1", "test_area") == ""


def test_test_that_fails_without_the_change_proves_nothing(tree: Path) -> None:
    assert caught(tree, "a < 0", "a < -1", "test_wrong_anyway") == ""


def test_change_that_breaks_the_import_is_caught(tree: Path) -> None:
    assert caught(tree, "return a * b", "return (", "test_area").startswith("tests/test_small.py")


def test_run_that_does_not_end_is_ended_with_its_children(tree: Path) -> None:
    def hang() -> int:
        import subprocess

        subprocess.run(["sleep", "1000"])
        return 0

    assert forked(tree, hang, 0.5).code is None
