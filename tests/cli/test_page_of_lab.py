"""docs/lab.md: its files can be read, and its preview meets all needs."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dasktune.cli import app
from dasktune.cli.target import place_of
from tests.study_folder import working_in

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
FILES = ("dask.yaml", "scheduler.sh", "workers.sh", "dasktune.toml", "digits.py")
BLOCKS = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)


def command(text: str) -> list[str]:
    """Return the words of the first command of the block that has a text."""
    (block,) = (block for block in BLOCKS[len(FILES) :] if text in block)
    return shlex.split(block.replace("\\\n", " ").splitlines()[0])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with the files of the page, which is the home, too."""
    for name, block in zip(FILES, BLOCKS, strict=False):
        (tmp_path / name).write_text(block)
    monkeypatch.setenv("HOME", str(tmp_path))
    with working_in(tmp_path):
        yield tmp_path


def test_files_of_the_lab_can_be_read(lab: Path) -> None:
    settings = yaml.safe_load((lab / "dask.yaml").read_text())["distributed"]
    assert settings["worker"] == {"daemon": False}
    assert settings["scheduler"]["worker-ttl"] == "60s"
    assert place_of(lab, {}).scheduler_file == str(lab / "scheduler.json")
    for script in ("scheduler.sh", "workers.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_preview_of_the_lab_meets_all_needs(lab: Path) -> None:
    program, *words = command("dasktune preview")
    done = CliRunner().invoke(app, words)
    assert (program, done.exit_code) == ("dasktune", 0), done.stderr
    assert "16 trials" in done.stdout
    refused = CliRunner().invoke(app, [word for word in words if word != "cpu:tags=cpu"][:-1])
    assert "no worker has tag cpu" in refused.stderr
