"""Trees of LightGBM on the breast cancer data."""

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

params = {"objective": "binary", "metric": "binary_logloss", "num_leaves": 8, "learning_rate": 0.1}
x, y = load_breast_cancer(return_X_y=True)
x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
train = lgb.Dataset(x, y)
valid = lgb.Dataset(x_valid, y_valid, reference=train)
booster = lgb.train(params, train, num_boost_round=60, valid_sets=[valid])
print(booster.best_score)
