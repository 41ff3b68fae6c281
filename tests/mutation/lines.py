"""Lines of the package, and the tests that execute them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def record(tree: Path, place: Path, parts: Sequence[str], options: Sequence[str]) -> None:
    """Run tests in a tree, and write which of them executes which lines.

    Parameters
    ----------
    tree
        The root of a copy of the repository.
    place
        Where the records are written, with the suffixes ``.coverage`` and ``.seconds``.
    parts
        The folders of the package whose lines are recorded.
    options
        Options of pytest; they select the tests.
    """
    source = ",".join(f"dasktune.{part}" for part in parts)
    run = [sys.executable, "-m", "coverage", "run", f"--source={source}"]
    pytest = ["-m", "pytest", "-q", "-p", "tests.mutation.record", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "COVERAGE_CORE": "ctrace",
        "COVERAGE_FILE": f"{place}.coverage",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tree),
        "SECONDS_OF_TESTS": f"{place}.seconds",
    }
    subprocess.run([*run, *pytest, *options], cwd=tree, env=environment, stdout=sys.stderr)


class ExecutedLines:
    """The tests that execute each line, as `record` has written them.

    Parameters
    ----------
    folder
        Contains what was recorded.
    root
        The tree in which the tests ran.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._tests: dict[str, dict[int, set[str]]] = {}
        self._seconds: dict[str, float] = {}
        for path in sorted(folder.glob("*.seconds")):
            self._seconds |= json.loads(path.read_text())
        for path in sorted(folder.glob("*.coverage")):
            self._add(path, root)

    def of(self, path: str) -> Mapping[int, set[str]]:
        """Return the tests by line of a file."""
        return self._tests.get(path, {})

    def tests_of(self, path: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that execute any of the lines, the quickest first."""
        tests = set().union(*(self.of(path).get(line, set()) for line in lines))
        return sorted(tests, key=lambda test: (self.seconds(test), test))

    def seconds(self, test: str) -> float:
        """Return how long a test took while its lines were recorded."""
        return self._seconds.get(test, 0.0)

    def _add(self, path: Path, root: Path) -> None:
        from coverage import CoverageData  # only where lines are recorded

        data = CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            by_line = self._tests.setdefault(str(Path(file).relative_to(root)), {})
            for line, tests in data.contexts_by_lineno(file).items():
                # A test that failed cannot catch anything.
                if passed := self._seconds.keys() & set(tests):
                    by_line.setdefault(line, set()).update(passed)
