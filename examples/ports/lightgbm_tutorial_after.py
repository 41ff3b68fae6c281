"""The best of a grid of LightGBM's parameters on the breast cancer data, tuned by dasktune."""

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

import dasktune as dt

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, random_state=0)
train_data = lgb.Dataset(x_train, label=y_train)
valid_data = lgb.Dataset(x_valid, label=y_valid, reference=train_data)

params = {
    "objective": "binary",
    "metric": "binary_logloss",
    "verbosity": -1,
}
trainer = dt.integrations.lightgbm.trainer(
    params,
    train_data,
    valid_sets=[valid_data],
    valid_names=["valid"],
    early_stopping_rounds=10,
)

if __name__ == "__main__":
    study = dt.create_study(
        trainer, name="best", metric="best_score", direction="minimize", load_if_exists=True
    )
    study.optimize(dt.algos.Grid(dt.Space(learning_rate=[0.1, 0.3], num_leaves=[4, 8]), 60))
    best = study.best_model().booster

    print(study.best_params, study.best_value, best.best_iteration)
    predictions = best.predict(x_test)
    print("accuracy", accuracy_score(y_test, predictions > 0.5))
    best.save_model("best.txt")
