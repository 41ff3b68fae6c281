"""Learning curves, and predictions of their future with its uncertainty."""

from dasktune.algos.curves.curve import LEVELS, Branch, Curve, Prediction, Predictor, Question
from dasktune.algos.curves.mcmc.ensemble import CurveEnsemble
from dasktune.algos.curves.mixture.mixture import Mixture
from dasktune.algos.curves.named import PREDICTORS, predictor_of
from dasktune.algos.curves.network.prior_fitted import PriorFitted
from dasktune.algos.curves.persistence import Persistence

__all__ = [
    "LEVELS",
    "PREDICTORS",
    "Branch",
    "Curve",
    "CurveEnsemble",
    "Mixture",
    "Persistence",
    "Prediction",
    "Predictor",
    "PriorFitted",
    "Question",
    "predictor_of",
]
