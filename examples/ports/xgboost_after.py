"""Trees of XGBoost on the breast cancer data, tuned by dasktune."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import dasktune as dt

params = {"objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 3, "eta": 0.3}
x, y = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
train = xgb.DMatrix(x, y)
valid = xgb.DMatrix(x_valid, y_valid)
trainer = dt.integrations.xgboost.trainer(params, train, evals=[(valid, "valid")])
study = dt.create_study(trainer, name="trees", metric="valid_logloss", direction="minimize")
space = dt.Space(eta=[0.3, dt.sequences.MultiStep(0.3, milestones=[40], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=60)
