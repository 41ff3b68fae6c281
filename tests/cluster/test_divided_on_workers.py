"""A study whose trials are trained by two processes of each worker together."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from tests.toy_trainers import Adding
from tests.worker.test_divided import Net

pytestmark = pytest.mark.cluster

STEPS = 3


def study_of(folder: Path, needs: object, **options: object) -> Study:
    return dt.create_study(
        Net, name="divided", metric="loss", storage=folder, needs=needs, audit=0, **options
    )


def run(study: Study, client: Client, steps: int = STEPS) -> None:
    tuner = dt.algos.Grid(dt.Space({"drop": [0.0]}), max_steps=steps)
    study.optimize(tuner, client=client, progress=False, last_line=False, check=False)


def test_two_cores_train_a_trial_as_one(tmp_path: Path) -> None:
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            resources={"cores": 2},
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        with closing(study_of(tmp_path, None)) as study:
            run(study, client)
            (alone,) = study.trials
        with closing(study_of(tmp_path, {"cores": 2}, load_if_exists=True)) as study:
            # The same tuner goes on where it is: trials that have ended stay as they are.
            run(study, client)
            assert study.trials[0].value == alone.value
            run(study, client, steps=STEPS + 1)
            together = study.trials[1]
            assert together.state.value == "COMPLETE", together.error
            for step, metrics in alone.metrics.items():
                assert together.metrics[step]["loss"] == pytest.approx(metrics["loss"], abs=1e-5)
            summary = study.summary()
            assert summary["steps_executed"] == STEPS + STEPS + 1


def test_a_trainer_that_cannot_be_divided_is_refused_first(tmp_path: Path) -> None:
    class Plain(Adding):
        divides = True

    with pytest.raises(ConfigurationError, match="Plain must be a TorchTrainer with divides"):
        dt.create_study(Plain, name="plain", metric="loss", storage=tmp_path)


def test_needs_that_leave_the_devices_open_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must have as many GPUs, or cores"):
        study_of(tmp_path, [{"GPU": 1}, {"cores": 16}])
