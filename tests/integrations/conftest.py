"""The files of this folder that can be read only with the framework that they test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dasktune._study.folder import running_file

READ_WITH = {
    "test_accelerate.py": "accelerate",
    "test_keras.py": "keras",
    "test_lightning.py": "lightning",
    "test_transformers.py": "transformers",
}
"""Files that derive from classes of a framework, so that no marker comes before its import."""

collect_ignore = [name for name, package in READ_WITH.items() if find_spec(package) is None]


@pytest.fixture(autouse=True)
def study_folder(tmp_path: Path) -> Iterator[None]:
    """Keep the studies of files of the repository in the test's folder."""
    with running_file(tmp_path / "study.py"):
        yield
