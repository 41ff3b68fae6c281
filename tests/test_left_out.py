"""Tests whose services are missing (tests/conftest.py)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

pytestmark = pytest.mark.process

SUITE = """
import pytest

@pytest.mark.browser
def test_page(): ...

def test_plain(): ...

@pytest.mark.xfail
def test_known(): raise ValueError
"""
MODULE = "import pytest\npytest.importorskip('no_such_library')\n"
MARKERS = ("browser", "gpu", "fast", "processes", "services", "integrations", "framework")
SETTINGS = "[pytest]\naddopts = -ra --strict-markers\nmarkers =\n" + "".join(
    f"    {marker}: a tier or a part\n" for marker in MARKERS
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def run(folder: Path, *arguments: str, ci: str) -> tuple[int, str]:
    """Run pytest where no browser can be found."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    root = str(Path(__file__).parents[1])
    environment = {"PATH": str(folder), "CI": ci, "HOME": str(folder), "PYTHONPATH": root}
    done = run_forked(command, cwd=folder, env=environment, text=True)
    return done.returncode, done.stdout


def test_a_missing_part_leaves_its_tests_out_by_name(suite: Path) -> None:
    code, output = run(suite, ci="")
    assert code == 0, output
    assert "test_suite.py::test_page: needs Chromium (Debian package: chromium)" in output
    assert "1 passed, 1 skipped, 1 xfailed" in output


def test_a_missing_part_is_a_failure_in_ci(suite: Path) -> None:
    code, output = run(suite, ci="true")
    assert code == 1, output
    assert "left out, which is a failure in CI: needs Chromium" in output
    assert "1 passed, 1 xfailed, 1 error" in output


def test_a_module_left_out_is_a_failure_in_ci(suite: Path) -> None:
    (suite / "test_module.py").write_text(MODULE)
    code, output = run(suite, "test_module.py", ci="")
    assert code == 5, output
    assert "could not import 'no_such_library'" in output
    code, output = run(suite, "test_module.py", ci="true")
    assert code == 2, output
    assert "left out, which is a failure in CI" in output


def test_a_missing_gpu_is_no_failure_in_ci(suite: Path) -> None:
    test = "import pytest\n@pytest.mark.gpu\ndef test_gpu(): pytest.skip('needs a GPU')\n"
    (suite / "test_gpu.py").write_text(test)
    code, output = run(suite, "test_gpu.py", ci="true")
    assert code == 0, output
    assert "test_gpu.py::test_gpu: needs" in output
