"""Tests of the trail that workers write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from dasktune._study.create import create_study
from dasktune.algos import Grid
from dasktune.space import Space
from tests.chaos.builtin import Descent
from tests.chaos.lone import Alone
from tests.chaos.witness import PATH, dask_setup, read
from tests.in_process import client_of_threads

CALM = {"pace": 0}


@pytest.fixture
def one_thread() -> Iterator[Client]:
    """Return a client of one worker in this process: two would write into one file."""
    with client_of_threads(1) as client:
        yield client


def test_witness_writes_each_step_with_its_state_digest(
    tmp_path: Path, one_thread: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps").mkdir()
    monkeypatch.setenv(PATH, str(tmp_path / "steps" / "worker-0.0"))
    end = dask_setup(None)
    study = create_study(Descent, name="chaos", storage=tmp_path, metric="loss", config=CALM)
    space = Space(lr=[0.1, 0.2, 0.3], momentum=[0.0])
    try:
        study.optimize(Grid(space, max_steps=5), client=one_thread, progress=False, last_line=False)
    finally:
        end()
    steps = list(read(tmp_path / "steps"))
    alone = Alone(Descent, config=CALM, seed=0, report_every=1)
    runs = [alone.run(trial.sequences, 5) for trial in study.trials]
    expected = {digest: step for run in runs for step, digest in enumerate(run.digests, 1)}
    assert {trained.digest: trained.step for trained in steps} == expected
    assert len(steps) == 15 == study.summary()["steps_executed"]
    assert {trained.process for trained in steps} == {"worker-0.0"}
    assert {trained.attempt for trained in steps} == {stage.attempt for stage in study.stages()}
    assert all(trained.began <= trained.at for trained in steps)
    study.close()


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    whole = "begin 10.0 0-a\nstep 10.5 1 abc\nstep 11.0 2 def\n"
    (tmp_path / "worker-0.0").write_text(whole + "step 11.5 3")
    assert [(one.step, one.digest, one.began) for one in read(tmp_path)] == [
        (1, "abc", 10.0),
        (2, "def", 10.0),
    ]
