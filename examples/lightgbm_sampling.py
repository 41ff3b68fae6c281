"""Tune LightGBM's learning rate and sampling schedules; shared rounds are boosted once.

Run it with ``dasktune run examples/lightgbm_sampling.py``. One step is 10 boosting rounds. Needs
``pip install 'dasktune[lightgbm,examples]'``.
"""

from __future__ import annotations

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import dasktune as dt
from dasktune.integrations.lightgbm import trainer
from dasktune.sequences import Constant, MultiStep, Piecewise


def data() -> tuple[lgb.Dataset, list[lgb.Dataset]]:
    """Return the measurements for training and those held out."""
    x, y = load_breast_cancer(return_X_y=True)
    x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
    train = lgb.Dataset(x, y)
    return train, [train.create_valid(x_valid, y_valid)]


params = {
    "objective": "binary",
    "metric": "binary_logloss",
    "bagging_freq": 1,
    "num_leaves": 8,
}
boosting = trainer(params, data, valid_names=["valid"], rounds_per_step=10)


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        boosting,
        name="lightgbm-sampling",
        storage="runs/lightgbm-sampling",
        metric="valid_binary_logloss",
        direction="minimize",
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return three schedules of the learning rate with three of the sampled share of rows."""
    space = dt.Space(
        learning_rate=[
            Constant(0.1),
            MultiStep(0.1, milestones=[6], gamma=0.3),
            MultiStep(0.1, milestones=[4, 8], gamma=0.3),
        ],
        bagging_fraction=[
            Constant(0.8),
            Piecewise([0.8, 0.5], boundaries=[6]),
            Piecewise([0.8, 1.0], boundaries=[8]),
        ],
    )
    return dt.algos.Grid(space, max_steps=10)
