"""Modules that every worker has are told from those of a study."""

from __future__ import annotations

import functools
import math
import os
import sysconfig
from importlib.machinery import ModuleSpec
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


def test_module_without_files_is_installed_if_it_has_a_spec() -> None:
    made = ModuleType("made_for_this_test")
    assert not installed.is_installed(made)
    made.__spec__ = ModuleSpec("made_for_this_test", None)
    assert installed.is_installed(made)


def test_namespace_package_is_installed_if_all_its_folders_are(tmp_path: Path) -> None:
    library, own = f"{sysconfig.get_path('purelib')}/made_for_this_test", str(tmp_path)
    for folders, is_installed in (([library], True), ([library, own], False), ([own], False)):
        package = ModuleType("made_for_this_test")
        package.__path__ = folders
        assert installed.is_installed(package) is is_installed


def test_home_is_the_module_that_holds_a_callable() -> None:
    assert installed.home_of(np.add) == "numpy"
    assert installed.home_of(math.sqrt) == "math"
    assert installed.home_of(str.upper) == installed.home_of("a".upper) == "builtins"
    assert installed.home_of(dict.fromkeys) == "builtins"
    assert installed.home_of(module_in) == __name__
    assert installed.home_of(lambda: 1) is None
    assert installed.home_of(functools.partial(module_in)) is None


def test_module_of_a_callable_without_one_is_that_of_its_class() -> None:
    made = functools.partial(module_in)
    assert installed.module_of(made) == "functools"
    assert installed.module_of(module_in) == __name__

    def nameless() -> None: ...

    nameless.__module__ = None  # type: ignore[assignment]
    assert installed.module_of(nameless) == "builtins"


def test_named_function_is_one_that_its_module_holds() -> None:
    def inner() -> None: ...

    assert installed.is_named(module_in)
    assert installed.is_named(ModuleType.__init__) is False
    assert installed.is_named(Path.exists)
    assert not installed.is_named(inner)


@pytest.mark.parametrize(
    ("name", "is_installed"),
    [("json", True), ("numpy", True), ("xml", True), ("no_such_module", False), (__name__, False)],
)
def test_name_is_installed_without_its_import(name: str, is_installed: bool) -> None:
    assert installed.is_installed_name(name) is is_installed
