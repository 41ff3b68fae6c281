"""Study files that a test runs in its own process, as a program of its own would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def without_bytecode() -> Iterator[None]:
    """Write no bytecode: a file that is changed within a second would be taken for the old one."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder; forget at the end what was imported from there."""
    modules, path = set(sys.modules), [*sys.path]
    with pytest.MonkeyPatch.context() as patch, without_bytecode():
        patch.chdir(folder)
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
