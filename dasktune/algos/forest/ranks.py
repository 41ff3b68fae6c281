"""Ranks: from the heuristics of all models to the probabilities of drawing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dasktune._words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeight:
    """How often a model is drawn, and why.

    Parameters
    ----------
    name
        The options of the model.
    weight
        Its probability to be drawn next.
    complexity
        The size of its search space; see `dasktune.algos.forest.complexity`.
    priority
        How much its losses vary; see `dasktune.algos.forest.priority`. None before it is known.
    trials
        The number of its trials so far.
    rank
        Its mean rank in the heuristics, from 0 for the lowest possible to 1; None without any.
    """

    name: str
    weight: float
    complexity: float
    priority: float | None
    trials: int
    rank: float | None = None

    def __str__(self) -> str:
        priority = "unknown" if self.priority is None else f"{self.priority:.4g}"
        rank = "" if self.rank is None else f"rank {self.rank:.2f}, "
        return (
            f"{self.name}: weight {self.weight:.3f}, {rank}complexity {self.complexity:.4g}, "
            f"priority {priority}, {counted(self.trials, 'trial')}"
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ModelWeight:
        """Return the weight of a document, which has the fields by name.

        Raises
        ------
        LookupError, TypeError, ValueError
            If the document is malformed.
        """
        priority, rank = document["priority"], document["rank"]
        return cls(
            name=str(document["name"]),
            weight=float(document["weight"]),
            complexity=float(document["complexity"]),
            priority=None if priority is None else float(priority),
            trials=int(document["trials"]),
            rank=None if rank is None else float(rank),
        )


def lines_of(models: Sequence[ModelWeight], most: int = 10) -> list[str]:
    """Return one line for each model, the largest weight first, and how many are left out."""
    ordered = sorted(models, key=lambda model: -model.weight)
    more = len(ordered) - most
    return [*map(str, ordered[:most]), *([f"and {more:,} models more"] if more > 0 else [])]


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value: 1 for the least; equal values share their mean rank.

    Examples
    --------
    >>> ranks([0.5, 2.0, 0.5])
    [1.5, 3.0, 1.5]
    """
    array = np.asarray(values, float)
    below = (array[:, None] > array).sum(axis=1)
    equal = (array[:, None] == array).sum(axis=1)
    return [float(rank) for rank in below + (equal + 1) / 2]


def mean_ranks(models: int, *heuristics: Sequence[float]) -> list[float]:
    """Return the mean rank of each model in all heuristics, from 0 for the least to 1.

    Examples
    --------
    >>> mean_ranks(3, [7.0, 8.0, 9.0], [0.1, 0.3, 0.2])
    [0.0, 0.75, 0.75]
    """
    means = np.mean([ranks(values) for values in heuristics], axis=0)
    return [float(mean - 1) / max(1, models - 1) for mean in means]


def weights(models: int, *heuristics: Sequence[float]) -> list[float]:
    """Return the probability of each model, by its mean rank in all heuristics.

    All heuristics count the same, as in the paper [1]. It leaves open how ranks become
    weights; here a weight is proportional to the mean rank. So no model is ever left out, and
    of n models the first is drawn at most 2n / (n + 1) times as often as on average.

    Parameters
    ----------
    models
        The number of models.
    heuristics
        Each with one value for each model; models with higher values are drawn more often.
        Without any, all weights are equal.

    References
    ----------
    [1] Kinnison et al., "SHADHO: Massively Scalable Hardware-Aware Distributed Hyperparameter
    Optimization", section 4.3.

    Examples
    --------
    >>> weights(3, [7.0, 8.0, 9.0], [0.1, 0.3, 0.2])
    [0.16666666666666666, 0.4166666666666667, 0.4166666666666667]
    """
    if not heuristics:
        return [1 / models] * models
    means = np.mean([ranks(values) for values in heuristics], axis=0)
    return [float(weight) for weight in means / means.sum()]
