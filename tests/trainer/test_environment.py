"""The versions that count are those installed, whatever a process has imported."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from dasktune.trainer.environment import _installed, environment

TWICE = """
import sys
from dasktune.trainer.environment import environment
before = environment("cpu")
assert "torch" not in sys.modules
import torch
assert environment("cpu") == before, (environment("cpu"), before)
"""


@pytest.mark.process
def test_an_import_changes_nothing() -> None:
    subprocess.run([sys.executable, "-c", TWICE], check=True)


def test_all_that_is_installed_is_named() -> None:
    found = environment("cuda:0")
    assert found["device"] == "cuda:0"
    assert found["python"] == sys.version.split()[0]
    for package in ("numpy", "torch", "dasktune"):
        assert found[package] == metadata.version(package)


def test_what_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    _installed.cache_clear()
    monkeypatch.setattr(metadata, "version", missing)
    assert environment("cpu")["torch"] is None
    _installed.cache_clear()
