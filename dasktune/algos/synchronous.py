"""Synchronous promotion: a rung is decided when everyone in it has reported or failed."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dasktune.algos.sampled import SampledTuner
from dasktune.errors import ConfigurationError
from dasktune.types import Decision, Extend, Finish, Register, Report, Step

Schedule = tuple[tuple[Step, int], ...]
"""Of one bracket: at each rung the step, and how many trials are trained to it."""


@dataclass(slots=True)
class Heat:
    """A bracket at work.

    Parameters
    ----------
    schedule
        Its rungs.
    filled
        How many trials have begun in it.
    level
        The rung that is under way; the number of rungs when all is done.
    running
        Trials on their way to it.
    losses
        Of those that have arrived, as far as they can be promoted.
    """

    schedule: Schedule
    filled: int = 0
    level: int = 0
    running: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many trials are still to begin in it."""
        return self.schedule[0][1] - self.filled

    @property
    def done(self) -> bool:
        """Whether nothing is left to be trained."""
        return self.level == len(self.schedule)

    def enter(self, trial: int) -> Extend:
        """Let a new trial begin, and return how far it is trained."""
        self.filled += 1
        self.running.add(trial)
        return Extend(trial=trial, until=self.schedule[0][0])

    def promote(self) -> list[Decision]:
        """Return who goes on, best first, once the rung is complete; of equals the elder."""
        if self.running or self.room or self.done:
            return []
        ranked = sorted((loss, trial) for trial, loss in self.losses.items())
        self.losses.clear()
        self.level += 1
        if self.done or not ranked:
            self.level = len(self.schedule)
            return []
        step, width = self.schedule[self.level]
        best = [trial for _, trial in ranked[:width]]
        self.running.update(best)
        return [Extend(trial=trial, until=step, priority=self.level) for trial in best]

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "schedule": [list(rung) for rung in self.schedule],
            "filled": self.filled,
            "level": self.level,
            "running": sorted(self.running),
            "losses": [list(pair) for pair in self.losses.items()],
        }

    @classmethod
    def from_json(cls, found: Any) -> Heat:
        """Return the bracket that was written so."""
        match found:
            case {
                "schedule": [_, *_] as schedule,
                "filled": int(filled),
                "level": int(level),
                "running": [*running],
                "losses": [*losses],
            }:
                return cls(
                    schedule=tuple((step, width) for step, width in schedule),
                    filled=filled,
                    level=level,
                    running=set(running),
                    losses=dict(losses),
                )
        raise ConfigurationError(f"not a bracket: {found!r}")


class SynchronousTuner(SampledTuner):
    """Runs brackets one after the other, each rung of a bracket at once.

    A bracket begins when there are workers that those before it have no work for. Whoever
    fails, or whose loss is infinite, is not promoted; equal losses rank by the number of
    the trial, so that what is trained does not depend on who arrives first. A kind says
    with `schedule` what its brackets are.
    """

    @abstractmethod
    def schedule(self, index: int, left: int) -> Schedule:
        """Return the rungs of the next bracket.

        Parameters
        ----------
        index
            Its number, from 0.
        left
            How many trials are left for it and all that come later.
        """

    def begin(self) -> None:
        """No bracket has begun."""
        self._take_heats(())

    def ask(self, capacity: int) -> list[Decision]:
        """Return new brackets until `capacity` trials have begun in them.

        Unless a sampler learns, all trials are registered the first time, and a bracket
        begins as a whole; if it does, only as many begin as there are workers.
        """
        learns = self.source.learns
        registers: list[Register] = [] if learns else [self.draw() for _ in range(self.left)]
        extends: list[Extend] = []
        wanted = capacity if learns or self._heats else max(capacity, 1)
        while wanted > 0 and len(self._homes) < self.trials:
            heat = self._filling()
            count = min(heat.room, wanted) if learns else heat.room
            registers += [self.draw() for _ in range(count)] if learns else []
            extends += [self._enter(heat) for _ in range(count)]
            wanted -= count
        return [*registers, *extends]

    def told(self, report: Report) -> list[Decision]:
        """Return the promotions if this completes a rung."""
        heat = self._heat_of(report.trial)
        if heat is None or report.trial not in heat.running:
            return []
        if report.step < heat.schedule[heat.level][0]:
            return []
        heat.running.remove(report.trial)
        if report.loss < math.inf:
            heat.losses[report.trial] = report.loss
        return self._after(heat)

    def failed(self, trial: int) -> list[Decision]:
        """Return the promotions if this completes a rung; it has no part in them."""
        heat = self._heat_of(trial)
        if heat is None:
            return []
        heat.losses.pop(trial, None)
        if trial not in heat.running:
            return []
        heat.running.remove(trial)
        return self._after(heat)

    def state_json(self) -> dict[str, object]:
        """Return the brackets that have begun."""
        return {"brackets": [heat.to_json() for heat in self._heats]}

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over such a state."""
        found: Any = state
        match found:
            case {"brackets": [*heats]}:
                self._take_heats(Heat.from_json(heat) for heat in heats)
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")

    def _take_heats(self, heats: Iterable[Heat]) -> None:
        self._heats = list(heats)
        # Trials begin in the order of their numbers, and so the brackets are told by them.
        self._homes = [at for at, heat in enumerate(self._heats) for _ in range(heat.filled)]

    def _filling(self) -> Heat:
        """Return the bracket that the next trial begins in."""
        if not self._heats or not self._heats[-1].room:
            left = self.trials - len(self._homes)
            self._heats.append(Heat(schedule=self.schedule(len(self._heats), left)))
        return self._heats[-1]

    def _enter(self, heat: Heat) -> Extend:
        trial = len(self._homes)
        self._homes.append(len(self._heats) - 1)
        return heat.enter(trial)

    def _heat_of(self, trial: int) -> Heat | None:
        return self._heats[self._homes[trial]] if trial < len(self._homes) else None

    def _after(self, heat: Heat) -> list[Decision]:
        """Return what follows when one trial less is on the way to the rung."""
        promoted = heat.promote()
        if promoted or len(self._homes) < self.trials or not all(one.done for one in self._heats):
            return promoted
        return [Finish()]
