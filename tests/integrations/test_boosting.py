"""XGBoost and LightGBM: exact continuation, merging, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Exponential, Piecewise
from dasktune.trainer import run_alone
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from tests.forked import fork_for_resume_checks
from tests.integrations.exact import assert_resumes

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 6))
Y = (X[:, 0] + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3] > 0).astype(float)
ROWS, STEPS = 200, 4


PARAMS: dict[str, dict[str, Any]] = {
    "xgboost": {
        "objective": "binary:logistic",
        "eval_metric": ["error", "logloss"],
        "max_depth": 3,
    },
    "lightgbm": {"objective": "binary", "metric": "binary_logloss", "min_data_in_leaf": 5},
}
METRICS = {"xgboost": "valid_logloss", "lightgbm": "valid_binary_logloss"}
SHARE = {"xgboost": "subsample", "lightgbm": "bagging_fraction"}


def matrices() -> tuple[Any, list[Any]]:
    import xgboost as xgb

    return xgb.DMatrix(X[:ROWS], Y[:ROWS]), [(xgb.DMatrix(X[ROWS:], Y[ROWS:]), "valid")]


def datasets() -> tuple[Any, list[Any]]:
    import lightgbm as lgb

    train = lgb.Dataset(X[:ROWS], Y[:ROWS])
    return train, [train.create_valid(X[ROWS:], Y[ROWS:])]


def trainer_of(kind: str, params: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return a trainer of the data above, with 2 rounds a step."""
    params = PARAMS[kind] if params is None else params
    options = {"rounds_per_step": 2, **options}
    if kind == "xgboost":
        train, evals = matrices()
        return dt.integrations.xgboost.trainer(params, train, evals=evals, **options)
    train, sets = datasets()
    return dt.integrations.lightgbm.trainer(
        params, train, valid_sets=sets, valid_names=["valid"], **options
    )


XGBOOST = pytest.mark.framework("xgboost")
LIGHTGBM = pytest.mark.framework("lightgbm")
BOTH = [
    pytest.param("xgboost", marks=XGBOOST),
    pytest.param("lightgbm", marks=LIGHTGBM),
]
CASES = [
    pytest.param("xgboost", {"subsample": 0.5}, marks=XGBOOST),
    pytest.param("xgboost", {"colsample_bynode": 0.5, "num_parallel_tree": 2}, marks=XGBOOST),
    pytest.param("xgboost", {"booster": "dart", "rate_drop": 0.3}, marks=XGBOOST),
    pytest.param("xgboost", {"tree_method": "exact", "subsample": 0.5}, marks=XGBOOST),
    pytest.param("xgboost", {"tree_method": "approx"}, marks=XGBOOST),
    pytest.param("xgboost", {"subsample": Piecewise([1.0, 0.5], boundaries=[2])}, marks=XGBOOST),
    pytest.param("xgboost", {"max_leaves": Piecewise([4, 8], boundaries=[2])}, marks=XGBOOST),
    pytest.param("lightgbm", {"bagging_fraction": 0.5, "bagging_freq": 1}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"feature_fraction": 0.5}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"data_sample_strategy": "goss"}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"extra_trees": True}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"linear_tree": True}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"use_quantized_grad": True}, marks=LIGHTGBM),
    pytest.param("lightgbm", {"num_leaves": Piecewise([4, 8], boundaries=[2])}, marks=LIGHTGBM),
]


def resumed(trainer: type, values: Mapping[str, Any], split: int) -> dict[str, Any]:
    """Return the state after STEPS steps of a run that went on from a state."""
    from dasktune.trainer import TrainerRun

    sequences = {n: v if callable(v) else Constant(v) for n, v in values.items()}
    at = lambda step: {name: sequence(step) for name, sequence in sequences.items()}  # noqa: E731
    state = run_alone(trainer, sequences, split, states_at=[split]).states[split]
    run = TrainerRun.resume(
        trainer,
        step=split,
        first_values=at(0),
        last_values=at(split - 1),
        state=state,
        config={},
        seed=0,
    )
    for step in range(split, STEPS):
        run.advance(at(step))
    return {"state": run.trainer.state_dict(), "metrics": run.evaluate()}


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_a_resumed_booster_is_the_uninterrupted_one(kind: str, values: Mapping[str, Any]) -> None:
    trainer = trainer_of(kind)
    alone = run_alone(trainer, values, STEPS, states_at=[STEPS])
    for split in (1, 2, 3):
        other = resumed(trainer, values, split)
        assert other["state"]["model"].tobytes() == alone.states[STEPS]["model"].tobytes()
        assert other["metrics"] == alone.metrics[STEPS]


