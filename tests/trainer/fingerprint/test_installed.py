"""Modules that every worker has are told from those of a study."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dasktune
from dasktune.trainer.code import loads_apart
from dasktune.trainer.fingerprint import installed


def module_in(file: str | os.PathLike[str]) -> ModuleType:
    module = ModuleType("made_for_this_test")
    module.__file__ = str(file)
    return module


def test_modules_of_one_folder_resolve_it_once() -> None:
    package = Path(sysconfig.get_path("purelib"), "made_for_this_test")
    before = installed.is_library_folder.cache_info().misses
    assert all(installed.is_installed(module_in(package / f"{n}.py")) for n in range(20))
    assert installed.is_library_folder.cache_info().misses == before + 1


def test_module_of_a_study_is_not_installed(tmp_path: Path) -> None:
    assert not installed.is_installed(module_in(tmp_path / "study.py"))


def test_link_counts_as_the_file_to_which_it_leads(tmp_path: Path) -> None:
    (tmp_path / "study.py").touch()
    for name, target in (("numpy.py", np.__file__), ("linked.py", tmp_path / "study.py")):
        (tmp_path / name).symlink_to(target)
    assert installed.is_installed(module_in(tmp_path / "numpy.py"))
    assert not installed.is_installed(module_in(tmp_path / "linked.py"))


@pytest.mark.parametrize("name", ["dasktune", "dasktune._study"])
def test_dasktune_is_installed_wherever_it_is(tmp_path: Path, name: str) -> None:
    module = ModuleType(name)
    module.__file__ = str(tmp_path / "unpacked.py")
    assert installed.is_installed(module)


def test_own_file_with_a_name_of_python_is_not_installed(tmp_path: Path) -> None:
    assert all(map(installed.is_installed, (math, json, json.decoder, sys, os)))
    own = ModuleType("statistics")
    own.__file__ = str(tmp_path / "statistics.py")
    assert not installed.is_installed(own)


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


PLACES = {
    "beside": False,  # the study's own folder
    "on_path": False,  # PYTHONPATH
    "by_pth": False,  # a folder that a .pth file adds
    "edited": False,  # an editable install
    "statistics": False,  # a file of the user with a name of the standard library
    "target": True,  # pip install --target
    "target_space.part": True,
    "target_space.mine": False,
    "mine_in_target": False,  # a file of the user in that folder
    "foreign": True,  # site-packages of another environment, by PYTHONPATH
    "foreign_by_pth": True,  # the same, by a .pth file
    "linked": True,  # links to a cache of unpacked distributions
    "linked_to_mine": False,  # a link in site-packages to a file of the user
    "numpy": True,
}
"""Modules, each in a place of its own, and whether they are installed."""

ASK = """
import importlib, json, sys
from dasktune.trainer.code import loads_apart
from dasktune.trainer.fingerprint import installed

def ask(name):
    top = name.partition(".")[0]
    before = installed.is_installed_name(name) if top == name and name not in sys.modules else None
    module = importlib.import_module(name)
    answer = installed.is_installed(module)
    assert before in (None, answer), name
    return answer

print(json.dumps({name: ask(name) for name in sys.argv[1:]}))
"""

STUDY = """
import json, sys
import by_pth, edited, foreign_by_pth, on_path, statistics
from dasktune.trainer.code import pack
from dasktune.trainer.fingerprint import fingerprint

class Net:
    def train(self):
        return by_pth.f() + edited.f() + on_path.f() + statistics.f()

class Scored(Net):
    def evaluate(self):
        return foreign_by_pth.f()

taken, code = fingerprint(Scored, {}), pack(Net)
with open(sys.argv[1], "wb") as file:
    file.write(code.payload)
kinds = [code.kind, pack(edited.Own).kind, pack(foreign_by_pth.Own).kind]
print(json.dumps([sorted(taken.parts), list(taken.packages), kinds]))
"""


def write(folder: Path, *files: str, distribution: str = "", editable: str = "") -> Path:
    """Write modules, and the metadata of a distribution that lists them."""
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f():\n    return 1\n\n\nclass Own:\n    pass\n")
    if distribution:
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files if not editable))
        if editable:
            origin = {"url": Path(editable).as_uri(), "dir_info": {"editable": True}}
            (info / "direct_url.json").write_text(json.dumps(origin))
            (info / "top_level.txt").write_text(f"{distribution}\n")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return the Python of an environment with a module in each place, and its variables."""
    top = tmp_path_factory.mktemp("places")
    venv.create(top / "env", with_pip=False)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site_packages = top / "env" / "lib" / version / "site-packages"
    write(top / "study", "beside.py", "statistics.py")
    write(top / "on_path", "on_path.py")
    write(top / "by_pth", "by_pth.py")
    write(top / "project" / "src", "edited/__init__.py")
    write(site_packages, distribution="edited", editable=str(top / "project"))
    listed = ("target/__init__.py", "target_space/part.py")
    target = write(top / "target", *listed, distribution="target")
    write(target, "mine_in_target.py", "target_space/mine.py")
    foreign = write(top / "other" / "lib" / version / "site-packages", "foreign.py")
    another = write(top / "another" / "lib" / version / "site-packages", "foreign_by_pth.py")
    cache = write(top / "cache" / "a1b2", "linked/__init__.py", distribution="linked")
    (site_packages / "linked").mkdir()
    (site_packages / "linked" / "__init__.py").symlink_to(cache / "linked" / "__init__.py")
    (site_packages / "linked_to_mine.py").symlink_to(top / "by_pth" / "by_pth.py")
    lines = (top / "by_pth", top / "project" / "src", another)
    (site_packages / "folders.pth").write_text("".join(f"{line}\n" for line in lines))
    (top / "study" / "ask.py").write_text(ASK)
    (top / "study" / "study.py").write_text(STUDY)
    here = Path(dasktune.__file__).parents[1]
    path = (top / "on_path", target, foreign, here, sysconfig.get_path("purelib"))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return top, variables


@pytest.mark.process
def test_a_module_is_installed_by_where_it_is(places: tuple[Path, dict[str, str]]) -> None:
    """In a real environment, whose own packages are not those of dasktune."""
    top, variables = places
    command = [top / "env" / "bin" / "python", top / "study" / "ask.py", *PLACES]
    answer = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE)
    assert json.loads(answer.stdout) == PLACES


@pytest.mark.process
def test_own_code_counts_and_travels_wherever_it_is(places: tuple[Path, dict[str, str]]) -> None:
    top, variables = places
    payload = top / "payload"
    command = [top / "env" / "bin" / "python", top / "study" / "study.py", payload]
    answer = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE)
    parts, packages, kinds = json.loads(answer.stdout)
    functions = [f"function f{number}" for number in ("", " (2)", " (3)", " (4)")]
    assert parts == ["class Net", "class Scored", "config", *functions, "version"]
    assert packages == ["foreign_by_pth"]
    assert kinds == ["bytes", "import", "import"]
    net = loads_apart(payload.read_bytes())
    assert net().train() == 4, "this process has none of the modules"
