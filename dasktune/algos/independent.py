"""What tuners have in common whose trials are all asked for in full, and end each for itself."""

from __future__ import annotations

from abc import abstractmethod

from dasktune.algos.sampled import SampledTuner
from dasktune.types import Decision, Extend, Finish, Register


class IndependentTrials(SampledTuner):
    """Asks once for each trial, and ends with the last of them.

    A kind says how far with `request`, and calls `failed` for a trial that has ended.
    """

    @abstractmethod
    def request(self, trial: Register) -> Extend:
        """Return how far a new trial is trained, and where it reports."""

    def begin(self) -> None:
        """Nothing is open yet."""
        self.open: set[int] = set()

    def ask(self, capacity: int) -> list[Decision]:
        """Return all trials the first time, or one for each free worker if a sampler learns."""
        count = min(self.left, capacity) if self.source.learns else self.left
        drawn = [self.draw() for _ in range(count)]
        self.open.update(one.trial for one in drawn)
        return [*drawn, *map(self.request, drawn)]

    def failed(self, trial: int) -> list[Decision]:
        """Return `Finish` when all the others have ended."""
        if trial not in self.open:
            return []
        self.open.remove(trial)
        return [] if self.open or self.left else [Finish()]

    def grow(self, trials: int) -> list[Decision]:
        """Draw the further trials, unless a sampler waits for free workers."""
        return self.ask(0)
