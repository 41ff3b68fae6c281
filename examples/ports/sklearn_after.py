"""Gradient boosting of scikit-learn on the digits, tuned by dasktune."""

from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split

import dasktune as dt

x, y = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)


class Digits(dt.integrations.sklearn.SklearnTrainer):
    iterations_per_step = 2

    def estimator(self):
        return GradientBoostingClassifier()

    def data(self):
        return (x_train, y_train), (x_test, y_test)


study = dt.create_study(Digits, name="trees", metric="score", direction="maximize")
space = dt.Space(max_depth=[3, dt.sequences.Piecewise([3, 5], boundaries=[4])])
tuner = dt.algos.Grid(space, max_steps=6)
