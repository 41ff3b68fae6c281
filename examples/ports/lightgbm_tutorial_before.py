"""The best of a grid of LightGBM's parameters on the breast cancer data, with early stopping."""

import itertools

import lightgbm as lgb
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split

x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0)
x_train, x_valid, y_train, y_valid = train_test_split(x_train, y_train, random_state=0)
train_data = lgb.Dataset(x_train, label=y_train)
valid_data = lgb.Dataset(x_valid, label=y_valid, reference=train_data)

best, best_params, best_score = None, None, float("inf")
for learning_rate, num_leaves in itertools.product([0.1, 0.3], [4, 8]):
    params = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": learning_rate,
        "num_leaves": num_leaves,
        "verbosity": -1,
    }
    booster = lgb.train(
        params,
        train_data,
        num_boost_round=60,
        valid_sets=[valid_data],
        valid_names=["valid"],
        callbacks=[lgb.early_stopping(stopping_rounds=10, verbose=False)],
    )
    score = booster.best_score["valid"]["binary_logloss"]
    if score < best_score:
        best, best_params, best_score = booster, params, score

print(best_params, best_score, best.best_iteration)
predictions = best.predict(x_test)
print("accuracy", accuracy_score(y_test, predictions > 0.5))
best.save_model("best.txt")