@pytest.mark.parametrize("kind", BOTH)
def test_a_decaying_rate_resumes_exactly(kind: str) -> None:
    trainer = trainer_of(kind)
    rate = {"learning_rate": Exponential(0.3, gamma=0.7)}
    alone = run_alone(trainer, rate, STEPS, states_at=[STEPS])
    other = resumed(trainer, rate, 2)
    assert other["state"]["model"].tobytes() == alone.states[STEPS]["model"].tobytes()
    assert other["metrics"] == alone.metrics[STEPS]


@pytest.mark.parametrize("kind", BOTH)
def test_a_sampled_step_draws_anew(kind: str) -> None:
    trainer, name = trainer_of(kind), SHARE[kind]
    freq = {} if kind == "xgboost" else {"bagging_freq": 1}
    plain, sampled, again, other_seed = (
        run_alone(trainer, {name: share, **freq}, STEPS, seed=seed).metrics
        for share, seed in ((1.0, 0), (0.5, 0), (0.5, 0), (0.5, 1))
    )
    assert sampled == again
    assert len({str(plain), str(sampled), str(other_seed)}) == 3


@pytest.mark.parametrize("kind", BOTH)
def test_export_writes_the_file_of_the_framework(
    kind: str, tmp_path: Path, two_threads: Any
) -> None:
    trainer, storage = trainer_of(kind), str(tmp_path / "store")
    study = dt.create_study(
        trainer, name="b", storage=storage, metric=METRICS[kind], direction="minimize"
    )
    tuner = dt.algos.Grid(dt.Space(learning_rate=[0.3]), max_steps=STEPS)
    study.optimize(tuner, client=two_threads, check=False)
    alone = run_alone(trainer, {"learning_rate": 0.3}, STEPS, states_at=[2, STEPS]).states
    for ending in trainer.model_endings:
        for step in (2, STEPS):
            path = study.export(0, tmp_path / f"best{ending}", step=step)
            assert predicted(kind, path) == predicted(kind, alone[step]["model"].tobytes())
        with pytest.raises(ConfigurationError, match="only must be None for"):
            study.export(0, path, only="model")
    with pytest.raises(
        ConfigurationError, match=rf"'\.yaml'; known: .*{trainer.model_endings[-1]}"
    ):
        study.export(0, tmp_path / "best.yaml")
    study.close()


def predicted(kind: str, model: Path | bytes) -> list[float]:
    """Return the predictions of a booster that the framework reads without dasktune."""
    content = model if isinstance(model, bytes) else model.read_bytes()
    if kind == "xgboost":
        import xgboost as xgb

        source: Any = bytearray(content) if model is content else str(model)
        return list(xgb.Booster(model_file=source).predict(xgb.DMatrix(X)))
    import lightgbm as lgb

    return list(np.asarray(lgb.Booster(model_str=content.decode()).predict(X)))


@XGBOOST
def test_without_sampling_it_is_the_booster_of_xgboost_train() -> None:
    import xgboost as xgb

    state = run_alone(trainer_of("xgboost"), {"eta": 0.2}, STEPS, states_at=[STEPS]).states[STEPS]
    data = xgb.DMatrix(X[:ROWS], Y[:ROWS])
    params = {**PARAMS["xgboost"], "eta": 0.2, "nthread": 1}
    booster = xgb.train(params, data, num_boost_round=2 * STEPS)
    mine = xgb.Booster(model_file=bytearray(state["model"].tobytes()))
    assert mine.get_dump(with_stats=True) == booster.get_dump(with_stats=True)


