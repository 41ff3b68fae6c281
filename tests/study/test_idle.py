"""Idle studies: what a process holds for studies that are open and not used."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import StorageError

SPACE = dt.Space(lr=[0.1, 0.2])


def open_files(folder: Path) -> int:
    """Return the number of descriptors of files below a folder."""
    return sum(file.path.startswith(str(folder)) for file in psutil.Process().open_files())


def own(folder: Path) -> Study:
    study: Study = dt.create_study(None, name="own", storage=folder, metric="loss")
    return study


def test_idle_studies_hold_the_files_of_the_last(tmp_path: Path) -> None:
    studies = [own(tmp_path / "0")]
    held = open_files(tmp_path)
    studies += [own(tmp_path / str(number)) for number in range(1, 5)]
    loaded = [dt.load_study("own", storage=tmp_path / str(number)) for number in range(5)]
    assert open_files(tmp_path) == held
    for number, study in enumerate(studies):  # each opens its file again
        assert study.add_trial({"lr": 0.1}, float(number)) == 0
    assert [study.best_value for study in loaded] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert open_files(tmp_path) == held
    for study in (*studies, *loaded):
        study.close()
    assert open_files(tmp_path) == 0


def test_idle_file_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    study, other = own(tmp_path / "a"), own(tmp_path / "b")
    for name in ("dasktune.db", "dasktune.db-wal", "dasktune.db-shm"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
    with pytest.raises(StorageError, match="unable to open database file"):
        study.add_trial({"lr": 0.1}, 1.0)
    assert not (tmp_path / "a" / "dasktune.db").exists()
    other.close()
    study.close()


def test_closed_asked_study_holds_no_file(tmp_path: Path) -> None:
    first, second = own(tmp_path / "a"), own(tmp_path / "b")
    tuner = dt.algos.Random(SPACE, trials=2, max_steps=1)
    for study in (first, second):
        assert study.ask(tuner) is not None
        study.close()
    assert open_files(tmp_path) == 0
