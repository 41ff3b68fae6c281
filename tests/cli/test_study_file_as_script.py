"""A study file is run as a script of its own: its arguments, working folder, prints and exits."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from dasktune.cli.commands import app
from dasktune.cli.study_file import load
from dasktune.errors import ConfigurationError

BODY = """
import dasktune as dt

def train(run):
    for _ in run.steps():
        run.report(loss=run["x"])

{study}

tuner = dt.algos.Grid(dt.Space(x=[1.0, 2.0]), max_steps=3)
"""
MADE = "study = dt.create_study(train, name='s', storage='runs', metric='loss')"
FUNCTION = f"def study():\n    {MADE}\n    return study"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder beside that of the study file."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, head: str, study: str = FUNCTION) -> str:
    """Write a study file that begins with `head`; return its path from the working folder."""
    file = folder / "project" / f"tune_{folder.name}.py"
    file.write_text(dedent(head) + BODY.format(study=study))
    return f"project/{file.name}"


def test_a_study_file_sees_its_own_arguments_alone(here: Path) -> None:
    file = write(
        here,
        """
        import argparse, sys
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=3)
        arguments = parser.parse_args()
        seen = list(sys.argv)
        """,
    )
    before = list(sys.argv)
    loaded = load(Path(file))
    assert loaded.module.arguments.epochs == 3
    assert loaded.module.seen == [str((here / file).resolve())]
    assert sys.argv == before
    done = CliRunner().invoke(app, ["preview", file])
    assert done.exit_code == 0, done.output


def test_a_study_file_that_changes_its_folder_is_read(here: Path) -> None:
    file = write(here, "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))")
    done = CliRunner().invoke(app, ["preview", file])
    assert done.exit_code == 0, done.output
    assert Path.cwd() == here / "project"


@pytest.mark.process
def test_report_is_found_although_the_folder_was_changed(here: Path) -> None:
    file = write(here, "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))")
    for command in ("run", "report"):
        done = CliRunner().invoke(app, [command, file])
        assert done.exit_code == 0, done.output
        page = here / done.stdout.splitlines()[-1].removeprefix("report: ")
        os.chdir(here)
        assert page.is_file(), "from the folder in which the command was given"
    option = {"run": "--report", "report": "--output"}
    for command, name in option.items():
        done = CliRunner().invoke(app, [command, file, name, f"{command}.html"])
        assert done.exit_code == 0, done.output
        os.chdir(here)
        assert (here / f"{command}.html").stat().st_size
        assert not (here / "project" / f"{command}.html").exists()


def test_two_study_files_that_change_the_folder_are_read(here: Path) -> None:
    head = "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))"
    first = write(here, head)
    other = here / "project" / f"other_{here.name}.py"
    other.write_text((here / first).read_text().replace("name='s'", "name='other'"))
    done = CliRunner().invoke(app, ["preview", first, f"project/{other.name}"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("study", [FUNCTION, MADE])
def test_prints_of_a_study_file_stay_out_of_json(here: Path, study: str) -> None:
    head = "print('loading')\nwith open('loads', 'a') as file:\n    file.write('once\\n')\n"
    done = CliRunner().invoke(app, ["preview", write(here, head, study), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["steps_unique"] == 6
    assert done.stderr.count("loading") == 1
    assert Path("loads").read_text() == "once\n", "the file is run once"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import sys; sys.exit()", "exit(None)"),
        ("import sys; sys.exit('no data')", "exit('no data')"),
        ("raise SystemExit(3)", "exit(3)"),
        ("import argparse; argparse.ArgumentParser().error('wrong')", "exit(2)"),
    ],
)
def test_a_study_file_that_ends_the_program_is_named(here: Path, line: str, words: str) -> None:
    file = write(here, line)
    with pytest.raises(ConfigurationError, match="must not end the program") as error:
        load(Path(file))
    assert words in str(error.value)
    assert f"{Path(file).name}:1" in str(error.value)
    done = CliRunner().invoke(app, ["preview", file])
    assert done.exit_code == 2
    assert "must not end the program" in done.stderr
    assert os.getcwd() == str(here)
