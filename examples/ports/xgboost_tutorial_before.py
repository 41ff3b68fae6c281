"""The best of a grid of XGBoost's parameters on the breast cancer data, with early stopping."""

import itertools

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, random_state=0)
dtrain = xgb.DMatrix(x_train, label=y_train)
dvalid = xgb.DMatrix(x_valid, label=y_valid)
dtest = xgb.DMatrix(x_test, label=y_test)

best, best_params = None, None
for eta, max_depth in itertools.product([0.1, 0.3], [2, 4]):
    params = {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "eta": eta,
        "max_depth": max_depth,
    }
    booster = xgb.train(
        params,
        dtrain,
        num_boost_round=60,
        evals=[(dtrain, "train"), (dvalid, "valid")],
        early_stopping_rounds=10,
        verbose_eval=False,
    )
    if best is None or booster.best_score < best.best_score:
        best, best_params = booster, params

print(best_params, best.best_score, best.best_iteration)
predictions = best.predict(dtest, iteration_range=(0, best.best_iteration + 1))
print("accuracy", accuracy_score(y_test, predictions > 0.5))
best.save_model("best.json")
