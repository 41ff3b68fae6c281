"""Trees of XGBoost on the breast cancer data, tuned by dasktune."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import dasktune as dt


class Boosting(dt.integrations.xgboost.XGBoostTrainer):
    params = {"objective": "binary:logistic", "eval_metric": "logloss", "max_depth": 3}
    rounds_per_step = 10

    def data(self):
        x, y = load_breast_cancer(return_X_y=True)
        x, x_valid, y, y_valid = train_test_split(x, y, random_state=0)
        train = xgb.DMatrix(x, y)
        valid = xgb.DMatrix(x_valid, y_valid)
        return train, {"valid": valid}


study = dt.create_study(Boosting, name="trees", metric="valid_logloss", direction="minimize")
space = dt.Space(eta=[0.3, dt.sequences.MultiStep(0.3, milestones=[4], gamma=0.1)])
tuner = dt.algos.Grid(space, max_steps=6)
