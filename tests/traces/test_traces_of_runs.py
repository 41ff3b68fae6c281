"""A study of worker processes is recorded, and replayed with as many simulated ones."""

from __future__ import annotations

from pathlib import Path

from distributed import Client

import dasktune as dt
from dasktune.sequences import Constant, MultiStep
from dasktune.simulate import Trace
from tests.toy_trainers import Falling

RATES = [Constant(0.1), Constant(0.4), MultiStep(0.1, milestones=[4], gamma=2.0)]
UNIQUE = 10 + 10 + 6


def test_trace_of_processes_is_simulated_equally(tmp_path: Path, four_workers: Client) -> None:
    study = dt.create_study(
        Falling, name="fall", metric="loss", direction="minimize", storage=tmp_path
    )
    tuner = dt.algos.Grid(dt.Space(lr=RATES), max_steps=10)
    study.optimize(tuner, client=four_workers, progress=False)
    path = study.trace().save(tmp_path / "fall.zarr")
    trace = Trace.load(path)
    found = dt.simulate(dt.algos.Grid(trace.space(), max_steps=10), trace, workers=4)
    summary = study.summary()
    assert found.steps_executed == summary["steps_executed"] == UNIQUE
    assert [trial.values for trial in found.trials] == [trial.values for trial in study.trials]
    assert trace.seconds is not None
    assert 0 < trace.seconds[0].sum() <= summary["worker_seconds"]
    study.close()
