"""Trees of LightGBM on the breast cancer data, tuned by dasktune."""

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import dasktune as dt

params = {"objective": "binary", "metric": "binary_logloss", "num_leaves": 8, "learning_rate": 0.1}
x, y = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
train = lgb.Dataset(x, y)
valid = lgb.Dataset(x_valid, y_valid, reference=train)
trainer = dt.integrations.lightgbm.trainer(params, train, valid_sets=[valid])
study = dt.create_study(
    trainer, name="trees", metric="valid_0_binary_logloss", direction="minimize"
)
space = dt.Space(learning_rate=[0.1, dt.sequences.MultiStep(0.1, milestones=[40], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=60)
