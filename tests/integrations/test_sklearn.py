"""scikit-learn: exact continuation of estimators with partial_fit, and refused ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError, StateError
from dasktune.integrations.sklearn import SklearnTrainer
from dasktune.sequences import Constant, Piecewise
from dasktune.trainer import TrainerRun, run_alone
from tests.integrations.test_boosting_examples import imported

pytestmark = pytest.mark.framework("sklearn")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(120, 5))
Y = np.where(X[:, 0] + X[:, 1] > 0, "up", "down")
STEPS = 4
ROOT = Path(__file__).parents[2]


class Classifier(SklearnTrainer):
    batch_size = 32
    name = "SGDClassifier"

    def estimator(self) -> Any:
        from sklearn import linear_model, naive_bayes, neural_network

        for module in (linear_model, naive_bayes, neural_network):
            if hasattr(module, self.name):
                made = getattr(module, self.name)()
        options = {"eta0": 0.1, "learning_rate": "constant", "average": True}
        return made.set_params(**options) if self.name.startswith("SGD") else made

    def data(self) -> Any:
        y = Y if self.name.endswith(("Classifier", "NB", "Perceptron")) else X[:, 0] * 2
        return (X[:90], y[:90]), (X[90:], y[90:])


NAMES = {
    "SGDClassifier": {"alpha": Piecewise([1e-4, 1e-2], boundaries=[2])},
    "SGDRegressor": {"eta0": Piecewise([0.1, 0.01], boundaries=[2])},
    "Perceptron": {"alpha": 1e-3},
    "MLPClassifier": {"alpha": Piecewise([1e-4, 1e-2], boundaries=[2])},
    "MLPRegressor": {"alpha": 1e-3},
    "GaussianNB": {"var_smoothing": 1e-9},
    "BernoulliNB": {"alpha": 1.0},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_estimator_is_the_uninterrupted_one(name: str) -> None:
    trainer = type(name, (Classifier,), {"name": name})
    hp = {key: value if callable(value) else Constant(value) for key, value in NAMES[name].items()}
    at = lambda step: {key: value(step) for key, value in hp.items()}  # noqa: E731
    alone = run_alone(trainer, hp, STEPS, states_at=[1, 2, STEPS])
    for split in (1, 2):
        run = TrainerRun.resume(
            trainer,
            step=split,
            first_values=at(0),
            last_values=at(split - 1),
            state=alone.states[split],
            config={},
            seed=0,
        )
        for step in range(split, STEPS):
            run.advance(at(step))
        np.testing.assert_equal(dict(run.trainer.state_dict()), dict(alone.states[STEPS]))
        assert run.evaluate() == alone.metrics[STEPS]


def test_check_resume_passes() -> None:
    report = dt.check_resume(Classifier, NAMES["SGDClassifier"], split=1, total=3)
    assert report.ok, report.differences


def test_a_merged_study_equals_lone_runs(two_threads: Client, tmp_path: Path) -> None:
    space = dt.Space(alpha=[1e-4, *(Piecewise([1e-4, 0.1], boundaries=[n]) for n in (2, 3))])
    study = dt.create_study(
        Classifier, name="s", storage=str(tmp_path), metric="score", direction="maximize"
    )
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=two_threads, check=False)
    assert study.summary()["steps_executed"] == 4 + 2 + 1
    for trial in study.trials:
        assert run_alone(Classifier, trial.sequences, STEPS).metrics == trial.metrics
    study.close()


def test_the_example_saves_the_steps_of_the_page(
    two_threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = imported(ROOT / "examples" / "sklearn_perceptron.py", monkeypatch)
    study = module.study()
    study.optimize(module.tuner(), client=two_threads, check=False, progress=False)
    steps = study.summary()["steps_executed"], study.summary()["steps_requested"]
    study.close()
    page = (ROOT / "docs" / "integrations-sklearn.md").read_text()
    assert f"{steps[0]} of {steps[1]} steps are trained" in page


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown parameter 'lr' of SGDClassifier; known"):
        run_alone(Classifier, {"lr": 0.1}, 1)


def test_an_estimator_without_partial_fit_is_refused() -> None:
    class Forest(Classifier):
        def estimator(self) -> Any:
            from sklearn.ensemble import RandomForestClassifier

            return RandomForestClassifier()

    with pytest.raises(ConfigurationError, match="with partial_fit, got RandomForestClassifier"):
        run_alone(Forest, {"max_depth": 3}, 1)


def test_an_attribute_that_cannot_be_stored_is_refused() -> None:
    trainer = Classifier()
    trainer.config, trainer.seed, trainer.device = {}, 0, "cpu"
    trainer.build({"alpha": 0.1})
    trainer.model.hook = print
    with pytest.raises(StateError, match=r"model.hook: builtins.builtin_function_or_method cannot"):
        trainer.state_dict()
