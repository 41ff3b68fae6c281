"""The samplers of dasktune: they propose configurations for any tuner, beside those of Optuna."""

from dasktune.algos.branching import Branching
from dasktune.algos.forest import Forest

__all__ = ["Branching", "Forest"]
