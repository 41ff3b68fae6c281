"""The model of user code: the states at which it raises, or kills its process."""

from __future__ import annotations

from tests.torture.scenario import Scenario
from tests.torture.ways import State


class Trainer:
    """The trainer of all studies of a scenario.

    Parameters
    ----------
    scenario
        Says what may go wrong.
    """

    def __init__(self, scenario: Scenario) -> None:
        faults = scenario.faults if scenario.most_faults else ()
        self._poison = 0.03 if "raise" in faults else 0.0
        self._deadly = 0.03 if "poison" in scenario.faults else 0.0
        self._may_be_chance = "break" not in scenario.faults
        self._fragile: set[State] = set()

    def always_raises(self, state: State) -> bool:
        """Whether it raises each time that it should get to a state."""
        return state % 1009 < self._poison * 1009

    def always_kills(self, state: State) -> bool:
        """Whether its process dies each time that it should get to a state."""
        return state % 1013 < self._deadly * 1013

    def always_fails(self, state: State) -> bool:
        """Whether no process gets to a state."""
        return self.always_raises(state) or self.always_kills(state)

    def raises(self, state: State) -> bool:
        """Whether it raises now: always at some states, at others the first time."""
        if self.always_raises(state):
            return True
        if not self._poison or state % 997 > 60 or state in self._fragile:
            return False
        if not self._may_be_chance:
            return False  # or it could have raised on all workers: on one by chance
        self._fragile.add(state)
        return True
