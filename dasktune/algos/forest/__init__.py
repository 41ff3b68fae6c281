"""The forest of models: a space with choices between models, split into one tree for each."""

from dasktune.algos.forest.complexity import complexity_of, domain_complexity
from dasktune.algos.forest.models import Model, ModelSpace, Splitting, models_of

__all__ = [
    "Model",
    "ModelSpace",
    "Splitting",
    "complexity_of",
    "domain_complexity",
    "models_of",
]
