"""The page about the doctor shows what can be run, and names every check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dasktune.doctor
from dasktune._cluster.local import LOCAL_SETTINGS
from tests.pages import python_blocks

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
RULES = ("checks", "host_checks")


def test_page_example_runs(tmp_path: Path) -> None:
    (example,) = python_blocks("doctor.md")
    (tmp_path / "flat.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "flat.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("study flat, 1 worker, ")


def test_page_names_every_check() -> None:
    """Checks have their name where they make a finding."""
    folder = Path(dasktune.doctor.__file__).parent
    source = "".join((folder / f"{name}.py").read_text() for name in RULES)
    made = re.findall(r'(?:ok|warning|problem|report)\(\s*"([A-Za-z]+)"', source)
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*?\|", PAGE, re.MULTILINE))))
    assert set(made) >= {"store", "clock", "GPU", "settings", "trainer"}
    assert set(made) <= named


def test_page_settings_are_those_of_a_local_cluster() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    shown = yaml.safe_load(text)["distributed"]
    for part, settings in shown.items():
        for name, value in settings.items():
            assert LOCAL_SETTINGS[f"distributed.{part}.{name}"] == value
