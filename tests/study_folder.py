"""Study files that a test runs in its own process, as a program of its own would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder; forget at the end what was imported from there.

    No bytecode is written: a file that is changed within a second would be taken for the old one.
    """
    modules, path = set(sys.modules), [*sys.path]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "dont_write_bytecode", True)
        try:
            yield
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
