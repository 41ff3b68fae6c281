"""Files that a trainer writes and reads: each state notes their content."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ResumeError, TrainerError
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.remedies import Proving
from dasktune.trainer.proof.written_files import WRITTEN_FILES


class Noting(dt.Trainer):
    """Adds a letter to a file in each step, and counts them."""

    mode = "a"
    reads = True

    def build(self, hp: Mapping[str, Any]) -> None:
        self.path = Path(self.config["path"])
        self.x = 0.0

    def train(self) -> None:
        with self.path.open(self.mode) as file:
            file.write(".")
        self.x += len(self.path.read_text()) if self.reads else 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


def trained(kind: type, path: Path, steps: int) -> TrainerRun:
    run = TrainerRun.start(kind, {}, config={"path": str(path)}, seed=0, proving=Proving())
    for _ in range(steps):
        run.advance({})
    return run


def resumed(run: TrainerRun, kind: type, path: Path) -> TrainerRun:
    state = run.state()
    return TrainerRun.resume(
        kind,
        step=run.step,
        first_values={},
        last_values={},
        state=state,
        config={"path": str(path)},
        seed=0,
        proving=Proving(proof=run.proof(state)),
    )


def test_a_file_that_is_as_it_was_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    run = resumed(trained(Noting, path, 2), Noting, path)
    run.advance({})
    assert run.evaluate() == {"loss": 1 + 2 + 3}


@pytest.mark.parametrize("change", [lambda path: path.write_text("...."), os.unlink])
def test_a_file_with_another_content_is_named(change: Any, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    run = trained(Noting, path, 2)
    state = run.state()
    proof = run.proof(state)
    change(path)
    with pytest.raises(ResumeError, match=f"file {path}: has another content than when"):
        TrainerRun.resume(
            Noting,
            step=2,
            first_values={},
            last_values={},
            state=state,
            config={"path": str(path)},
            seed=0,
            proving=Proving(proof=proof),
        )


def test_a_file_that_others_have_left_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    trained(Noting, path, 1)
    with pytest.raises(TrainerError, match=f"{path} was there before this trial"):
        trained(Noting, path, 1)


def test_a_file_that_the_trainer_calls_harmless_may_be_shared(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    kind = type("Kind", (Noting,), {"harmless_differences": (f"file {path}",)})
    trained(kind, path, 1)
    assert trained(kind, path, 1).evaluate() == {"loss": 2.0}


@pytest.mark.parametrize("members", [{"reads": False}, {"mode": "w"}])
def test_a_log_and_a_file_that_is_written_anew_are_fine(
    members: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    kind = type("Kind", (Noting,), members)
    trained(kind, path, 2)
    assert trained(kind, path, 2).evaluate() == {"loss": 2.0}


def test_an_array_that_is_saved_and_loaded_is_noted(tmp_path: Path) -> None:
    class Saving(Noting):
        def train(self) -> None:
            with self.path.open("wb") as file:
                np.save(file, np.full(2, self.x))
            with self.path.open("rb") as file:
                self.x += 1 + float(np.load(file).sum())

    path = tmp_path / "notes"
    run = trained(Saving, path, 2)
    assert f"file {path}" in run.proof(run.state())


def test_what_the_process_does_after_a_training_is_none_of_it(tmp_path: Path) -> None:
    notes, database = tmp_path / "notes", tmp_path / "data.db"
    run = trained(Noting, notes, 1)
    for text in "ab":
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(f"CREATE TABLE {text} (x)")
        with notes.with_name("log").open("a+") as file:
            file.write(text)
            file.seek(0)
            assert file.read()[-1] == text
    assert WRITTEN_FILES.paths() == [str(notes)]
    run.advance({})
