"""A file that a trainer's code opens by a computed name is edited: no old result is served."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.database.rows import VerdictRow
from dasktune.storage.verdicts import Verdicts, files_of
from dasktune.trainer import data_digest
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.fingerprint.named_files import MOST_BYTES
from dasktune.trainer.fingerprint.read_files import changed_since
from tests.forked import run_forked
from tests.holding import wait_until
from tests.toy_trainers import Adding

SCRIPT = """
import json, sys
from contextlib import closing
from pathlib import Path

import dasktune as dt

HERE = Path(__file__).parent


class Net(dt.Trainer):
    ignored_config = ("log",)

    def build(self, hp, name="net"):
        kept = HERE / f"{name}.json"
        self.width = json.loads(kept.read_text())["width"]
        log = Path(self.config["log"])
        log.open("a").close()
        log.read_text()
        self.total = 0.0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        self.total += self.lr * self.width

    def evaluate(self):
        return {"loss": self.total}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


if __name__ == "__main__":
    name, if_changed = sys.argv[1:]
    study = dt.create_study(
        Net, name=name, metric="loss", storage="store", config={"log": "log.txt"},
        load_if_exists=True, if_changed=if_changed,
    )
    with closing(study):
        tuner = dt.algos.Grid(dt.Space(lr=[0.5, 0.25]), max_steps=4)
        study.optimize(tuner, workers=1, last_line=False)
        print(study.name, study.best_trial.value, study.summary()["steps_executed"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SWITCH, "on")
    (tmp_path / "tune.py").write_text(SCRIPT)
    write(tmp_path, 1)
    return tmp_path


def write(folder: Path, width: int) -> None:
    (folder / "net.json").write_text(json.dumps({"width": width}))


def run(folder: Path, name: str, *, if_changed: str = "refuse") -> tuple[list[str], str]:
    """Run the script in a new process; return its last line, in words, and its log."""
    command = [sys.executable, str(folder / "tune.py"), name, if_changed]
    done = run_forked(command, cwd=folder, text=True, timeout=120)
    return (done.stdout.split() if done.returncode == 0 else []), done.stderr


@pytest.mark.process
@pytest.mark.cluster
def test_no_old_result_is_served_for_an_edited_file(folder: Path) -> None:
    assert run(folder, "first")[0] == ["first", "1.0", "8"]
    answer, log = run(folder, "second")
    assert answer == ["second", "1.0", "0"], "the same file"
    assert "net.json" not in log
    write(folder, 2)
    assert run(folder, "third")[0] == ["third", "2.0", "8"]
    answer, log = run(folder, "first")
    assert not answer
    assert "what differs: read file net.json" in log
    answer, log = run(folder, "first", if_changed="new")
    assert answer == ["first-2", "2.0", "0"]
    write(folder, 1)
    assert run(folder, "first")[0] == ["first", "1.0", "8"]


class Reading(Adding):
    """Adds what a file says, whose name no source shows."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.width = float(Path("".join(["net", ".txt"])).read_text())
        Path("".join(["big", ".bin"])).read_bytes()

    def train(self) -> None:
        self.total += self.lr * self.width


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a small and a large file."""
    monkeypatch.setenv(SWITCH, "on")
    monkeypatch.chdir(tmp_path)
    Path("net.txt").write_text("1")
    Path("big.bin").write_bytes(bytes(MOST_BYTES + 1))
    return tmp_path


@contextmanager
def made(name: str, trainer: type = Reading, **options: Any) -> Iterator[Study]:
    place = {"storage": str(Path("store").absolute()), "metric": "loss", "audit": 0}
    with closing(dt.create_study(trainer, name=name, **{**place, **options})) as study:
        yield study


def optimize(study: Study, client: Client, *, steps: int = 4, **options: Any) -> float:
    tuner = dt.algos.Grid(dt.Space(lr=[0.5]), max_steps=steps)
    study.optimize(tuner, client=client, progress=False, last_line=False, **options)
    best = study.best_trial.value
    assert best is not None
    return best


@pytest.mark.process
def test_an_unchanged_file_changes_nothing_and_is_not_named(
    here: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dasktune")
    with made("first") as first:
        assert optimize(first, two_threads) == 2.0
        (line,) = (text for text in caplog.messages if "big.bin" in text)
        assert "do not count, since they are large or many: ./big.bin (1048577 bytes)" in line
        verdicts = first.database.verdicts(first.results.row.spec["fingerprint"])
        assert files_of(verdicts) == {
            "./net.txt": data_digest("net.txt"),
            "./big.bin": f"{MOST_BYTES + 1} bytes",
        }
        caplog.clear()
        optimize(first, two_threads, steps=5)
        assert first.summary()["steps_executed"] == 5
    with made("second") as second:
        assert optimize(second, two_threads) == 2.0
        assert second.summary()["steps_executed"] == 0
        assert second.results.row.spec == {**first.results.row.spec}
    assert not [text for text in caplog.messages if "net.txt" in text or "big.bin" in text]


@pytest.mark.process
def test_an_open_study_is_refused_after_an_edit(here: Path, two_threads: Client) -> None:
    with made("first") as first, made("second") as second:
        optimize(first, two_threads)
        Path("net.txt").write_text("2")
        for study in (first, second):  # the second one was opened before the check
            with pytest.raises(ConfigurationError, match=r"changed since then: read file \./net"):
                optimize(study, two_threads, steps=5)
        assert second.stages() == []
    with made("second", if_changed="new") as third:
        assert (third.name, optimize(third, two_threads)) == ("second-2", 4.0)


@pytest.mark.process
def test_an_edit_after_the_files_are_known_is_refused(
    here: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Verdicts.record

    def record_and_edit(verdicts: Verdicts, verdict: VerdictRow) -> None:
        record(verdicts, verdict)
        Path("net.txt").write_text("2")

    monkeypatch.setattr(Verdicts, "record", record_and_edit)
    with (
        made("first") as study,
        pytest.raises(ConfigurationError, match=r"changed since then: read file \./net\.txt"),
    ):
        optimize(study, two_threads)


def test_a_file_that_keeps_its_time_is_a_change(tmp_path: Path) -> None:
    path, began = tmp_path / "data.json", time.time_ns()
    path.write_text("2")
    os.utime(path, (0.0, 0.0))  # as mv and cp -p do
    files = {str(path): "digest", str(tmp_path / "gone"): "digest"}
    assert changed_since(files, None, began - 10**9) == {str(path)}
    assert changed_since(files, None, time.time_ns() + 10**9) == set()


class EditingFirst(Reading):
    """Edits the file in a run, before its check has trained a step."""

    ignored_config = ("driver",)

    def train(self) -> None:
        super().train()
        if os.getpid() == self.config["driver"]:
            Path("net.txt").write_text("2")
            Path("edited").touch()
        else:
            wait_until(Path("edited").exists)


@pytest.mark.process
def test_states_made_beside_an_edit_are_not_used_again(here: Path, two_threads: Client) -> None:
    config = {"driver": os.getpid()}
    with made("first", EditingFirst, config=config) as first:
        with pytest.raises(ConfigurationError, match=r"changed since then: read file \./net\.txt"):
            optimize(first, two_threads)
        assert list(first.store.keys()), "it trained from step 0 while the check waited"
    with made("second", EditingFirst, config=config) as second:
        assert optimize(second, two_threads) == 4.0
        assert second.summary()["steps_executed"] == 4


@pytest.mark.process
def test_two_contents_at_a_time_are_no_content(here: Path, two_threads: Client) -> None:
    with made("first") as first:
        optimize(first, two_threads)
        first.record_check(True, "elsewhere", files={"./net.txt": "f" * 32})
    with made("second") as second:
        assert second.results.row.spec["fingerprint"] != first.results.row.spec["fingerprint"]
        optimize(second, two_threads)
        assert second.summary()["steps_executed"] == 4


@pytest.mark.process
def test_without_a_check_no_file_is_seen(here: Path, two_threads: Client) -> None:
    with made("first") as first:
        optimize(first, two_threads, check=False)
    Path("net.txt").write_text("2")
    with made("second") as second:
        assert optimize(second, two_threads, check=False) == 2.0
        assert second.results.row.spec["fingerprint"] == first.results.row.spec["fingerprint"]
        assert second.database.verdicts(second.results.row.spec["fingerprint"]) == []


@pytest.mark.process
def test_a_check_by_hand_keeps_files_too(here: Path) -> None:
    store = str(here / "store")
    report = dt.check_resume(Reading, {"lr": 0.5}, storage=store)
    assert report.ok
    assert list(report.files) == ["./net.txt", "./big.bin"]
    with made("first") as first:
        Path("net.txt").write_text("2")
        with made("second") as second:
            pass
    before, after = (study.results.row.spec["fingerprint"] for study in (first, second))
    assert before != after
    dt.check_resume(Reading, {"lr": 0.5}, storage=store)
    known = [Verdicts(None, second.store.files).of(each) for each in (before, after)]
    assert [len(each) for each in known] == [1, 1]
    assert known[1][0].files["./net.txt"] == data_digest("net.txt")


class Editing(Reading):
    """Edits the file once, in a run; these tests' workers are threads of the driver."""

    ignored_config = ("driver",)

    def train(self) -> None:
        super().train()
        if os.getpid() == self.config["driver"] and Path("edit").exists():
            Path("edit").unlink()
            Path("net.txt").write_text("2")


@pytest.mark.process
def test_an_edit_in_a_run_ends_it_and_no_trial_is_wrong(here: Path, two_threads: Client) -> None:
    Path("edit").touch()
    lrs = [0.5 + number for number in range(12)]
    tuner = dt.algos.Grid(dt.Space(lr=lrs), max_steps=3)
    options: dict[str, Any] = {"client": two_threads, "progress": False, "last_line": False}
    dt.check_resume(Editing, {"lr": 0.5}, config={"driver": 0}, storage=str(here / "store"))
    with made("first", Editing, config={"driver": os.getpid()}) as study:
        with pytest.raises(StorageError, match=r"reads \./net\.txt, which must be as when"):
            study.optimize(tuner, **options)
        states = {trial.state for trial in study.trials}
        assert dt.TrialState.FAIL not in states
        assert states != {dt.TrialState.COMPLETE}
        Path("net.txt").write_text("1")
        study.optimize(tuner, **options)
        values = sorted(trial.value or 0.0 for trial in study.trials)
        assert values == [3 * lr for lr in lrs]


def adding(run: dt.Run) -> None:
    """Add what a file says, in a training function."""
    width = float(Path("".join(["net", ".txt"])).read_text())
    total = 0.0
    for _ in run.steps():
        total += run["lr"] * width
        run.report(loss=total)


@pytest.mark.process
def test_files_of_a_training_function_are_seen(here: Path) -> None:
    report = dt.check_resume(adding, {"lr": 0.5}, storage=str(here / "store"))
    assert report.ok, str(report)
    assert report.files == {"./net.txt": data_digest("net.txt")}
