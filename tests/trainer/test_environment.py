"""The versions that count are those installed, whatever a process has imported."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from dasktune.trainer.environment import environment, installed_version

TWICE = """
import sys
from dasktune.trainer.environment import environment
before = environment("cpu")
assert "torch" not in sys.modules
import torch
assert environment("cpu") == before, (environment("cpu"), before)
"""


@pytest.mark.process
def test_environment_does_not_depend_on_imports() -> None:
    subprocess.run([sys.executable, "-c", TWICE], check=True)


def test_environment_names_installed_versions() -> None:
    found = environment("cuda:0")
    assert found["device"] == "cuda:0"
    assert found["python"] == sys.version.split()[0]
    for package in ("numpy", "torch", "dasktune"):
        assert found[package] == metadata.version(package)


def test_version_of_a_missing_package_is_none() -> None:
    assert installed_version("no-such-package-of-dasktune") is None
