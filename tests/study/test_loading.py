"""Studies that are opened by their name, without their trainer, and studies that are copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import optuna
import pytest
from optuna.distributions import FloatDistribution

import dasktune as dt
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, StorageError
from tests.toy_trainers import Adding


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    made = dt.create_study(Adding, name="digits", metric="loss", storage=tmp_path)
    yield made
    made.close()


class WithoutSteps(Tuner):
    def ask(self, capacity: int) -> list[Any]:
        return []

    def tell(self, report: object) -> list[Any]:
        return []

    def tell_failure(self, trial: int) -> list[Any]:
        return []

    def identity(self) -> dict[str, object]:
        return {"tuner": "WithoutSteps"}


class WithTooMany(WithoutSteps):
    max_steps = 2**63


def test_load_study_reads_what_the_study_has(study: Study, tmp_path: Path) -> None:
    study.add_trial({"lr": 0.1}, 0.5, steps=3)
    loaded = dt.load_study("digits", storage=tmp_path)
    assert (loaded.best_params, loaded.best_value) == ({"lr": 0.1}, 0.5)
    assert repr(loaded) == repr(study) == "Study('digits', 1 trial)"
    study.add_trial({"lr": 0.2}, 0.25)
    loaded.catch_up()
    assert [trial.value for trial in loaded.trials] == [0.5, 0.25]
    loaded.close()


def test_load_study_of_another_name_lists_the_known(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown study 'digit'; known: digits; did you"):
        dt.load_study("digit", storage=tmp_path)
    with pytest.raises(ConfigurationError, match="study_name is Optuna's; write name='digits'"):
        dt.load_study(study_name="digits", storage=tmp_path)  # type: ignore[call-arg]
    with pytest.raises(StorageError, match="there is no database"):
        dt.load_study("digits", storage=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("taken", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_study_that_is_copied_says_why_it_cannot(study: Study, taken: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="'digits' must not be pickled or copied: it has"):
        taken({"study": study} if taken is copy.deepcopy else study)


@pytest.mark.parametrize("tuner", [WithoutSteps(), WithTooMany()], ids=type)
def test_own_tuner_without_max_steps_is_refused(tuner: Tuner, study: Study, tmp_path: Path) -> None:
    words = r"\.max_steps must be an int >= 1, the largest step that a trial is trained to, got"
    with pytest.raises(ConfigurationError, match=words):
        study.optimize(tuner)
    with pytest.raises(ConfigurationError, match=words):
        dt.simulate(tuner, lambda values, step: 1.0)
    alone = dt.create_study(None, name="alone", metric="loss", storage=tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        alone.ask(tuner)
    alone.close()


def frozen(**options: Any) -> optuna.trial.FrozenTrial:
    domain = FloatDistribution(0.0, 1.0)
    given = {"params": {"lr": 0.1}, "distributions": {"lr": domain}, "value": 0.5, **options}
    return optuna.trial.create_trial(**given)


def test_add_trial_takes_a_trial_of_optuna(study: Study) -> None:
    study.add_trial(frozen(intermediate_values={1: 0.9, 4: 0.5}, user_attrs={"by": "hand"}))
    (trial,) = study.trials
    assert (trial.params, trial.value, trial.steps) == ({"lr": 0.1}, 0.5, 4)
    assert trial.user_attrs == {"by": "hand"}
    study.add_trial({"lr": 0.2}, value=0.25)
    assert study.best_value == 0.25


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (frozen(state=optuna.trial.TrialState.FAIL, value=None), {}, "must be COMPLETE, got FAIL"),
        (frozen(), {"value": 0.5}, "a trial of Optuna must be given alone"),
        (frozen(value=None, values=[0.1, 0.2]), {}, "values must be one for each of loss"),
        (frozen(user_attrs={"at": object()}), {}, "user_attrs must be JSON values by name"),
        ({"lr": 0.1}, {}, "exactly one of values and value must be given"),
        ({"lr": 0.1}, {"values": 0.5, "value": 0.5}, "exactly one of values and value"),
        ({"lr": 0.1}, {"value": 0.5, "steps": 2.5}, "steps must be an int >= 1, got 2.5"),
        (3, {"value": 0.5}, "params must be values by name, got 3"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_add_trial_refuses_what_is_no_result(
    given: Any, options: dict[str, Any], words: str, study: Study
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        study.add_trial(given, **options)
    assert study.trials == []
