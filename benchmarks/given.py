"""Sources of trials whose configurations, or whose losses, are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dasktune.algos.samplers import GivenSource
from dasktune.sequences import Constant
from dasktune.space import Configuration, Space

LOSS = "loss"
"""The hyper-parameter that says what a trial's loss is at every step."""

SPACE = Space({LOSS: 0.0})
"""The space of trials that are known by their losses."""


def shuffled(space: Space, seed: int) -> GivenSource:
    """Return every point of a grid in random order: the same for all tuners with this seed."""
    configurations = list(space.configurations())
    order = np.random.default_rng(seed).permutation(len(configurations))
    return GivenSource((configurations[at] for at in order), "shuffled")


def with_losses(losses: Iterable[float]) -> GivenSource:
    """Return trials of `SPACE` that have these losses at every step."""
    configurations = (
        Configuration(params={LOSS: loss}, sequences={LOSS: Constant(loss)}) for loss in losses
    )
    return GivenSource(configurations, "losses")


def random_losses(trials: int, seed: int) -> list[float]:
    """Return losses that are all different, and say nothing of each other."""
    losses: list[float] = np.random.default_rng(seed).random(trials).tolist()
    return losses
