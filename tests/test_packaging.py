"""pyproject.toml, constraints.txt and environment.yml say the same."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rattler import MatchSpec

import dasktune

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = {"docs", "mutation", "test", "test-integrations"}
"""Extras for the development of dasktune itself; the page on installation leaves them out."""

CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def requirements(lines: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def declared(*extras: str) -> dict[str, Requirement]:
    """Return the requirements of pyproject, with extras of extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    found = requirements(lines)
    own = found.pop("dasktune", None)
    return found | declared(*own.extras) if own else found


def pins(file: str = "constraints.txt") -> dict[str, Requirement]:
    lines = (ROOT / file).read_text().splitlines()
    return requirements([line for line in lines if line and not line.startswith("#")])


def lower_bound(requirement: Requirement) -> str:
    (only,) = requirement.specifier
    assert only.operator == ">=", requirement
    return only.version


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    assert only.operator == "==", pin
    return only.version


def test_dependencies_have_lower_bounds_only() -> None:
    every = declared(*PROJECT["optional-dependencies"])
    assert {name for name, requirement in every.items() if not lower_bound(requirement)} == set()


def test_lowest_versions_are_the_lower_bounds() -> None:
    lowest = pins("constraints-lowest.txt")
    tools = {Requirement(line).name for line in PROJECT["optional-dependencies"]["test"]}
    for name in declared("test").keys() - tools - {"torch"}:  # its older builds were not tried
        bound = lower_bound(declared("test")[name])
        assert lowest[name].specifier.contains(bound), lowest[name]


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-lowest.txt"])
def test_every_pin_satisfies_its_requirement(file: str) -> None:
    pinned = pins(file)
    for name, requirement in declared("test").items():
        assert name in pinned
        assert requirement.specifier.contains(version(pinned[name])), requirement


def test_all_that_is_needed_is_pinned() -> None:
    assert missing_pins("test") == set()


def missing_pins(extra: str) -> set[str]:
    """Return the packages without a pin that pip would install for an extra on this machine."""
    needed: set[str] = set()
    waiting = [(name, tuple(asked.extras)) for name, asked in declared(extra).items()]
    while waiting:
        name, extras = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += applicable(name, extras)
    missing = needed - pins().keys()
    # torch's GPU libraries are the build's that a machine gets, setuptools is the installer's.
    return {
        name
        for name in missing
        if not name.startswith(("nvidia-", "cuda-", "triton", "setuptools"))
    }


def applicable(name: str, extras: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the requirements of an installed package, with their extras."""
    found = map(Requirement, importlib.metadata.requires(name) or [])
    return [
        (canonicalize_name(one.name), tuple(one.extras))
        for one in found
        if one.marker is None
        or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
    ]


@pytest.mark.parametrize("forbidden", ["pip", "setuptools", "wheel", "dasktune"])
def test_the_installer_is_not_pinned(forbidden: str) -> None:
    assert forbidden not in pins()


def test_constraints_point_at_no_index() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert "--" not in text


def environment() -> tuple[list[str], list[str]]:
    """Return the conda and the pip part of environment.yml."""
    document = yaml.safe_load((ROOT / "environment.yml").read_text())
    parts = document["dependencies"]
    (pip,) = (part["pip"] for part in parts if isinstance(part, dict))
    return [part for part in parts if isinstance(part, str)], pip


def test_conda_specs_are_strictly_valid() -> None:
    specs = [MatchSpec(spec, strict=True) for spec in environment()[0]]
    assert {spec.name.normalized for spec in specs} == {"python", "pip"}
    python = next(spec for spec in specs if spec.name.normalized == "python")
    assert str(python.version) == PROJECT["requires-python"]


def test_conda_users_get_torch_for_cpus_and_no_extra_more() -> None:
    option, *pip = environment()[1]
    assert option.split() == ["--extra-index-url", CPU_BUILDS]
    listed = {name: lower_bound(asked) for name, asked in requirements(pip).items()}
    assert listed == {name: lower_bound(asked) for name, asked in declared("torch").items()}


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_pages_install_tested_versions_and_no_cuda_first(page: str) -> None:
    text = (ROOT / page).read_text()
    lines = re.findall(r"^    (pip install .*'\.\[.*)$", text, re.MULTILINE)
    first, second, *_ = lines
    assert first == f"pip install -c constraints.txt --extra-index-url {CPU_BUILDS} '.[torch]'"
    assert second == "pip install -c constraints.txt '.[torch]'"
    assert all("-c constraints.txt" in line for line in lines)


@pytest.mark.process
def test_an_extra_is_added_to_the_installed_package() -> None:
    """No index has the package: pip takes the one that is there."""
    line = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index"]
    done = subprocess.run([*line, "dasktune[torch,s3]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: dasktune[s3,torch]" in done.stdout


def test_extras_of_the_installation_page_are_those_of_pyproject() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))
    assert named == set(PROJECT["optional-dependencies"]) - TOOLS


def test_the_installed_version_is_the_packages() -> None:
    assert importlib.metadata.version("dasktune") == dasktune.__version__


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_repository_has(name: str) -> None:
    assert (ROOT / name).stat().st_size > 500


def test_ci_script_can_be_run() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
