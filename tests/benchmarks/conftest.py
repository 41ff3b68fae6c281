"""The modules of the benchmarks, imported for one test, and their programs as users run them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.forked import run_forked

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = frozenset(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def load() -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module of the benchmarks, for the tests of one file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module
    for name in MODULES & sys.modules.keys():
        del sys.modules[name]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the short version of a benchmark: its figures by name.

    A program that starts processes by itself is not `forked`.
    """

    def figures(name: str, *options: str, forked: bool = True) -> dict[str, Any]:
        path = tmp_path / "figures.json"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--short", "--json", str(path)]
        if forked:
            done = run_forked([*command, *options], text=True, timeout=250)
        else:
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(path.read_text())
        assert document["benchmark"] == name
        assert document["machine"]["cores"] >= 1
        assert document["machine"]["versions"]["dasktune"]
        by_name = {figure["name"]: figure for figure in document["figures"]}
        assert len(by_name) == len(document["figures"])
        assert {figure["reached"] for figure in by_name.values()} <= {True, None}
        return by_name

    return figures
