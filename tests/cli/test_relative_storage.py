"""Relative storage: in the folder of the study file, from whatever folder it is run."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.forked import run_forked
from tests.study_folder import working_in

from .conftest import command

FILE = """
import dasktune as dt
from place import make


def study():
    return make()


tuner = dt.algos.Grid(dt.Space(lr=[0.1, 0.2]), max_steps=1)

if __name__ == "__main__":
    study()
"""

PLACE = """
import dasktune as dt


def make():
    return dt.create_study(None, name="net", metric="loss"{}, load_if_exists=True)
"""


def write_lab(folder: Path, arguments: str = "") -> Path:
    """Write a study file whose study is created by a module beside it; return its folder."""
    lab = folder / "lab"
    lab.mkdir()
    (lab / "tune.py").write_text(FILE)
    (lab / "place.py").write_text(PLACE.format(arguments))
    return lab


def run_script(lab: Path, cwd: Path) -> None:
    script = run_forked([sys.executable, str(lab / "tune.py")], cwd=cwd, text=True, timeout=60)
    assert script.returncode == 0, script.stderr


def test_an_imported_study_file_uses_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = write_lab(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.syspath_prepend(lab)
    with working_in(elsewhere):
        import_module("tune").study().close()
    assert (lab / "runs/net/dasktune.json").is_file()
    assert not (elsewhere / "runs").exists()
    for name in ("tune", "place"):
        sys.modules.pop(name)


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["", ', database="sqlite:///net.db"'])
def test_a_script_and_a_command_use_one_store(tmp_path: Path, arguments: str) -> None:
    lab = write_lab(tmp_path, arguments)
    run_script(lab, tmp_path)
    assert (lab / "runs/net/dasktune.json").is_file()
    assert (lab / "net.db").exists() == bool(arguments)
    assert not (tmp_path / "runs").exists()
    for cwd, file in [(tmp_path, "lab/tune.py"), (lab, "tune.py")]:
        with working_in(cwd):
            result = command("status", file)
            assert (result.exit_code, result.stdout[:3]) == (0, "net")


@pytest.mark.parametrize("name", ["runs/net", "runs/[net]"])
def test_status_names_the_folder_that_a_script_has_used(tmp_path: Path, name: str) -> None:
    (tmp_path / "lab" / name).mkdir(parents=True)
    with working_in(tmp_path):
        for of_command in (["status"], ["ls"]):
            result = command(*of_command, name)
            assert result.exit_code == 2
            assert f"no such file or folder: {name!r}" in result.stderr
            assert f"did you mean lab/{name}? A script's relative storage" in result.stderr
            assert "did you mean" not in command(*of_command, "runs/other").stderr


def test_a_notebook_uses_its_working_directory_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import dasktune as dt

    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        dt.create_study(None, name="cell", metric="loss", load_if_exists=True).close()
    assert (tmp_path / "runs/cell/dasktune.json").is_file()
    assert caplog.messages == [f"study cell: new store in {tmp_path / 'runs/cell'}"]
