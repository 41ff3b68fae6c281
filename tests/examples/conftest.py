"""The examples are run in folders of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dasktune._study.folder import running_file


@pytest.fixture(autouse=True)
def study_folder(tmp_path: Path) -> Iterator[None]:
    """Keep the studies of files of the repository in the test's folder."""
    with running_file(tmp_path / "study.py"):
        yield
