"""Trees of XGBoost on the breast cancer data."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

params = {"objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 3, "eta": 0.3}
x, y = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
train = xgb.DMatrix(x, y)
valid = xgb.DMatrix(x_valid, y_valid)
booster = xgb.train(params, train, num_boost_round=60, evals=[(valid, "valid")])
