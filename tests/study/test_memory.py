"""The memory of a study: right for its readers while a run decides, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from tests.toy_trainers import Adding

TUNER = dt.algos.Grid(dt.Space(lr=[0.1, 0.2, 0.3]), max_steps=4)


def make(folder: Path) -> Study:
    return dt.create_study(
        Adding,
        name="read",
        storage=folder / "store",
        metric="loss",
        direction="minimize",
        load_if_exists=True,
    )


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    made = make(tmp_path)
    yield made
    made.close()


class ReadsLog(dt.Callback):
    """Reads the event log of the running tuner at each report."""

    def __init__(self) -> None:
        self.records: list[int] = []

    def on_report(self, study: Any, trial: Any, report: Any) -> None:
        self.records.append(len(study.log(TUNER)))
        assert study.trials[trial.number].number == trial.number


def test_log_read_in_a_callback_leaves_the_trials_right(
    study: Study, tmp_path: Path, two_threads: Client
) -> None:
    reader = ReadsLog()
    study.optimize(TUNER, client=two_threads, progress=False, callbacks=[reader])
    assert reader.records == sorted(reader.records)
    with closing(make(tmp_path)) as opened:
        assert (study.trials, study.summary()) == (opened.trials, opened.summary())


class Breaking(dt.Callback):
    """Ends a run by an error at its first report."""

    def on_report(self, study: Any, trial: Any, report: Any) -> None:
        raise RuntimeError("enough")


def test_memory_of_a_broken_run_is_that_of_the_database(
    study: Study, tmp_path: Path, two_threads: Client
) -> None:
    with pytest.raises(RuntimeError, match="enough"):
        study.optimize(TUNER, client=two_threads, progress=False, callbacks=[Breaking()])
    before = study.records
    study.parts.memory.catch_up()
    assert study.records is not before
    with closing(make(tmp_path)) as opened:
        assert study.trials == opened.trials


def test_two_tuners_at_a_time_are_refused(study: Study) -> None:
    with (
        study.parts.memory.alone(),
        pytest.raises(ConfigurationError, match="another thread is running"),
        study.parts.memory.alone(),
    ):
        pass
    with study.parts.memory.alone():
        assert study.records == {}
