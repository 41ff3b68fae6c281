"""`transfer`: what a sampler learns from other studies in the same database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from optuna.samplers import TPESampler

import dasktune as dt
from dasktune._driver.transfer import Transfer
from dasktune.cli.results import as_json, as_text
from dasktune.errors import ConfigurationError
from tests.toy_trainers import Adding

SPACE = dt.Space(lr=dt.Float(0.1, 1.0))


def study(folder: Path, name: str, **changes: Any) -> dt.Study:
    arguments = {"metric": "loss", "direction": "minimize", "storage": str(folder), **changes}
    return dt.create_study(Adding, name=name, **arguments)


def tpe(seed: int, space: dt.Space = SPACE) -> dt.algos.Random:
    sampler = TPESampler(n_startup_trials=2)
    return dt.algos.Random(space, trials=3, max_steps=2, seed=seed, sampler=sampler)


def inputs_of(opened: dt.Study) -> dict[str, Any]:
    """Return the inputs that the first tuner of a study began with."""
    (first, *_) = opened.results.history.begun.values()
    return dict(first.inputs)


def optimize(opened: dt.Study, tuner: dt.algos.Tuner, client: Client, **options: Any) -> None:
    opened.optimize(tuner, client=client, check=False, progress=False, **options)


def test_transfer_gives_trials_of_the_same_trainer_and_space(
    tmp_path: Path, two_threads: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(study(tmp_path, "first")) as first:
        optimize(first, tpe(0), two_threads)
        points = [dict(trial.params) for trial in first.trials]
    with closing(study(tmp_path, "upwards", direction="maximize")) as other:
        optimize(other, tpe(0), two_threads)
    with closing(study(tmp_path, "wider")) as wider:
        optimize(wider, tpe(0, dt.Space(lr=dt.Float(0.1, 2.0))), two_threads, transfer="database")
        assert "given" not in inputs_of(wider)
    with closing(study(tmp_path, "without")) as without:
        optimize(without, tpe(2), two_threads)
        assert inputs_of(without)["earlier"] == []
    capsys.readouterr()
    with closing(study(tmp_path, "second")) as second:
        optimize(second, tpe(1), two_threads, transfer="database")
        inputs = inputs_of(second)
        assert inputs["given"] == {"first": 3, "without": 3}
        assert [each["point"] for each in inputs["earlier"][:3]] == points
        assert {each["step"] for each in inputs["earlier"]} == {2}
        assert "second: its sampler learned from 3 trials of first" in capsys.readouterr().err
        assert second.replay(tpe(1)).identical
        assert second.transfers == [
            Transfer(tuner=0, study="first", trials=3),
            Transfer(tuner=0, study="without", trials=3),
        ]
        assert "a sampler learned from 3 trials of first" in as_text(second, second.trials)
        (given, _) = as_json(second, [], None)["transfers"]  # type: ignore[misc]
        assert given == {"tuner": 0, "study": "first", "trials": 3}


def test_transfer_of_another_name_is_refused(tmp_path: Path) -> None:
    with (
        closing(study(tmp_path, "first")) as opened,
        pytest.raises(ConfigurationError, match="unknown transfer 'store'; known: database"),
    ):
        opened.optimize(tpe(0), transfer="store")
