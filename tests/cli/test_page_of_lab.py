"""docs/lab.md: its files can be read, and its preview meets all needs."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dasktune.cli import app
from dasktune.cli.study_file import load
from dasktune.cli.target import run_settings
from tests.pages import python_blocks
from tests.study_folder import working_in
from tests.unlike_workers import unlike_workers

PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
FILES = ("dask.yaml", "scheduler.sh", "workers.sh", "dasktune.toml", "digits.py")
BLOCKS = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)
(STUDY_FILE,) = python_blocks("lab.md")


def command(text: str) -> list[str]:
    """Return the words of the first command of the block that has a text."""
    (block,) = (block for block in BLOCKS[len(FILES) :] if text in block)
    return shlex.split(block.replace("\\\n", " ").splitlines()[0])


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with the files of the page, which is the home, too."""
    for name, block in zip(FILES, BLOCKS, strict=False):
        (tmp_path / name).write_text(block)
    (tmp_path / "digits.py").write_text(STUDY_FILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    with working_in(tmp_path):
        yield tmp_path


def test_files_of_the_lab_can_be_read(lab: Path) -> None:
    settings = yaml.safe_load((lab / "dask.yaml").read_text())["distributed"]
    assert settings["worker"] == {"daemon": False}
    assert settings["scheduler"]["worker-ttl"] == "60s"
    assert run_settings(lab, {}).scheduler_file == str(lab / "scheduler.json")
    for script in ("scheduler.sh", "workers.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_preview_of_the_lab_meets_all_needs(lab: Path) -> None:
    program, *words = command("dasktune preview")
    done = CliRunner().invoke(app, words)
    assert (program, done.exit_code) == ("dasktune", 0), done.stderr
    assert "16 trials" in done.stdout
    refused = CliRunner().invoke(app, [word for word in words if word != "cpu:tags=cpu"][:-1])
    assert "no worker has tag cpu" in refused.stderr


def people() -> list[list[str]]:
    """Return the values of ``--config`` of each command that starts a study of the page."""
    (block,) = (block for block in BLOCKS[len(FILES) :] if "person=chi" in block)
    return [re.findall(r"--config (\S+)", line) for line in block.splitlines()]


@pytest.mark.cluster
def test_three_studies_of_the_lab_train_together(lab: Path) -> None:
    with ExitStack() as stack:
        gpus = [{"GPU": 1}] * 3
        client = stack.enter_context(unlike_workers(*gpus, {"tag:cpu": 1}))
        files = [load(Path("digits.py"), values) for values in people()]
        studies = [stack.enter_context(closing(file.study())) for file in files]
        runs = [
            threading.Thread(
                target=study.optimize,
                args=(file.tuner(),),
                kwargs={"client": client, "progress": False, "last_line": False},
            )
            for file, study in zip(files, studies, strict=True)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert [study.name for study in studies] == [
            f"digits of {n}" for n in ("ana", "ben", "chi")
        ]
        with_gpu = {
            address
            for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
            if "GPU" in worker["resources"]
        }
        for study in studies:
            assert study.best_value > 0.8
            assert study.summary()["steps_repeated"] == 0
            models = [trial.params["model"] for trial in study.trials]
            for stage in study.stages():
                is_net = "net" in {models[trial] for trial in stage.trials}
                assert (stage.worker in with_gpu) == is_net
