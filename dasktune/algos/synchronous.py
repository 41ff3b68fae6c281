"""Synchronous promotion: a rung is decided when every trial in it has reported or failed."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from dasktune.algos.sampled import SampledTuner
from dasktune.types import Decision, Extend, Finish, Report, Step

Schedule = tuple[tuple[Step, int], ...]
"""Of one bracket: the step of each rung, and the number of trials trained to it."""


@dataclass(slots=True)
class RunningBracket:
    """A bracket that has begun.

    Parameters
    ----------
    schedule
        Its rungs.
    filled
        The number of trials that have begun in it.
    level
        The rung under way; the number of rungs at the end.
    running
        Trials on their way to that rung.
    losses
        By trial that has arrived there, if it can be promoted.
    """

    schedule: Schedule
    filled: int = 0
    level: int = 0
    running: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """The number of trials that are still to begin in it."""
        return self.schedule[0][1] - self.filled

    @property
    def has_ended(self) -> bool:
        """Whether all its rungs are decided."""
        return self.level == len(self.schedule)

    def enter(self, trial: int) -> Extend:
        """Add a new trial, and return how far it is trained."""
        self.filled += 1
        self.running.add(trial)
        return Extend(trial=trial, until=self.schedule[0][0])

    def promote(self) -> list[Decision]:
        """Return the promotions once the rung is complete, best first; of equals the elder."""
        if self.running or self.room or self.has_ended:
            return []
        ranked = sorted((loss, trial) for trial, loss in self.losses.items())
        self.losses.clear()
        self.level += 1
        if self.has_ended or not ranked:
            self.level = len(self.schedule)
            return []
        step, width = self.schedule[self.level]
        best = [trial for _, trial in ranked[:width]]
        self.running.update(best)
        return [Extend(trial=trial, until=step, priority=self.level) for trial in best]


class SynchronousTuner(SampledTuner):
    """Runs brackets one after the other, and decides each rung of a bracket at once.

    A bracket begins when the brackets before it leave workers without work. A trial that
    fails, or whose loss is infinite, is not promoted. Equal losses rank by the number of the
    trial, so that the order of arrival does not decide which are trained. A kind implements
    `schedule`.
    """

    state: ClassVar[tuple[str, ...]] = ("_brackets",)
    _brackets: list[RunningBracket]

    @abstractmethod
    def schedule(self, index: int, left: int) -> Schedule:
        """Return the rungs of the next bracket.

        Parameters
        ----------
        index
            Its number, from 0.
        left
            The number of trials that are left for it and all later brackets.
        """

    def begin(self) -> None:
        """Begin without a bracket."""
        self._brackets = []

    def derive(self) -> None:
        """Set the bracket of each trial: trials begin in the order of their numbers."""
        self._homes = [
            number for number, bracket in enumerate(self._brackets) for _ in range(bracket.filled)
        ]

    def ask(self, capacity: int) -> list[Decision]:
        """Return new brackets until `capacity` trials have begun in them.

        If a sampler learns, only as many trials begin as there are workers. If not, all
        trials are registered the first time, and a bracket begins as a whole.
        """
        learns = self.source.learns
        registers: list[Decision] = [] if learns else [self.draw() for _ in range(self.left)]
        extends: list[Decision] = []
        wanted = capacity if learns or self._brackets else max(capacity, 1)
        while wanted > 0 and len(self._homes) < self.trials:
            bracket = self._filling()
            count = min(bracket.room, wanted) if learns else bracket.room
            registers += [self.draw() for _ in range(count)] if learns else []
            extends += [self._enter(bracket) for _ in range(count)]
            wanted -= count
        return [*registers, *extends]

    def on_report(self, report: Report) -> list[Decision]:
        """Return the promotions if this report completes a rung."""
        bracket = self._bracket_of(report.trial)
        if bracket is None or report.trial not in bracket.running:
            return []
        if report.step < bracket.schedule[bracket.level][0]:
            return []
        bracket.running.remove(report.trial)
        if report.loss < math.inf:
            bracket.losses[report.trial] = report.loss
        return self._after(bracket)

    def on_failure(self, trial: int) -> list[Decision]:
        """Return the promotions of other trials if this failure completes a rung."""
        bracket = self._bracket_of(trial)
        if bracket is None:
            return []
        bracket.losses.pop(trial, None)
        if trial not in bracket.running:
            return []
        bracket.running.remove(trial)
        return self._after(bracket)

    def _filling(self) -> RunningBracket:
        """Return the bracket in which the next trial begins."""
        if not self._brackets or not self._brackets[-1].room:
            left = self.trials - len(self._homes)
            self._brackets.append(RunningBracket(self.schedule(len(self._brackets), left)))
        return self._brackets[-1]

    def _enter(self, bracket: RunningBracket) -> Extend:
        trial = len(self._homes)
        self._homes.append(len(self._brackets) - 1)
        return bracket.enter(trial)

    def _bracket_of(self, trial: int) -> RunningBracket | None:
        return self._brackets[self._homes[trial]] if trial < len(self._homes) else None

    def _after(self, bracket: RunningBracket) -> list[Decision]:
        """Return the decisions after a trial has left the ones on their way to a rung."""
        promoted = bracket.promote()
        if promoted or len(self._homes) < self.trials:
            return promoted
        return [Finish()] if all(each.has_ended for each in self._brackets) else []
