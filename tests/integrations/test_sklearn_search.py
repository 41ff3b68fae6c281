"""scikit-learn: the cross-validated search, its results and its errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.sequences import Piecewise
from tests.pages import python_blocks

pytestmark = pytest.mark.framework("sklearn")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 5))
Y = np.where(X[:, 0] + X[:, 1] > 0, "up", "down")
SLOWER = Piecewise([0.1, 0.01], boundaries=[2])


def search(estimator: str, space: Any, **options: Any) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import SGDClassifier
    from sklearn.neighbors import KNeighborsClassifier

    from dasktune.integrations.search import DasktuneSearchCV

    made = {
        "sgd": SGDClassifier(learning_rate="constant", eta0=0.1),
        "forest": RandomForestClassifier(n_estimators=3),
        "neighbors": KNeighborsClassifier(),
    }[estimator]
    return DasktuneSearchCV(made, space, **{"cv": 3, "check": False, **options})


def test_a_whole_search_scores_as_cross_validation_does(two_threads: Client) -> None:
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score

    # A fixed random_state is kept, so the folds' scores must be those of scikit-learn.
    made = search("forest", {"max_depth": [1, 3]}, trials=4, client=two_threads)
    made.set_params(estimator__random_state=5).fit(X, Y)
    results = made.cv_results_
    for row, params in enumerate(results["params"]):
        model = clone(made.estimator).set_params(**params)
        own = [results[f"split{fold}_test_score"][row] for fold in range(made.n_splits_)]
        np.testing.assert_array_equal(own, cross_val_score(model, X, Y, cv=3))
    assert made.best_score_ == results["mean_test_score"].max()
    again = clone(made.estimator).set_params(**made.best_params_).fit(X, Y)
    np.testing.assert_array_equal(made.predict_proba(X), again.predict_proba(X))
    assert made.n_features_in_ == 5
    assert list(made.classes_) == ["down", "up"]


def test_a_search_in_steps_equals_lone_partial_fits(two_threads: Client) -> None:
    from dasktune.integrations.estimators import prepared

    space = {"alpha": dt.Float(1e-5, 1, log=True), "eta0": [0.1, SLOWER]}
    made = search("sgd", space, max_steps=8, trials=9, client=two_threads).fit(X, Y)
    results = made.cv_results_
    assert len(set(results["n_steps"])) > 1  # some were promoted, and went on from a state
    from sklearn.model_selection import StratifiedKFold

    for row, params in enumerate(results["params"]):
        for fold, (trained, rest) in enumerate(StratifiedKFold(3).split(X, Y)):
            model = prepared(made.estimator, fold, "partial_fit")
            for step in range(results["n_steps"][row]):
                at = {k: v(step) if callable(v) else v for k, v in params.items()}
                model.set_params(**at)
                model.partial_fit(X[trained], Y[trained], classes=["down", "up"])
            assert results[f"split{fold}_test_score"][row] == model.score(X[rest], Y[rest])


def test_a_pipeline_is_searched_with_folds_of_groups(two_threads: Client) -> None:
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from dasktune.integrations.search import DasktuneSearchCV

    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    options: Any = {"cv": GroupKFold(3), "trials": 4, "check": False, "client": two_threads}
    made = DasktuneSearchCV(pipeline, {"logisticregression__C": [1e-4, 1.0]}, **options)
    made.set_params(scoring="neg_log_loss")
    groups = np.arange(len(X)) % 6
    made.fit(X, Y, groups=groups)
    for row, params in enumerate(made.cv_results_["params"]):
        own = [made.cv_results_[f"split{fold}_test_score"][row] for fold in range(3)]
        model = clone(pipeline).set_params(**params)
        whole = cross_val_score(model, X, Y, cv=GroupKFold(3), groups=groups, scoring=made.scoring)
        np.testing.assert_array_equal(own, whole)
    assert made.best_estimator_.named_steps["logisticregression"].C == 1.0


def test_a_search_in_warm_starts_equals_lone_fits(two_threads: Client) -> None:
    from sklearn.base import clone
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.model_selection import cross_val_score

    from dasktune.integrations.search import DasktuneSearchCV

    made = DasktuneSearchCV(
        GradientBoostingClassifier(random_state=1, subsample=0.5),
        {"max_depth": [1, 2, 3], "min_samples_leaf": [1, 5]},
        cv=3,
        max_steps=8,
        iterations_per_step=2,
        trials=6,
        client=two_threads,
    ).fit(X, Y)
    results = made.cv_results_
    assert len(set(results["n_steps"])) > 1
    for row, params in enumerate(results["params"]):
        size = int(results["n_steps"][row]) * 2
        whole = clone(made.estimator).set_params(**params, n_estimators=size)
        own = [results[f"split{fold}_test_score"][row] for fold in range(made.n_splits_)]
        np.testing.assert_array_equal(own, cross_val_score(whole, X, Y, cv=3))
    size = int(results["n_steps"][made.best_index_]) * 2
    again = clone(made.estimator).set_params(**made.best_params_, n_estimators=size).fit(X, Y)
    np.testing.assert_array_equal(made.predict_proba(X), again.predict_proba(X))


NOT_RUN = {"check_array_api_input"}
"""Checks that need SCIPY_ARRAY_API=1 before SciPy is imported."""


def checked() -> Iterator[Any]:
    """Return the checks of scikit-learn, each with its search: one whole, one in steps."""
    if find_spec("sklearn") is None:
        return
    from sklearn.linear_model import Ridge, SGDClassifier
    from sklearn.utils.estimator_checks import estimator_checks_generator

    from dasktune.integrations.search import DasktuneSearchCV

    options: Any = {"cv": 2, "trials": 2, "check": False}
    for search in (
        DasktuneSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, **options),
        DasktuneSearchCV(SGDClassifier(), {"alpha": [1e-4, 0.1]}, max_steps=2, **options),
    ):
        name = type(search.estimator).__name__
        for number, (estimator, check) in enumerate(estimator_checks_generator(search)):
            kind = check.func.__name__
            if kind not in NOT_RUN:
                yield pytest.param(estimator, check, id=f"{name}-{number}-{kind}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), [*checked()])
def test_the_search_passes_a_check_of_scikit_learn(
    estimator: Any, check: Any, two_threads: Client
) -> None:
    check(estimator)


def test_other_data_in_one_storage_are_another_study(two_threads: Client, tmp_path: Path) -> None:
    options: Any = {"trials": 2, "client": two_threads, "storage": str(tmp_path)}
    first = search("sgd", {"alpha": [1e-4, 1e-2]}, **options).fit(X, Y)
    other = search("sgd", {"alpha": [1e-4, 1e-2]}, **options).fit(-X * 0, Y)
    assert other.best_score_ < first.best_score_


def test_a_clone_shares_the_client_and_copies_the_rest(two_threads: Client) -> None:
    from sklearn.base import clone

    made = search("sgd", {"alpha": [1e-4]}, client=two_threads, trials=3)
    copied = clone(made)
    assert copied.client is two_threads
    assert copied.estimator is not made.estimator
    assert copied.trials == 3


@pytest.mark.parametrize(
    ("estimator", "space", "options", "message"),
    [
        (
            "neighbors",
            {"n_neighbors": [1]},
            {"max_steps": 4},
            "without partial_fit or warm_start, which",
        ),
        ("sgd", {"lr": [1.0]}, {}, "unknown parameter of SGDClassifier 'lr'; known: alpha"),
        ("sgd", {"alpha": [1.0]}, {"scoring": ["accuracy"]}, "scoring must be one metric"),
    ],
)
def test_a_wrong_argument_is_refused(
    estimator: str, space: Any, options: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        search(estimator, space, **options).fit(X, Y)


def test_an_unknown_scoring_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        search("sgd", {"alpha": [1.0]}, scoring="nonsense").fit(X, Y)


def refusing(estimator: Any, x: Any, y: Any) -> float:
    raise ValueError(f"process {os.getpid()} refuses")


def test_an_error_of_all_configurations_is_a_workers(one_worker: Client) -> None:
    with pytest.raises(ValueError, match=r"process \d+ refuses") as error:
        search("sgd", {"alpha": [1.0]}, scoring=refusing, client=one_worker).fit(X, Y)
    assert str(os.getpid()) not in str(error.value)


def test_the_search_of_the_page_runs(two_threads: Client) -> None:
    from sklearn.linear_model import SGDClassifier

    (block,) = python_blocks("integrations-sklearn.md")
    names: dict[str, Any] = {
        "dt": dt,
        "Piecewise": Piecewise,
        "SGDClassifier": SGDClassifier,
        "client": two_threads,
        "x": X,
        "y": Y,
    }
    exec(compile(block, "integrations-sklearn.md", "exec"), names)
    assert names["search"].best_score_ > 0.7


def params_of(made: Any) -> list[tuple[Any, ...]]:
    return [tuple(sorted(params.items())) for params in made.cv_results_["params"]]


def test_search_over_a_grid_trains_each_point_once(two_threads: Client) -> None:
    from sklearn.model_selection import ParameterGrid

    grid = {"n_neighbors": [1, 3, 5], "weights": ["uniform", "distance"], "leaf_size": [10, 30]}
    made = search("neighbors", None, param_grid=grid, client=two_threads).fit(X, Y)
    points = [tuple(sorted(point.items())) for point in ParameterGrid(grid)]
    assert sorted(params_of(made), key=repr) == sorted(points, key=repr)


def test_search_over_few_points_trains_none_twice(two_threads: Client) -> None:
    few = {"n_neighbors": [1, 3, 5], "weights": ["uniform", "distance"]}
    made = search("neighbors", few, client=two_threads).fit(X, Y)
    assert len(set(params_of(made))) == len(params_of(made)) == 6
    made = search("neighbors", few, n_iter=4, client=two_threads).fit(X, Y)
    assert len(set(params_of(made))) == len(params_of(made)) == 4


def test_search_draws_from_distributions_of_scipy(two_threads: Client) -> None:
    from scipy.stats import loguniform, randint

    given = {
        "alpha": loguniform(1e-4, 1e-1),
        "l1_ratio": [0.1, 0.2],
        "n_iter_no_change": randint(2, 4),
    }
    options = {"param_distributions": given, "n_iter": 5, "max_steps": 3, "client": two_threads}
    made = search("sgd", None, **options, random_state=3).fit(X, Y)
    again = search("sgd", None, **options, random_state=3).fit(X, Y)
    assert params_of(made) == params_of(again)
    assert len(set(params_of(made))) == 5
    for params in made.cv_results_["params"]:
        assert 1e-4 <= params["alpha"] <= 1e-1
        assert type(params["n_iter_no_change"]) is int
    assert params_of(search("sgd", None, **options, random_state=4).fit(X, Y)) != params_of(made)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of space, param_grid, param_distributions must be given, got 0"),
        ({"param_grid": {"n_neighbors": [1]}, "param_distributions": {}}, "must be given, got 2"),
        ({"param_grid": [{"n_neighbors": [1]}]}, "make one search for each of several grids"),
        ({"param_grid": {"n_neighbors": [1]}, "n_iter": 3}, "neither with param_grid"),
        ({"param_distributions": {"n_neighbors": [1]}, "n_iter": 3, "trials": 3}, "not both"),
        ({"param_distributions": {"n_neighbors": [1]}, "n_iter": 0}, "n_iter must be an int >= 1"),
        ({"param_grid": {"neighbors": [1]}}, "unknown parameter of KNeighborsClassifier"),
        ({"param_grid": {"p": [(1, 2)]}}, r"got \(1, 2\).* in a subclass of the estimator"),
        ({"param_distributions": {"p": [{1: 2}]}}, "got {1: 2}.* in a subclass of the estimator"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_search_with_wrong_parameters_says_so(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        search("neighbors", None, **options).fit(X, Y)


def test_search_of_a_distribution_in_a_grid_is_refused() -> None:
    from scipy.stats import randint

    with pytest.raises(ConfigurationError, match="param_grid must have lists, got a distribution"):
        search("neighbors", None, param_grid={"n_neighbors": randint(1, 5)}).fit(X, Y)
