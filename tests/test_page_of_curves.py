"""What docs/learning-curves.md shows is run, and the command prints what it says."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from typer.testing import CliRunner

from dasktune.algos import curves
from dasktune.cli import app

PAGE = (Path(__file__).parents[1] / "docs" / "learning-curves.md").read_text()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, two_threads: Client) -> dict[str, Any]:
    """Run the page from its beginning to its end; return the names it has defined."""
    folder = tmp_path_factory.mktemp("docs")
    blocks = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    code = blocks.replace("limits=dt", "client=client, progress=False, limits=dt")
    (folder / "page_of_curves.py").write_text(code)
    spec = spec_from_file_location("page_of_curves", folder / "page_of_curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    module.client = two_threads  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(sys.modules, "page_of_curves", module)
        spec.loader.exec_module(module)
    return {**vars(module), "folder": folder}


def test_the_page_predicts_in_the_metrics_own_unit(shown: dict[str, Any]) -> None:
    found = shown["outlook"]
    assert found.steps == (60, 80)
    assert all(0 <= low <= high <= 1 for low, high in found.interval(0.8))
    assert 0 <= found.chance(0.77) <= 1
    assert found.curve.rates[0] == (0, 0.04)
    assert found.curve.siblings, "all three begin alike"
    assert shown["careful"].steps == (60, 80)
    assert shown["study"].summary()["suspensions"]["count"] > 0


def test_the_command_prints_what_the_page_shows(shown: dict[str, Any]) -> None:
    command, *lines = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    plot = shown["folder"] / "fan.svg"
    arguments = command.removeprefix("$ dasktune ").split()
    arguments[arguments.index("--trial") + 1] = str(shown["number"])
    arguments[arguments.index("runs/net")] = str(shown["folder"] / "runs" / "net")
    arguments[arguments.index("fan.svg")] = str(plot)
    done = CliRunner().invoke(app, [*arguments, "--step", "80"])
    assert done.exit_code == 0, done.stderr
    first, header, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"trial \d: accuracy 0\.\d+ at step \d+ of 40 \(maximize\)", first)
    assert header.split() == lines[1].split()
    assert last.split()[0] == lines[-1].split()[0] or "already" in last
    assert plot.read_text().startswith("<svg")


def test_the_predictors_of_the_page_are_those_that_there_are() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    there = [one for one in named if hasattr(curves, one)]
    assert {"PriorFitted", "Persistence"} <= set(there)
