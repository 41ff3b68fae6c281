"""Auto: what a budget is spent on."""

from __future__ import annotations

from typing import Any

import pytest

import dasktune as dt
from dasktune.algos.auto import Auto
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Extend, Now, Register, Report, Step

SPACE = Space(lr=Float(0.01, 1.0, log=True))


def tell(tuner: Auto, trial: int, step: Step, loss: float, seconds: float = 1.0) -> list[Any]:
    now = Now(seconds=1.0, step_seconds=seconds, workers=2, between=())
    return tuner.tell(Report(trial=trial, step=step, metrics={}, losses=(loss,), now=now))


def begun(capacity: int, budget: Step | str = 1000, **changes: Any) -> Auto:
    tuner = Auto(SPACE, budget=budget, **changes)
    tuner.prepare({"directions": ["minimize"]})
    tuner.ask(capacity)
    return tuner


@pytest.mark.parametrize("budget", [1, 7, 100, 1000, 30_000])
def test_auto_uses_its_budget_up_and_no_more(budget: Step) -> None:
    tuner = Auto(SPACE, budget=budget)
    ran = dt.simulate(tuner, lambda values, step: values["lr"] / step, workers=4)
    asked = sum(trial.steps for trial in ran.trials)
    assert asked <= budget
    assert asked >= 0.75 * budget
    assert max(trial.steps for trial in ran.trials) > budget / 8
    assert {trial.steps for trial in ran.trials} <= set(tuner.steps)


def test_auto_promotes_the_best_quarter_of_a_rung() -> None:
    tuner = begun(capacity=5)
    promoted = [tell(tuner, trial, 1, loss) for trial, loss in enumerate((0.4, 0.1, 0.3, 0.2))]
    assert promoted == [[], [], [], [Extend(trial=1, until=4, priority=1)]]
    tuner.tell_failure(1)
    assert tell(tuner, 4, 1, 0.5) == []


def test_auto_trains_a_grid_deeper_when_it_is_exhausted() -> None:
    space = Space(lr=[0.1, 0.2, 0.3])
    tuner = Auto(space, budget=1000, max_steps=50, sampler="grid")
    ran = dt.simulate(tuner, lambda values, step: values["lr"] / step, workers=2)
    assert [trial.steps for trial in ran.trials] == [50, 50, 50]


def test_auto_begins_higher_where_steps_are_small() -> None:
    assert begun(1, 10_000).first == 2, "16 of 10,000"
    tuner = begun(1, "1 worker-hours", max_steps=100)
    assert tuner.first == 0, "nobody knows how long a step takes"
    tell(tuner, 0, 1, 0.5, seconds=0.5)
    assert tuner.first == 2, "8 s of 3,600 s"
    (_, extend) = tuner.ask(1)
    assert extend == Extend(trial=1, until=16, priority=-1)


def test_auto_begins_a_small_grid_where_halving_it_is_affordable() -> None:
    space = Space(lr=[0.01 * place for place in range(1, 81)])
    tuner = Auto(space, budget=4000, max_steps=200, sampler="grid")
    assert tuner.steps[tuner.first] == 16, "80 trials, 16 steps, 3 rungs: 3,840 of 4,000"
    assert Auto(space, budget=3800, max_steps=200, sampler="grid").first == 1


def test_auto_by_time_needs_no_last_step() -> None:
    tuner = Auto(SPACE, budget="100 worker-seconds")
    ran = dt.simulate(tuner, lambda values, step: values["lr"] / step, seconds_per_step=0.25)
    assert 75 <= ran.seconds <= 101, "the first steps begin before any was measured"
    assert max(trial.steps for trial in ran.trials) == 64, "the last below 25 s"


def test_auto_restored_decides_as_if_it_had_never_stopped() -> None:
    tuner, restored = begun(capacity=9), Auto(SPACE, budget=1000)
    for trial in range(4):
        tell(tuner, trial, 1, 1.0 / (trial + 1))
    restored.restore(tuner.snapshot())
    assert restored.snapshot() == tuner.snapshot()
    for trial in range(4, 9):
        assert tell(restored, trial, 1, 0.1) == tell(tuner, trial, 1, 0.1)
    decisions = tuner.ask(2)
    assert restored.ask(2) == decisions
    assert sum(isinstance(each, Register) for each in decisions) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"budget": 0}, "budget must be >= 1, got 0"),
        ({"budget": "3 hours"}, "(worker-seconds, worker-minutes, worker-hours), got '3 hours'"),
        ({"budget": True}, "budget must be"),
        ({"budget": 9, "eta": 1}, "eta must be >= 2, got 1"),
    ],
)
def test_auto_refuses_what_is_no_budget(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Auto(SPACE, **arguments)
    assert text in str(caught.value)
