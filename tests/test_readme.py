"""The examples in the README and in the tour run."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import optuna
import pytest
from distributed import Client

import dasktune as dt
from dasktune.trainer import run_alone
from tests.forked import run_forked
from tests.pages import as_module, page_text, python_blocks

README = page_text("README.md")
FIRST, ELSE = python_blocks("README.md")
TUNE, SAME, ASHA, HYPERBAND, POP, SHARED = python_blocks("tour.md")


@pytest.mark.process
def test_the_first_result_is_what_the_readme_says(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(FIRST)
    done = run_forked([sys.executable, str(tmp_path / "first.py")], cwd=tmp_path, text=True)
    assert done.returncode == 0, done.stderr
    printed = re.search(r"`python first.py` prints \"(.*?)\"", README)
    assert printed is not None
    assert printed[1] in done.stdout + done.stderr
    assert "'lr': 'MultiStep(0.1, milestones=[10], gamma=2)'" in done.stdout
    again = run_forked([sys.executable, str(tmp_path / "first.py")], cwd=tmp_path, text=True)
    left = re.search(r"A second time, it prints \"(.*?)\"", README)
    assert left is not None
    assert left[1] in again.stderr


def test_the_study_file_of_the_tour_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tune.py"
    path.write_text(TUNE)
    spec = spec_from_file_location("readme_tune", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "readme_tune", module)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    tuner = module.tuner()
    assert dt.preview(module.space, max_steps=60, workers=2).merge_rate > 1
    assert module.study().trials == []
    run = run_alone(module.MyTrainer, tuner.configurations[0].sequences, 40)
    assert run.metrics[40]["accuracy"] > 0.5


@pytest.mark.process
def test_commands_of_the_tour_predict_record_and_replay(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(TUNE)
    section = page_text("tour.md").split("## A target, and a time")[1].split("\n## ")[0]
    assert "--orders 25" in section
    section = section.replace("--orders 25", "--orders 2")
    shown = re.sub(r"\\\n\s*", "", "\n".join(re.findall(r"^    .*", section, re.MULTILINE)))

    def command(line: str) -> str:
        program = "from dasktune.cli import main; main()"
        arguments = shlex.split(line, comments=True)[1:]
        done = run_forked([sys.executable, "-c", program, *arguments], cwd=tmp_path, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command("dasktune run tune.py --workers 2")
    predicted, recorded, replayed = map(command, shown.splitlines())
    assert re.search(r"^90 +0\.\d+ ", predicted, re.MULTILINE)
    assert recorded.startswith("tune.zarr: 6 configurations, 6 of them with all 60 steps; accuracy")
    rows = re.findall(r"^(\w+) +2 of 2 ", replayed, re.MULTILINE)
    assert rows == ["pop", "bandit", "random"] * 2
    assert re.search(r"^random .* (\S+) \(\S+ to \S+\) ", replayed, re.MULTILINE), "orders matter"
    assert "of each time" not in replayed
    assert {path.name for path in tmp_path.glob("*.svg")} == {"fan.svg", "times.svg"}


def test_python_of_the_tour_tunes_its_study_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_worker: Client
) -> None:
    monkeypatch.chdir(tmp_path)
    module = as_module("tune", TUNE, tmp_path)
    names = {**vars(module), "client": one_worker, "optuna": optuna}
    exec(compile(SAME, "tour.md", "exec"), names)
    assert names["s"].summary()["steps_requested"] == 6 * (60 + 90) + 30
    assert (tmp_path / "tune.html").exists()
    exec(compile(ELSE, "README.md", "exec"), {**names, "study": names["s"]})
    assert (tmp_path / "first.html").exists()
    exec(compile(ASHA, "tour.md", "exec"), names)
    assert names["tuner"].trials == 1000
    short = HYPERBAND.replace("300, max_steps=81", "4, max_steps=4")
    short = short.replace("[...]", "[]").replace("(tuner, limits", "(tuner, client=client, limits")
    exec(compile(short, "tour.md", "exec"), names)
    exec(compile(POP, "tour.md", "exec"), names)
    assert names["tuner"].max_steps == 100
    names["s"].close()
    local = SHARED.replace("s3://bucket", "bucket")
    local = local.replace("postgresql+psycopg://host/tuning", "tuning.db")
    exec(compile(local, "tour.md", "exec"), names)
    assert names["s"].trials == []
    names["s"].close()
    sys.modules.pop("tune")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160, "the tour and the promises have pages of their own"


def test_the_picture_and_the_linked_files_are_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
