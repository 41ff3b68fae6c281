"""Tune XGBoost's learning rate schedule and sampling; shared rounds are boosted once.

Run it with ``dasktune run examples/xgboost_rates.py``. One step is 10 boosting rounds. Needs
``pip install 'dasktune[xgboost,examples]'``.
"""

from __future__ import annotations

import xgboost as xgb
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dasktune as dt
from dasktune.integrations.xgboost import trainer
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise


def data() -> tuple[xgb.DMatrix, list[tuple[xgb.DMatrix, str]]]:
    """Return the images for training and those held out."""
    x, y = load_digits(return_X_y=True)
    x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
    return xgb.DMatrix(x, y), [(xgb.DMatrix(x_valid, y_valid), "valid")]


params = {
    "objective": "multi:softprob",
    "num_class": 10,
    "eval_metric": "mlogloss",
    "max_depth": 4,
}
boosting = trainer(params, data, rounds_per_step=10)


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        boosting,
        name="xgboost-rates",
        storage="runs/xgboost-rates",
        metric="valid_mlogloss",
        direction="minimize",
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return four schedules of the learning rate with three of the sampled share of rows."""
    space = dt.Space(
        eta=[
            Constant(0.3),
            MultiStep(0.3, milestones=[6], gamma=0.3),
            MultiStep(0.3, milestones=[4, 8], gamma=0.3),
            Constant(0.3)[:4] >> Exponential(0.3, gamma=0.8),
        ],
        subsample=[
            Constant(1.0),
            Piecewise([1.0, 0.5], boundaries=[6]),
            Piecewise([1.0, 0.7], boundaries=[8]),
        ],
    )
    return dt.algos.Grid(space, max_steps=10)