@LIGHTGBM
def test_without_sampling_it_is_the_booster_of_lightgbm_train() -> None:
    import lightgbm as lgb

    state = run_alone(trainer_of("lightgbm"), {"eta": 0.2}, STEPS, states_at=[STEPS]).states[STEPS]
    params = {
        **PARAMS["lightgbm"],
        "learning_rate": 0.2,
        "num_threads": 1,
        "verbosity": -1,
    }
    params |= {"deterministic": True, "force_row_wise": True}
    data = lgb.Dataset(X[:ROWS], Y[:ROWS], free_raw_data=False)
    booster = lgb.train(params, data, num_boost_round=2 * STEPS)
    mine = lgb.Booster(model_str=state["model"].tobytes().decode())
    assert mine.predict(X, raw_score=True).tolist() == booster.predict(X, raw_score=True).tolist()


@pytest.mark.parametrize("kind", BOTH)
def test_check_resume_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
    trainer = trainer_of(kind, early_stopping_rounds=1)
    hp = {"learning_rate": Piecewise([0.3, 0.1], boundaries=[2])}
    report = dt.check_resume(trainer, hp, split=1, total=3)
    assert report.ok, report.differences


@pytest.mark.parametrize("kind", BOTH)
def test_a_merged_study_equals_lone_runs(kind: str, tmp_path: Path, two_threads: Any) -> None:
    trainer = trainer_of(kind)
    space = dt.Space(
        learning_rate=[
            Constant(0.3),
            Piecewise([0.3, 0.1], boundaries=[2]),
            Piecewise([0.3, 0.05], boundaries=[3]),
        ]
    )
    study = dt.create_study(
        trainer, name="b", storage=str(tmp_path), metric=METRICS[kind], direction="minimize"
    )
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=two_threads, check=False)
    assert study.summary()["steps_executed"] == 4 + 2 + 1
    for trial in study.trials:
        assert run_alone(trainer, trial.sequences, STEPS).metrics == trial.metrics
    study.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("hp", "message"),
    [
        (
            {"learning_rat": 0.1},
            "unknown parameter 'learning_rat'; did you mean 'learning_rate'\\?$",
        ),
        ({"n_estimators": 10}, "'n_estimators' is no parameter here; the tuner's max_steps"),
        ({"early_stopping_round": 5}, "write trainer\\(..., early_stopping_rounds=NUMBER\\)"),
        ({"random_state": 1}, "'random_state' is no parameter here; the study has the seed"),
        ({"n_jobs": 4}, "'n_jobs' is no parameter here; write trainer\\(..., threads=NUMBER\\)"),
        ({"eta": 0.1, "learning_rate": 0.1}, "'eta' and 'learning_rate' are the same parameter"),
    ],
)
def test_wrong_parameters_are_refused(kind: str, hp: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_alone(trainer_of(kind), hp, 1)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"seed": 1}, r"'seed' is no parameter here; .* create_study\(..., seed=NUMBER\)$"),
        ({"nthread": 4}, r"'nthread' is no parameter here; .* trainer\(..., threads=NUMBER\)$"),
        ({"learning_rat": 1}, r"unknown parameter 'learning_rat'; did you mean 'learning_rate'\?$"),
        ({"qqq": 1}, r"unknown parameter 'qqq'; known: .*max_depth"),
    ],
)
def test_wrong_params_are_refused_before_a_study_exists(
    kind: str, fixed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    place: dict[str, Any] = {"name": "b", "storage": str(tmp_path), "metric": "valid_loss"}
    with pytest.raises(ConfigurationError, match=message):
        dt.create_study(trainer_of(kind, fixed), **place)
    dt.create_study(trainer_of(kind, {}), **place).close()


@pytest.mark.parametrize("kind", BOTH)
def test_a_wrong_name_of_a_space_ends_a_run_at_once(kind: str, tmp_path: Path) -> None:
    study = dt.create_study(trainer_of(kind), name="b", storage=str(tmp_path), metric="valid_loss")
    tuner = dt.algos.ASHA(dt.Space(max_deph=[2, 3]), trials=2, max_steps=4)
    with pytest.raises(ConfigurationError, match=r"'max_deph'; did you mean 'max_depth'\?$"):
        study.optimize(tuner, check=False)
    assert not study.trials
    study.close()


@XGBOOST
def test_names_are_open_until_the_booster_is_known() -> None:
    trainer = trainer_of("xgboost")
    assert not trainer.name_problems(["booster", "rate_drop"])
    assert not trainer.problems({"booster": "dart", "rate_drop": 0.1})
    (problem,) = trainer.name_problems(["rate_drop"])
    assert "unknown parameter 'rate_drop'" in problem


@pytest.mark.parametrize("kind", BOTH)
def test_a_hyper_parameter_takes_the_place_of_its_alias(kind: str) -> None:
    params = {**PARAMS[kind], "eta": 0.9}
    rate = {"learning_rate": 0.2}
    assert run_alone(trainer_of(kind, params), rate, 1) == run_alone(trainer_of(kind), rate, 1)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds_per_step": 0}, "rounds_per_step must be an int >= 1, got 0"),
        ({"early_stopping_rounds": 0}, "early_stopping_rounds must be an int >= 1, got 0"),
        ({"num_boost_round": 9}, "num_boost_round must not be given: the tuner's max_steps"),
        ({"thread": 2}, "unknown option of trainer 'thread'; .* did you mean 'threads'"),
    ],
)
def test_wrong_options_are_refused(kind: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_alone(trainer_of(kind, **options), {"eta": 0.1}, 1)


@pytest.mark.parametrize("kind", BOTH)
def test_a_function_makes_the_data_where_it_trains(kind: str) -> None:
    make = getattr(dt.integrations, kind).trainer
    options = {} if kind == "xgboost" else {"valid_names": ["valid"]}
    data = matrices if kind == "xgboost" else datasets
    trainer = make(PARAMS[kind], data, rounds_per_step=2, **options)
    rate = {"eta": 0.2}
    assert run_alone(trainer, rate, 2).metrics == run_alone(trainer_of(kind), rate, 2).metrics
    with pytest.raises(
        ConfigurationError, match=r"<lambda> must return .*: return .*train, .*; got"
    ):
        run_alone(make(PARAMS[kind], lambda: X), rate, 1)


@XGBOOST
def test_matrices_that_are_none_are_refused() -> None:
    import xgboost as xgb

    train, evals = matrices()
    for given, message in (
        ((X, evals), "dtrain must be a DMatrix, got a ndarray"),
        ((train, [train]), "evals must be pairs of a DMatrix and its name"),
        ((train, []), "evals must be pairs"),
        ((xgb.QuantileDMatrix(X, Y), evals), "a QuantileDMatrix cannot be sent to workers"),
        ((matrices, evals), "evals must be left out: matrices returns them"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            dt.integrations.xgboost.trainer({}, given[0], evals=given[1])


@LIGHTGBM
def test_data_sets_that_are_none_are_refused() -> None:
    import lightgbm as lgb

    train, sets = datasets()
    freed = lgb.Dataset(X, Y, params={"verbosity": -1}).construct()
    for given, message in (
        ((X, sets), "train_set must be a lightgbm.Dataset, got a ndarray"),
        ((train, [X]), r"valid_sets\[0\] must be a lightgbm.Dataset"),
        ((train, []), "valid_sets must have a Dataset"),
        ((freed, sets), "train_set has freed its raw data"),
        ((train.subset([1, 2]), sets), "train_set must be made from its own rows"),
        ((datasets, sets), "valid_sets must be left out: datasets returns them"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            dt.integrations.lightgbm.trainer({}, given[0], valid_sets=given[1])


@pytest.mark.parametrize("kind", BOTH)
def test_fingerprints_follow_the_content_of_data(kind: str, monkeypatch: Any) -> None:
    again, first = (fingerprint(trainer_of(kind), {}).digest for _ in range(2))
    monkeypatch.setitem(globals(), "Y", 1 - Y)
    assert first == again != fingerprint(trainer_of(kind), {}).digest


@LIGHTGBM
def test_frames_count_by_columns_and_categories() -> None:
    import lightgbm as lgb
    import pandas as pd
    from scipy.sparse import csr_matrix

    def digest(data: Any) -> str:
        train = lgb.Dataset(data, Y)
        trainer = dt.integrations.lightgbm.trainer({}, train, valid_sets=[train])
        return fingerprint(trainer, {}).digest

    frame = pd.DataFrame({"a": X[:, 0], "b": pd.Categorical(["u", "v", "w"] * 100)})
    other = frame.assign(b=frame["b"].cat.rename_categories({"u": "x"}))
    assert digest(frame) == digest(frame.copy()) != digest(other)
    assert digest(csr_matrix(X)) == digest(csr_matrix(X)) != digest(X)
    with pytest.raises(ConfigurationError, match="give trainer a function that makes it"):
        digest(object())


def train_of_framework(kind: str) -> tuple[Any, float]:
    """Return the booster of the framework's own ``train`` with early stopping, and its score."""
    if kind == "xgboost":
        import xgboost as xgb

        train, evals = matrices()
        options: dict[str, Any] = {"early_stopping_rounds": 3, "verbose_eval": False}
        params = {**PARAMS[kind], "eta": 0.3, "nthread": 1}
        booster = xgb.train(params, train, 60, evals=evals, **options)
        return booster, booster.best_score
    import lightgbm as lgb

    train, sets = datasets()
    params = {**PARAMS[kind], "eta": 0.3, "num_threads": 1, "verbosity": -1}
    params |= {"deterministic": True, "force_row_wise": True}
    stopping = lgb.early_stopping(3, verbose=False)
    light = lgb.train(
        params, train, 60, valid_sets=sets, valid_names=["valid"], callbacks=[stopping]
    )
    return light, light.best_score["valid"]["binary_logloss"]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("metric", ["best_score", "best_iteration"])
def test_metric_of_early_stopping_without_it_is_refused(
    kind: str, metric: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"storage": str(tmp_path), "metric": metric, "direction": "minimize"}
    with pytest.raises(ConfigurationError, match="early_stopping_rounds"):
        dt.create_study(trainer_of(kind), name="b", **given)
    assert not dt.create_study(trainer_of(kind, early_stopping_rounds=2), name="b", **given).trials


@pytest.mark.parametrize("kind", BOTH)
def test_early_stopping_is_that_of_the_framework(
    kind: str, tmp_path: Path, two_threads: Any
) -> None:
    booster, score = train_of_framework(kind)
    trainer = trainer_of(kind, early_stopping_rounds=3)
    study = dt.create_study(
        trainer, name="b", storage=str(tmp_path), metric="best_score", direction="minimize"
    )
    tuner = dt.algos.Grid(dt.Space(eta=[0.3]), max_steps=30)
    study.optimize(tuner, client=two_threads, check=False)
    best = study.best_model()
    assert best.has_ended
    assert study.best_value == score
    assert best.booster.best_iteration == booster.best_iteration
    assert best.rounds == best.best_rounds + 3
    assert best.evaluate()["ended_at"] == (best.rounds + 1) // 2  # a step has 2 rounds
    path = study.export(path=tmp_path / f"best{trainer.model_endings[-1]}")
    own = tmp_path / f"own{trainer.model_endings[-1]}"
    booster.save_model(own)
    assert predicted(kind, path) == predicted(kind, own)
    assert_resumes(trainer, {"eta": 0.3}, best.rounds // 2)
    study.close()


@LIGHTGBM
@pytest.mark.parametrize("mode", ["rf", "dart"])
def test_modes_that_cannot_go_on_are_refused(mode: str) -> None:
    with pytest.raises(ConfigurationError, match="boosting must be 'gbdt' or 'goss'"):
        run_alone(trainer_of("lightgbm"), {"boosting_type": mode}, 1)
