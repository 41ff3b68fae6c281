"""Sources of trials whose configurations, or whose losses, are known beforehand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.algos.sources import Source
from dasktune.sequences import Constant
from dasktune.space import Configuration, Space

LOSS = "loss"
"""The hyper-parameter that says what a trial's loss is at every step."""

SPACE = Space({LOSS: 0.0})
"""The space of trials that are known by their losses."""


class Given(Source):
    """Gives configurations in order, each once.

    Parameters
    ----------
    configurations
        Which.
    """

    logged = False

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        self._configurations = tuple(configurations)
        self.most = len(self._configurations)

    def propose(self, trial: int) -> Proposal:
        """Return nothing: the number of the trial says it all."""
        return {}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of that number."""
        return self._configurations[trial]

    def known(self, trials: int) -> tuple[Configuration, ...]:
        """Return the first `trials` configurations."""
        return self._configurations[:trials]

    def identity(self) -> object:
        """Return what it is."""
        return "given"

    def snapshot(self) -> object:
        """Return None: it has no state."""
        return None

    def restore(self, snapshot: object) -> None:
        """Do nothing."""


def shuffled(space: Space, seed: int) -> Given:
    """Return every point of a grid in random order: the same for all tuners with this seed."""
    found = list(space.configurations())
    return Given(found[at] for at in np.random.default_rng(seed).permutation(len(found)))


def with_losses(losses: Iterable[float]) -> Given:
    """Return trials of `SPACE` that have these losses at every step."""
    return Given(
        Configuration(params={LOSS: loss}, sequences={LOSS: Constant(loss)}) for loss in losses
    )


def random_losses(trials: int, seed: int) -> list[float]:
    """Return losses that are all different, and say nothing of each other."""
    found: list[float] = np.random.default_rng(seed).random(trials).tolist()
    return found
