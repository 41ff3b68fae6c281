"""Every public name, documented import path and command of version 0.1.0 is still there.

``written_before/public_names.json`` was written by `make_public_names`, before the modules
moved. Only ``dasktune torture`` and ``dasktune chaos`` with their modules are left out, which
are tests of dasktune itself, and the live mirror into an Optuna storage, which is gone.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main

from dasktune.cli import app

HERE = Path(__file__).parent
NAMES = json.loads((HERE / "written_before" / "public_names.json").read_text())
IMPORTS = [(module, name) for module, names in NAMES["imports"].items() for name in names]


def named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def broken(thing: Any, kept: list[list[Any]]) -> list[str]:
    """Return which calls that worked before would fail now."""
    now = inspect.signature(thing).parameters
    old = {name for name, _, _ in kept}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in now.values())
    positional = [one.name for one in now.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    before = [name for name, kind, _ in kept if kind == "POSITIONAL_OR_KEYWORD"]
    problems = [f"{name} is not taken" for name in old - now.keys() if not takes_any]
    problems += [
        f"{name} is needed now"
        for name, one in now.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and (name not in old or any(at[0] == name and at[2] for at in kept))
    ]
    if positional[: len(before)] != before:
        problems.append(f"positions were {before}, are {positional}")
    return problems


MADE_FOR_USERS = ("dasktune:Study", "dasktune.simulate:Simulation")
"""Classes that public functions make: their constructors are private."""


@pytest.mark.process
@pytest.mark.parametrize("module", NAMES["modules"])
def test_documented_module_is_importable(module: str) -> None:
    # In a new process: here another test may have imported what it needs.
    command = f"import sys, {module}; assert {module!r} in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True, timeout=120)


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_public_name_is_importable(module: str, name: str) -> None:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize("module", NAMES["star"])
def test_list_of_public_names_only_grows(module: str) -> None:
    assert set(NAMES["star"][module]) <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("path", NAMES["signatures"])
def test_public_name_takes_its_old_arguments(path: str) -> None:
    thing, kept = named(path), NAMES["signatures"][path]
    if kept["parameters"] is not None and path not in MADE_FOR_USERS:
        assert broken(thing, kept["parameters"]) == []
    for member, parameters in kept["members"].items():
        fields = getattr(thing, "__dataclass_fields__", {})
        assert hasattr(thing, member) or member in fields, f"{path}.{member}"
        if parameters is not None:
            assert broken(getattr(thing, member), parameters) == [], f"{path}.{member}"


@pytest.mark.parametrize("name", NAMES["loggers"])
def test_documented_logger_is_the_one_that_logs(name: str) -> None:
    importlib.import_module("dasktune.storage.checkpoints")
    loggers = [
        getattr(module, "logger", None)
        for path, module in list(sys.modules.items())
        if path.startswith("dasktune.storage.")
    ]
    assert logging.getLogger(name) in loggers


def test_console_script_is_unchanged() -> None:
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == NAMES["scripts"]


@pytest.mark.process
@pytest.mark.parametrize("command", NAMES["run_by_job_scripts"], ids=" ".join)
def test_command_of_old_job_scripts_runs(command: list[str]) -> None:
    how, what, *words = command
    done = subprocess.run(
        [sys.executable, how, what, "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words)


@pytest.mark.parametrize("name", NAMES["commands"])
def test_command_keeps_its_arguments_and_options(name: str) -> None:
    group: Any = typer.main.get_command(app)
    command, kept = group.commands[name], NAMES["commands"][name]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    assert len(arguments) == len(kept["arguments"])
    options = {
        flag: {"is_flag": one.is_flag, "multiple": one.multiple}
        for one in command.params
        if one.param_type_name == "option"
        for flag in (*one.opts, *one.secondary_opts)
    }
    for flag, each in kept["options"].items():
        assert options[flag]["is_flag"] == each["is_flag"], flag
        # An option that may come several times may still come once.
        assert options[flag]["multiple"] or not each["multiple"], flag
