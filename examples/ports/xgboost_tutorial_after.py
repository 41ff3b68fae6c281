"""The best of a grid of XGBoost's parameters on the breast cancer data, tuned by dasktune."""

import xgboost as xgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

import dasktune as dt

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, random_state=0)
dtrain = xgb.DMatrix(x_train, label=y_train)
dvalid = xgb.DMatrix(x_valid, label=y_valid)
dtest = xgb.DMatrix(x_test, label=y_test)

params = {
    "objective": "binary:logistic",
    "eval_metric": "logloss",
}
trainer = dt.integrations.xgboost.trainer(
    params,
    dtrain,
    evals=[(dtrain, "train"), (dvalid, "valid")],
    early_stopping_rounds=10,
)

if __name__ == "__main__":
    study = dt.create_study(
        trainer, name="best", metric="best_score", direction="minimize", load_if_exists=True
    )
    study.optimize(dt.algos.Grid(dt.Space(eta=[0.1, 0.3], max_depth=[2, 4]), max_steps=60))
    best = study.best_model().booster

    print(study.best_params, best.best_score, best.best_iteration)
    predictions = best.predict(dtest, iteration_range=(0, best.best_iteration + 1))
    print("accuracy", accuracy_score(y_test, predictions > 0.5))
    best.save_model("best.json")
