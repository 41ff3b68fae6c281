"""scikit-learn: exact continuation of estimators that learn in steps, and refused ones."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError, StateError
from dasktune.integrations.sklearn import SklearnTrainer
from dasktune.sequences import Constant, Piecewise
from dasktune.trainer import TrainerRun, run_alone
from dasktune.trainer.fingerprint import fingerprint
from tests.forked import fork_for_resume_checks
from tests.integrations.exact import assert_merges, assert_resumes
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


def test_states_of_the_first_form_are_not_found() -> None:
    assert fingerprint(Classifier, {}).parts["version"] == "2"


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


class Warm(SklearnTrainer):
    iterations_per_step = 2
    module = "ensemble"
    name = "RandomForestClassifier"
    options: ClassVar[dict[str, Any]] = {}

    def estimator(self) -> Any:
        return getattr(import_module(f"sklearn.{self.module}"), self.name)(**self.options)

    def data(self) -> Any:
        y = X[:, 0] * 2 if self.name.endswith("Regressor") else Y
        return (X[:90], y[:90]), (X[90:], y[90:])


def warm(name: str, module: str = "ensemble", **options: Any) -> type[Warm]:
    return type(name, (Warm,), {"name": name, "module": module, "options": options})


DEEPER = {"max_depth": Piecewise([1, 3], boundaries=[2])}
WARM = [
    (warm("RandomForestClassifier"), DEEPER),
    (warm("ExtraTreesRegressor", bootstrap=True), DEEPER),
    (warm("GradientBoostingClassifier", subsample=0.5, max_features=2), DEEPER),
    (warm("GradientBoostingRegressor"), {"learning_rate": 0.1}),
    (warm("HistGradientBoostingClassifier", max_features=0.5, min_samples_leaf=5), DEEPER),
    (
        warm("HistGradientBoostingRegressor", min_samples_leaf=5),
        {"learning_rate": Piecewise([0.1, 0.01], boundaries=[2])},
    ),
    (warm("BaggingClassifier"), {"max_samples": Piecewise([1.0, 0.5], boundaries=[2])}),
    (
        warm("MLPClassifier", "neural_network", warm_start=True),
        {"alpha": Piecewise([1e-4, 1e-2], boundaries=[2])},
    ),
    (warm("LogisticRegression", "linear_model"), {"C": Piecewise([1.0, 0.1], boundaries=[2])}),
]


@pytest.mark.parametrize(("trainer", "hp"), WARM, ids=[each.__name__ for each, _ in WARM])
def test_a_resumed_warm_start_is_the_uninterrupted_one(trainer: Any, hp: Any) -> None:
    assert_resumes(trainer, hp, STEPS)


@pytest.mark.parametrize("trainer", [each for each, _ in WARM[:6]], ids=lambda each: each.__name__)
def test_steps_of_warm_start_give_the_model_of_one_fit(trainer: Any) -> None:
    from sklearn.base import clone

    run = TrainerRun.start(trainer, {}, config={}, seed=0)
    for _ in range(STEPS):
        run.advance({})
    own = run.trainer
    counter = "max_iter" if trainer.name.startswith("Hist") else "n_estimators"
    size = {counter: STEPS * 2}
    whole = clone(trainer().estimator()).set_params(random_state=0, **size).fit(*own.rows)
    np.testing.assert_array_equal(own.model.predict(X), whole.predict(X))


@pytest.mark.parametrize(
    ("name", "counts_for_all"),
    [("GradientBoostingRegressor", True), ("HistGradientBoostingRegressor", False)],
)
def test_a_changed_rate_counts_for_earlier_trees(name: str, counts_for_all: bool) -> None:
    run = TrainerRun.start(warm(name), {"learning_rate": 0.5}, config={}, seed=0)
    run.advance({"learning_rate": 0.5})
    run.advance({"learning_rate": 1e-9})
    assert (np.ptp(run.trainer.model.predict(X)) < 1e-6) == counts_for_all


def test_check_resume_of_a_warm_start_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
    report = dt.check_resume(WARM[2][0], {"max_depth": 2}, split=1, total=3)
    assert report.ok, report.differences


def test_a_merged_study_of_warm_starts_equals_lone_runs(tmp_path: Path) -> None:
    depths = [2, *(Piecewise([2, 1], boundaries=[n]) for n in (2, 3))]
    study = dt.create_study(
        WARM[2][0], name="s", storage=str(tmp_path), metric="score", direction="maximize"
    )
    assert_merges(study, dt.algos.Grid(dt.Space(max_depth=depths), max_steps=STEPS), (12, 7))


def test_a_counter_that_steps_set_cannot_be_varied() -> None:
    with pytest.raises(ConfigurationError, match="'n_estimators' cannot be varied: steps set it"):
        run_alone(Warm, {"n_estimators": 5}, 1)


def test_batches_with_warm_start_are_refused() -> None:
    batches = type("Batches", (Warm,), {"batch_size": 8, "iterations_per_step": 0})
    with pytest.raises(ConfigurationError, match="batch_size must be None with warm_start, got 8"):
        run_alone(batches, {"max_depth": 1}, 1)


def test_check_resume_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
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
    with pytest.raises(ConfigurationError, match="unknown parameter of SGDClassifier 'lr'; known"):
        run_alone(Classifier, {"lr": 0.1}, 1)


def test_an_estimator_that_trains_whole_only_is_refused() -> None:
    neighbors = warm("KNeighborsClassifier", "neighbors")
    with pytest.raises(ConfigurationError, match="warm_start, got KNeighborsClassifier"):
        run_alone(neighbors, {"n_neighbors": 3}, 1)


def test_an_attribute_that_cannot_be_stored_is_refused() -> None:
    trainer = Classifier()
    trainer.config, trainer.seed, trainer.device = {}, 0, "cpu"
    trainer.build({"alpha": 0.1})
    trainer.model.hook = print
    with pytest.raises(StateError, match=r"\.hook: builtins.builtin_function_or_method cannot"):
        trainer.state_dict()
