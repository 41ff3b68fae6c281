"""Gradient boosting of scikit-learn on the digits."""

from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.model_selection import train_test_split

x, y = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
model = GradientBoostingClassifier(n_estimators=12, max_depth=3)
model.fit(x_train, y_train)
print(model.score(x_test, y_test))
