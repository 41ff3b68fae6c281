"""Learning curves: what they will come to, and how sure that is."""

from dasktune.algos.curves.curve import LEVELS, Branch, Curve, Prediction, Predictor

__all__ = ["LEVELS", "Branch", "Curve", "Prediction", "Predictor"]
