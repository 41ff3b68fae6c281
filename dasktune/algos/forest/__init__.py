"""The forest of models: a space with choices between models, split into one tree for each."""

from dasktune.algos.forest.complexity import complexity_of, domain_complexity
from dasktune.algos.forest.models import Model, ModelSpace, Splitting, models_of
from dasktune.algos.forest.source import Forest, ForestSource, ModelWeight

__all__ = [
    "Forest",
    "ForestSource",
    "Model",
    "ModelSpace",
    "ModelWeight",
    "Splitting",
    "complexity_of",
    "domain_complexity",
    "models_of",
]
