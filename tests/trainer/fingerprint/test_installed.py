"""Modules that every worker has are told from those of a study."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dasktune.trainer.fingerprint import installed


def module_in(file: str | os.PathLike[str]) -> ModuleType:
    module = ModuleType("made_for_this_test")
    module.__file__ = str(file)
    return module


def test_modules_of_one_folder_resolve_it_once() -> None:
    package = Path(sysconfig.get_path("purelib"), "made_for_this_test")
    before = installed._is_library.cache_info().misses
    assert all(installed.is_installed(module_in(package / f"{n}.py")) for n in range(20))
    assert installed._is_library.cache_info().misses == before + 1


def test_module_of_a_study_is_not_installed(tmp_path: Path) -> None:
    assert not installed.is_installed(module_in(tmp_path / "study.py"))


def test_link_counts_as_the_file_to_which_it_leads(tmp_path: Path) -> None:
    (tmp_path / "study.py").touch()
    for name, target in (("numpy.py", np.__file__), ("linked.py", tmp_path / "study.py")):
        (tmp_path / name).symlink_to(target)
    assert installed.is_installed(module_in(tmp_path / "numpy.py"))
    assert not installed.is_installed(module_in(tmp_path / "linked.py"))


@pytest.mark.parametrize("name", ["dasktune", "dasktune.study", "json", "json.decoder"])
def test_dasktune_and_python_are_installed_wherever_they_are(tmp_path: Path, name: str) -> None:
    module = ModuleType(name)
    module.__file__ = str(tmp_path / "unpacked.py")
    assert installed.is_installed(module)


def test_main_module_is_never_installed() -> None:
    module = ModuleType("__main__")
    module.__file__ = os.__file__
    assert not installed.is_installed(module)
