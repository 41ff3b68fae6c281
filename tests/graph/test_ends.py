"""The ends of attempts are known without looking at each of them again."""

from __future__ import annotations

import math

from dasktune.graph.attempts import Attempt
from dasktune.graph.ends import Ends
from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan

NODE = SearchPlan(root_key("ends", 0)).register(0, {}, 10)


class Clock:
    """Says when attempts are due, and counts how often it is asked."""

    def __init__(self, **dues: float) -> None:
        self.dues = dues
        self.asked = 0
        self.ends = Ends(self.due_at)
        self.attempts = {name: attempt(name) for name in dues}
        for each in self.attempts.values():
            self.ends.watch(each, 0.0)
        self.asked = 0

    def due_at(self, attempt: Attempt, now: float) -> float:
        self.asked += 1
        return self.dues[attempt.id]


def attempt(name: str) -> Attempt:
    """Return an attempt of a name."""
    return Attempt(
        id=name,
        node=NODE,
        leaf=NODE,
        start=0,
        stop=10,
        worker=name,
        after=None,
        launched=0.0,
        position=0,
    )


def names(clock: Clock, now: float) -> list[str]:
    """Return the attempts that are due."""
    return [each.id for each in clock.ends.take_due(now)]


def test_ends_of_many_attempts_ask_for_the_first_alone() -> None:
    clock = Clock(**{f"a{at}": float(at) for at in range(1, 501)})
    assert clock.ends.first_due(0.0) == 1.0
    assert clock.asked == 1
    assert names(clock, 2.5) == ["a1", "a2"]
    assert clock.asked <= 5


def test_ends_of_an_attempt_that_takes_longer_move() -> None:
    clock = Clock(a=1.0, b=2.0)
    clock.dues["a"] = 3.0
    assert clock.ends.first_due(1.0) == 2.0
    assert names(clock, 3.0) == ["b", "a"]


def test_ends_of_an_attempt_that_ends_earlier_move_if_told() -> None:
    clock = Clock(a=1.0, b=2.0)
    clock.dues["b"] = 0.5
    clock.ends.watch(clock.attempts["b"], 0.0)
    assert clock.ends.first_due(0.0) == 0.5
    assert names(clock, 5.0) == ["b", "a"], "each once"
    assert clock.ends.first_due(5.0) is None


def test_ends_of_an_attempt_that_is_never_due_are_forgotten() -> None:
    clock = Clock(a=1.0, b=2.0)
    clock.dues["a"] = math.inf
    assert clock.ends.first_due(0.0) == 2.0
    clock.dues["a"] = 1.5
    clock.ends.watch(clock.attempts["a"], 0.0)
    assert names(clock, 2.0) == ["a", "b"]


def test_ends_of_an_attempt_that_speeds_up_do_not_pile_up() -> None:
    clock = Clock(a=1e6, b=2e6)
    for message in range(10_000):
        clock.dues["a"] = 1e6 - message
        clock.ends.watch(clock.attempts["a"], 0.0)
    assert len(clock.ends._heap) < 100
    assert clock.ends.first_due(0.0) == 1e6 - 9_999
    assert names(clock, 3e6) == ["a", "b"]
