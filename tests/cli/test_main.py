"""The version, the help and the module of the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import dasktune
from dasktune.cli import app


def test_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"dasktune {dasktune.__version__}\n")


@pytest.mark.parametrize("arguments", [["-h"], ["run", "-h"], ["status", "-h"]])
def test_the_short_flag_gives_the_help_of_the_long_one(arguments: list[str]) -> None:
    short, long = (
        CliRunner().invoke(app, [*arguments[:-1], flag]) for flag in (arguments[-1], "--help")
    )
    assert short.exit_code == 0
    assert short.stdout == long.stdout != ""


@pytest.mark.process
def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dasktune", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout == f"dasktune {dasktune.__version__}\n"
