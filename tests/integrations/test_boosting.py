"""XGBoost and LightGBM: exact continuation, merging, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.integrations.lightgbm import LightGBMTrainer
from dasktune.integrations.xgboost import XGBoostTrainer
from dasktune.sequences import Constant, Exponential, Piecewise
from dasktune.trainer import run_alone

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 6))
Y = (X[:, 0] + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3] > 0).astype(float)
ROWS, STEPS = 200, 4


class XGBoosting(XGBoostTrainer):
    params: ClassVar[dict[str, Any]] = {
        "objective": "binary:logistic",
        "eval_metric": ["logloss", "error"],
        "max_depth": 3,
    }
    rounds_per_step = 2

    def data(self) -> tuple[Any, Mapping[str, Any]]:
        import xgboost as xgb

        return xgb.DMatrix(X[:ROWS], Y[:ROWS]), {"valid": xgb.DMatrix(X[ROWS:], Y[ROWS:])}


class LightBoosting(LightGBMTrainer):
    params: ClassVar[dict[str, Any]] = {
        "objective": "binary",
        "metric": "binary_logloss",
        "min_data_in_leaf": 5,
    }
    rounds_per_step = 2

    def data(self) -> tuple[Any, Mapping[str, Any]]:
        import lightgbm as lgb

        train = lgb.Dataset(X[:ROWS], Y[:ROWS])
        return train, {"valid": train.create_valid(X[ROWS:], Y[ROWS:])}


XGBOOST = pytest.mark.framework("xgboost")
LIGHTGBM = pytest.mark.framework("lightgbm")
BOTH = [
    pytest.param(XGBoosting, marks=XGBOOST, id="xgboost"),
    pytest.param(LightBoosting, marks=LIGHTGBM, id="lightgbm"),
]
CASES = [
    pytest.param(XGBoosting, {"subsample": 0.5}, marks=XGBOOST),
    pytest.param(XGBoosting, {"colsample_bynode": 0.5, "num_parallel_tree": 2}, marks=XGBOOST),
    pytest.param(XGBoosting, {"booster": "dart", "rate_drop": 0.3}, marks=XGBOOST),
    pytest.param(XGBoosting, {"tree_method": "exact", "subsample": 0.5}, marks=XGBOOST),
    pytest.param(XGBoosting, {"tree_method": "approx"}, marks=XGBOOST),
    pytest.param(XGBoosting, {"subsample": Piecewise([1.0, 0.5], boundaries=[2])}, marks=XGBOOST),
    pytest.param(XGBoosting, {"max_leaves": Piecewise([4, 8], boundaries=[2])}, marks=XGBOOST),
    pytest.param(LightBoosting, {"bagging_fraction": 0.5, "bagging_freq": 1}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"feature_fraction": 0.5}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"data_sample_strategy": "goss"}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"extra_trees": True}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"linear_tree": True}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"use_quantized_grad": True}, marks=LIGHTGBM),
    pytest.param(LightBoosting, {"num_leaves": Piecewise([4, 8], boundaries=[2])}, marks=LIGHTGBM),
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


@pytest.mark.parametrize(("trainer", "values"), CASES)
def test_a_resumed_booster_is_the_uninterrupted_one(
    trainer: type, values: Mapping[str, Any]
) -> None:
    alone = run_alone(trainer, values, STEPS, states_at=[STEPS])
    for split in (1, 2, 3):
        other = resumed(trainer, values, split)
        assert other["state"]["model"].tobytes() == alone.states[STEPS]["model"].tobytes()
        assert other["metrics"] == alone.metrics[STEPS]


@pytest.mark.parametrize("trainer", BOTH)
def test_a_decaying_rate_resumes_exactly(trainer: type) -> None:
    rate = {"learning_rate": Exponential(0.3, gamma=0.7)}
    alone = run_alone(trainer, rate, STEPS, states_at=[STEPS])
    other = resumed(trainer, rate, 2)
    assert other["state"]["model"].tobytes() == alone.states[STEPS]["model"].tobytes()
    assert other["metrics"] == alone.metrics[STEPS]


@pytest.mark.parametrize("trainer", BOTH)
def test_a_sampled_step_draws_anew(trainer: type) -> None:
    name = "subsample" if trainer is XGBoosting else "bagging_fraction"
    freq = {} if trainer is XGBoosting else {"bagging_freq": 1}
    plain, sampled, again, other_seed = (
        run_alone(trainer, {name: share, **freq}, STEPS, seed=seed).metrics
        for share, seed in ((1.0, 0), (0.5, 0), (0.5, 0), (0.5, 1))
    )
    assert sampled == again
    assert len({str(plain), str(sampled), str(other_seed)}) == 3


@pytest.mark.parametrize("trainer", BOTH)
def test_export_writes_the_file_of_the_framework(
    trainer: Any, tmp_path: Path, two_threads: Any
) -> None:
    metric = "valid_logloss" if trainer is XGBoosting else "valid_binary_logloss"
    study = dt.create_study(
        trainer, name="b", storage=str(tmp_path / "store"), metric=metric, direction="minimize"
    )
    tuner = dt.algos.Grid(dt.Space(learning_rate=[0.3]), max_steps=STEPS)
    study.optimize(tuner, client=two_threads, check=False)
    alone = run_alone(trainer, {"learning_rate": 0.3}, STEPS, states_at=[2, STEPS]).states
    for ending in trainer.model_endings:
        for step in (2, STEPS):
            path = study.export(0, tmp_path / f"best{ending}", step=step)
            assert predicted(trainer, path) == predicted(trainer, alone[step]["model"].tobytes())
        with pytest.raises(ConfigurationError, match="only must be None for"):
            study.export(0, path, only="model")
    with pytest.raises(
        ConfigurationError, match=rf"'\.yaml'; known: .*{trainer.model_endings[-1]}"
    ):
        study.export(0, tmp_path / "best.yaml")
    study.close()


def predicted(trainer: type, model: Path | bytes) -> list[float]:
    """Return the predictions of a booster that the framework reads without dasktune."""
    content = model if isinstance(model, bytes) else model.read_bytes()
    if trainer is XGBoosting:
        import xgboost as xgb

        source: Any = bytearray(content) if model is content else str(model)
        return list(xgb.Booster(model_file=source).predict(xgb.DMatrix(X)))
    import lightgbm as lgb

    return list(np.asarray(lgb.Booster(model_str=content.decode()).predict(X)))


@XGBOOST
def test_without_sampling_it_is_the_booster_of_xgboost_train() -> None:
    import xgboost as xgb

    state = run_alone(XGBoosting, {"eta": 0.2}, STEPS, states_at=[STEPS]).states[STEPS]
    data = xgb.DMatrix(X[:ROWS], Y[:ROWS])
    params: ClassVar[dict[str, Any]] = {**XGBoosting.params, "eta": 0.2, "nthread": 1}
    booster = xgb.train(params, data, num_boost_round=2 * STEPS)
    mine = xgb.Booster(model_file=bytearray(state["model"].tobytes()))
    assert mine.get_dump(with_stats=True) == booster.get_dump(with_stats=True)


@LIGHTGBM
def test_without_sampling_it_is_the_booster_of_lightgbm_train() -> None:
    import lightgbm as lgb

    state = run_alone(LightBoosting, {"eta": 0.2}, STEPS, states_at=[STEPS]).states[STEPS]
    params: ClassVar[dict[str, Any]] = {
        **LightBoosting.params,
        "learning_rate": 0.2,
        "num_threads": 1,
        "verbosity": -1,
    }
    params |= {"deterministic": True, "force_row_wise": True}
    data = lgb.Dataset(X[:ROWS], Y[:ROWS], free_raw_data=False)
    booster = lgb.train(params, data, num_boost_round=2 * STEPS)
    mine = lgb.Booster(model_str=state["model"].tobytes().decode())
    assert mine.predict(X, raw_score=True).tolist() == booster.predict(X, raw_score=True).tolist()


@pytest.mark.parametrize("trainer", BOTH)
def test_check_resume_passes(trainer: type) -> None:
    hp = {"learning_rate": Piecewise([0.3, 0.1], boundaries=[2])}
    report = dt.check_resume(trainer, hp, split=1, total=3)
    assert report.ok, report.differences


@pytest.mark.parametrize("trainer", BOTH)
def test_a_merged_study_equals_lone_runs(trainer: type, tmp_path: Path, two_threads: Any) -> None:
    space = dt.Space(
        learning_rate=[
            Constant(0.3),
            Piecewise([0.3, 0.1], boundaries=[2]),
            Piecewise([0.3, 0.05], boundaries=[3]),
        ]
    )
    metric = "valid_logloss" if trainer is XGBoosting else "valid_binary_logloss"
    study = dt.create_study(
        trainer, name="b", storage=str(tmp_path), metric=metric, direction="minimize"
    )
    study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=two_threads, check=False)
    assert study.summary()["steps_executed"] == 4 + 2 + 1
    for trial in study.trials:
        assert run_alone(trainer, trial.sequences, STEPS).metrics == trial.metrics
    study.close()


@pytest.mark.parametrize("trainer", BOTH)
@pytest.mark.parametrize(
    ("hp", "message"),
    [
        ({"learning_rat": 0.1}, "unknown parameter 'learning_rat'; did you mean 'learning_rate'"),
        ({"n_estimators": 10}, "'n_estimators' is no parameter here; set rounds_per_step"),
        ({"early_stopping_round": 5}, "PatienceStopping\\(..., patience=STEPS, every=1\\)"),
        ({"random_state": 1}, "'random_state' is no parameter here; the study has the seed"),
        ({"n_jobs": 4}, "'n_jobs' is no parameter here; the trainer has the threads"),
        ({"objective": "x"}, "params fixes 'objective', which the space varies"),
    ],
)
def test_wrong_parameters_are_refused(trainer: type, hp: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_alone(trainer, hp, 1)


@pytest.mark.parametrize("trainer", BOTH)
@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"seed": 1}, r"'seed' is no parameter here; .* create_study\(..., seed=NUMBER\)$"),
        ({"nthread": 4}, r"'nthread' is no parameter here; .* threads = NUMBER in the class$"),
        ({"learning_rat": 1}, r"unknown parameter 'learning_rat'; did you mean 'learning_rate'\?$"),
        ({"qqq": 1}, r"unknown parameter 'qqq'; known: .*max_depth"),
    ],
)
def test_wrong_params_are_refused_before_a_study_exists(
    trainer: Any, fixed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    class Wrong(trainer):  # type: ignore[misc]
        params: ClassVar[dict[str, Any]] = fixed

    class Right(trainer):  # type: ignore[misc]
        params: ClassVar[dict[str, Any]] = {}

    place: dict[str, Any] = {"name": "b", "storage": str(tmp_path), "metric": "valid_loss"}
    with pytest.raises(ConfigurationError, match=message):
        dt.create_study(Wrong, **place)
    dt.create_study(Right, **place).close()


@pytest.mark.parametrize("trainer", BOTH)
def test_a_wrong_name_of_a_space_ends_a_run_at_once(trainer: Any, tmp_path: Path) -> None:
    study = dt.create_study(trainer, name="b", storage=str(tmp_path), metric="valid_loss")
    tuner = dt.algos.ASHA(dt.Space(max_deph=[2, 3]), trials=2, max_steps=4)
    with pytest.raises(ConfigurationError, match=r"'max_deph'; did you mean 'max_depth'\?$"):
        study.optimize(tuner, check=False)
    assert not study.trials
    study.close()


@XGBOOST
def test_names_are_open_until_the_booster_is_known() -> None:
    assert not XGBoosting.name_problems(["booster", "rate_drop"])
    assert not XGBoosting.problems({"booster": "dart", "rate_drop": 0.1})
    (problem,) = XGBoosting.name_problems(["rate_drop"])
    assert "unknown parameter 'rate_drop'" in problem


@pytest.mark.parametrize("trainer", BOTH)
def test_wrong_attributes_are_refused(trainer: Any) -> None:
    class Wrong(trainer):  # type: ignore[misc]
        rounds_per_step = 0

    with pytest.raises(ConfigurationError, match="rounds_per_step must be an int >= 1, got 0"):
        run_alone(Wrong, {"eta": 0.1}, 1)


@pytest.mark.parametrize("trainer", BOTH)
def test_data_of_another_form_are_refused(trainer: Any) -> None:
    class Wrong(trainer):  # type: ignore[misc]
        def data(self) -> Any:
            return super().data()[0]

    with pytest.raises(ConfigurationError, match="must return the training data and a dict"):
        run_alone(Wrong, {"eta": 0.1}, 1)


@LIGHTGBM
@pytest.mark.parametrize("mode", ["rf", "dart"])
def test_modes_that_cannot_go_on_are_refused(mode: str) -> None:
    with pytest.raises(ConfigurationError, match="boosting must be 'gbdt' or 'goss'"):
        run_alone(LightBoosting, {"boosting_type": mode}, 1)
