"""Conformance suites for tuners and predictors that users write."""

from dasktune.testing.calls import ConformanceError
from dasktune.testing.play import Game, play
from dasktune.testing.predictors import PredictorConformance
from dasktune.testing.tuners import TunerConformance

__all__ = ["ConformanceError", "Game", "PredictorConformance", "TunerConformance", "play"]
