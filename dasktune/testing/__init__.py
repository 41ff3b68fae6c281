"""What proves that a user's own parts keep their contracts: one class for each kind of part."""

from dasktune.testing.calls import ConformanceError
from dasktune.testing.play import Game, play
from dasktune.testing.predictors import PredictorConformance
from dasktune.testing.tuners import TunerConformance

__all__ = ["ConformanceError", "Game", "PredictorConformance", "TunerConformance", "play"]
