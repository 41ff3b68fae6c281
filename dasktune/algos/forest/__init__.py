"""The forest of models: a space with choices between models, split into one tree for each."""

from __future__ import annotations

from dasktune._lazy import import_on_use

_HOMES = {
    "Forest": "dasktune.algos.forest.source",
    "ForestSource": "dasktune.algos.forest.source",
    "Model": "dasktune.algos.forest.models",
    "ModelSpace": "dasktune.algos.forest.models",
    "ModelWeight": "dasktune.algos.forest.ranks",
    "Priority": "dasktune.algos.forest.priority",
    "PriorityQuestion": "dasktune.algos.forest.priority",
    "Splitting": "dasktune.algos.forest.models",
    "complexity_of": "dasktune.algos.forest.complexity",
    "domain_complexity": "dasktune.algos.forest.complexity",
    "models_of": "dasktune.algos.forest.models",
}
"""Public names and where they live. The protocol of tuners has priorities, and the source of a
forest is built on that protocol: so its module is imported when it is first used."""

__all__ = [*sorted(_HOMES)]

__getattr__ = import_on_use(__name__, _HOMES)
