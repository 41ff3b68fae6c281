"""What goes wrong on simulated workers: jobs that take longer, and jobs that are dropped."""

from __future__ import annotations

import math

import numpy as np


class Mishaps:
    """Draws, for one job after the other, how slow it is and when it is dropped.

    Two numbers are drawn for every job whatever the arguments are, so that the stragglers
    stay the same when only `drop` changes.

    Parameters
    ----------
    straggling
        Standard deviation of z: a job takes ``1 + |z|`` times what it is expected to take.
    drop
        Probability p that a job is dropped in any one second of the time it is expected to
        take: one of t seconds survives with probability ``(1 - p)**t``.
    seed
        Decides what is drawn.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", appendix A.1, whose
    "probability that it is not dropped" is that it is.
    """

    def __init__(self, *, straggling: float = 0.0, drop: float = 0.0, seed: int = 0) -> None:
        self.drop = drop
        self._straggling = straggling
        self._rng = np.random.default_rng(seed)

    def draw(self, seconds: float) -> tuple[float, float]:
        """Return by what to multiply a job's time, and after how long it is dropped.

        Parameters
        ----------
        seconds
            What the job is expected to take. The moment of the drop, infinite if there is
            none, is in the multiplied time.
        """
        factor = 1.0 + abs(self._straggling * float(self._rng.standard_normal()))
        survived = self._survived(1.0 - float(self._rng.random()))
        return factor, survived * factor if survived < seconds else math.inf

    def survival(self, seconds: float) -> float:
        """Return the probability that a job of so many seconds is not dropped.

        Examples
        --------
        >>> Mishaps(drop=0.5).survival(3.0)
        0.125
        """
        return float((1.0 - self.drop) ** seconds)

    def _survived(self, chance: float) -> float:
        """Return the seconds that a job survives with this chance, in (0, 1]."""
        return math.log(chance) / math.log1p(-self.drop) if self.drop else math.inf
