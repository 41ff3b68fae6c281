"""A study without a best trial: after failures, after a limit, with NaN alone."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.algos import Grid
from dasktune.errors import ConfigurationError
from tests.toy_trainers import Adding


class Failing(Adding):
    def train(self) -> None:
        raise RuntimeError(f"no data for {self.lr}")


class NeverFinite(Adding):
    def evaluate(self) -> dict[str, float]:
        return {"loss": math.nan}


def best_of(trainer: type, folder: Path, client: Client, **options: Any) -> str:
    """Return the error of the best trial of a study after its run."""
    study = dt.create_study(trainer, name="n", metric="loss", storage=folder)
    tuner = Grid(dt.Space(lr=[0.1, 0.2]), max_steps=options.pop("max_steps", 3))
    study.optimize(tuner, client=client, check=False, **options)
    with pytest.raises(ConfigurationError) as error:
        _ = study.best_trial
    for read in (lambda: study.best_value, lambda: study.best_params):
        with pytest.raises(ConfigurationError, match="has no trial with a finite value yet: "):
            read()
    study.close()
    return str(error.value).removeprefix("study 'n' has no trial with a finite value yet: ")


@pytest.mark.cluster
def test_study_whose_trials_all_fail_says_so_twice(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="dasktune")
    text = best_of(Failing, tmp_path, two_threads)
    assert text.startswith("all 2 trials failed, such as trial 1: ")
    assert text.endswith("RuntimeError: no data for 0.2")
    assert f"study n has no trial with a finite value: {text}" in caplog.text


@pytest.mark.cluster
def test_study_after_a_limit_says_what_was_reported(tmp_path: Path, two_threads: Client) -> None:
    text = best_of(Adding, tmp_path, two_threads, max_steps=10**6, limits=dt.Limits(steps=4))
    assert "without a finite final value reported" in text
    assert "the best is loss 0.1, of trial 0 at step 1 (see trial.intermediate_values" in text


@pytest.mark.cluster
def test_study_with_nan_alone_says_so(tmp_path: Path, two_threads: Client) -> None:
    text = best_of(NeverFinite, tmp_path, two_threads)
    assert text == "6 values were reported, all NaN or infinite"


def test_study_without_trials_says_so(tmp_path: Path) -> None:
    study = dt.create_study(Adding, name="n", metric="loss", storage=tmp_path)
    with pytest.raises(ConfigurationError, match="finite value yet: 0 trials and no report"):
        _ = study.best_trial
    study.close()
