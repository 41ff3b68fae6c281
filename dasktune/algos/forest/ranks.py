"""Ranks: from the heuristics of all models to the probabilities of drawing them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
