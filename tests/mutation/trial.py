"""Trials of mutants: in a copy of the tree, which test notices the change?"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

LIBRARIES = ("dask", "distributed", "numpy", "optuna", "pytest", "sqlalchemy", "torch")
"""Imported once, before a process is forked for each run of tests."""

SEEDS = 500
"""Seeds of torture that each mutant has to pass."""

NOTICED = 1
"""Exit code of pytest, and of torture, if something failed."""


class Change(Protocol):
    """A change of one file."""

    @property
    def path(self) -> str:
        """File, from the root of the repository."""

    def apply(self, source: str) -> str:
        """Return the source of the file with the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The outcome of one run of tests.

    Attributes
    ----------
    code
        The exit code; None if it did not end in its time.
    output
        What it printed.
    """

    code: int | None
    output: str

    @property
    def failed(self) -> str:
        """The first test that failed, or the seed; the empty string if none is named."""
        for line in self.output.splitlines():
            if line.startswith("python -m tests.torture --seed "):
                return line
            if line.startswith(("FAILED tests/", "ERROR tests/")):  # no error line of a log
                return line.partition(" ")[2].partition(" - ")[0]
        return ""


def copy_of_tree(root: Path, target: Path) -> None:
    """Copy the files that git knows, as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in names:
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


@contextmanager
def changed(tree: Path, change: Change) -> Iterator[Path]:
    """Provide a copy of a tree with one change."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(tree, copy, symlinks=True)
        path = copy / change.path
        path.write_text(change.apply(path.read_text()))
        yield copy


def caught_by(
    tree: Path, change: Change, tests: Sequence[str], seconds: Callable[[str], float]
) -> str:
    """Return the test, or the seed of torture, that notices a change; else the empty string.

    What also fails without the change, or does not end, has noticed nothing.

    Parameters
    ----------
    tree
        The files without the change.
    change
        What is tried.
    tests
        The tests that are run until one fails; none stands for torture.
    seconds
        How long a test takes.
    """
    limit = 120 + 10 * sum(map(seconds, tests))
    with changed(tree, change) as copy:
        run = run_group(copy, tests, limit)
    if run.code == 0:
        return ""
    suspects = [run.failed] if run.failed in tests else tests
    return _words(run) if run_group(tree, suspects, limit).code == 0 else ""


def _words(run: Run) -> str:
    if run.code is None:
        return "does not end"
    return run.failed or f"exit code {run.code}"


def run_group(tree: Path, tests: Sequence[str], limit: float) -> Run:
    """Run tests, or torture if there are none, in a forked process; end it after `limit` s."""
    return forked(tree, (lambda: _pytest(tests)) if tests else _torture, limit)


def _pytest(tests: Sequence[str]) -> int:
    import pytest

    options = [
        "-x",
        "-q",
        "-rfE",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--timeout=120",
    ]
    return int(pytest.main([*options, *tests]))


def _torture() -> int:
    many = importlib.import_module("tests.torture.seeds").many
    for findings in many(0, SEEDS):
        for finding in findings:
            if finding.problem is not None:
                print(finding.command, flush=True)
                return NOTICED
    return 0


def forked(tree: Path, work: Callable[[], int], limit: float) -> Run:
    """Do work in a fork of this process that imports the package and its tests from a tree."""
    with tempfile.TemporaryFile("w+") as output:
        process = os.fork()
        if process == 0:
            _become(tree, output.fileno(), work)
        code = _end_of(process, limit)
        output.seek(0)
        return Run(code=code, output=output.read())


def _become(tree: Path, output: int, work: Callable[[], int]) -> None:
    """Do work in this process, which was forked, and leave it."""
    code = 3
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        sys.path.insert(0, str(tree))
        for name in [
            name for name in sys.modules if name.partition(".")[0] in ("tests", "dasktune")
        ]:
            del sys.modules[name]
        code = work()
    except BaseException:  # noqa: BLE001 - the process must not go on in its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _end_of(process: int, limit: float) -> int | None:
    """Wait for a process; end it and all that it has started after so many seconds."""
    code = None
    with suppress(psutil.TimeoutExpired):
        code = psutil.Process(process).wait(limit)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if code is None:
        os.waitpid(process, 0)
    return code
