"""The values of states: the chance that a trial needs them, and the time to train them."""

from __future__ import annotations

import pytest

from dasktune._driver.retention.value import (
    END,
    GOES_ON,
    INSIDE,
    StateValues,
    keyless_in,
    mark,
    places_of,
    winners,
)
from dasktune._engine.trials import TrialRecord
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import Started, WorkerJoined
from dasktune.graph.keys import root_key
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.view import RunView
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.storage.retention import Keep, State
from dasktune.types import Direction, Objective, Step, TrialState

LOSS = Objective.single("loss", "minimize")


def turn(at: Step, value: float = 1.0) -> Sequence:
    """Return a sequence that parts from `Constant(0.5)` at a step."""
    return Piecewise([0.5, value], boundaries=[at])


class Table:
    """A plan with trials and the states that are said to be stored."""

    def __init__(self) -> None:
        self.trials: dict[int, TrialRecord] = {}
        options = DispatchOptions(attempt_prefix="a", saves=SavePolicy(at_changes=False))
        self.dispatcher = Dispatcher(root_key("worth", 0), options)
        self.steps: dict[str, Step] = {}

    def trial(
        self,
        sequence: Sequence,
        state: TrialState = TrialState.PAUSED,
        *,
        steps: Step = 0,
        value: float | None = None,
    ) -> int:
        number = len(self.trials)
        self.trials[number] = TrialRecord(
            number=number,
            tuner=0,
            local=number,
            params={},
            sequences={"lr": sequence},
            max_steps=40,
            state=state,
            steps=steps,
            values=None if value is None else (value,),
        )
        self.dispatcher.register(number, {"lr": sequence}, 40)
        return number

    def store(self, trial: int, step: Step) -> str:
        key = self.dispatcher.plan.node_at(trial, step).key_at(step)
        self.steps[key] = step
        return key

    def states(self) -> dict[str, State]:
        places = mark(self.dispatcher.plan, self.steps)
        assert places.keys() == self.steps.keys()
        assert places_of(keyless_in(self.dispatcher.plan, ())).keys() == places.keys()
        values = StateValues(RunView(self.dispatcher), self.trials, LOSS)
        sizes = dict.fromkeys(self.steps, 100)
        return {one.key: one for one in values.states(sizes, places)}


def either(*chances: float) -> float:
    """Return the probability that one of several independent things happens."""
    missing = 1.0
    for one in chances:
        missing *= 1 - one
    return pytest.approx(1 - missing)  # type: ignore[no-any-return]


def test_a_state_costs_the_steps_from_the_nearest_one_before_it() -> None:
    table = Table()
    first = table.trial(Constant(0.5), TrialState.COMPLETE)
    table.trial(turn(20), TrialState.COMPLETE)
    keys = [table.store(first, step) for step in (10, 20, 35)]
    found = table.states()
    assert [found[key].seconds for key in keys] == [10, 10, 15]
    assert [found[key].above for key in keys] == [None, keys[0], keys[1]]


def test_ends_and_branch_points_have_a_higher_chance() -> None:
    table = Table()
    first = table.trial(Constant(0.5), TrialState.COMPLETE)
    table.trial(turn(20), TrialState.COMPLETE)
    inside, parting, end = (table.store(first, step) for step in (10, 20, 40))
    found = table.states()
    assert found[inside].chance == INSIDE
    assert found[parting].chance == found[end].chance == either(END)


def test_trials_that_were_never_asked_for_begin_where_they_part() -> None:
    table = Table()
    first = table.trial(Constant(0.5), TrialState.COMPLETE)
    second, third = table.trial(turn(20)), table.trial(turn(20, 2.0))
    parting = table.store(first, 20)
    assert table.states()[parting].chance == either(END, GOES_ON, GOES_ON)
    table.trials[second].state = TrialState.PRUNED
    assert table.states()[parting].chance == either(END, GOES_ON)
    table.trials[third].state = TrialState.FAIL
    assert table.states()[parting].chance == either(END)


def test_best_paused_trial_of_a_rung_has_the_highest_chance() -> None:
    table = Table()
    keys = []
    for number, value in enumerate((0.3, 0.1, 0.4, 0.2)):
        trial = table.trial(Constant(float(number)), steps=10, value=value)
        keys.append(table.store(trial, 10))
    found = table.states()
    by_value = [found[keys[at]].chance for at in (1, 3, 0, 2)]
    assert by_value == sorted(by_value, reverse=True)
    assert len(set(by_value)) == 4
    assert by_value[0] == either(INSIDE, GOES_ON)


def test_latest_state_of_a_running_trial_has_chance_1() -> None:
    table = Table()
    trial = table.trial(Constant(0.5), TrialState.RUNNING)
    early, late = table.store(trial, 10), table.store(trial, 30)
    found = table.states()
    assert found[early].chance == INSIDE
    assert found[late].chance == 1.0


def test_chance_is_1_for_requested_states_and_less_for_running() -> None:
    table = Table()
    first = table.trial(Constant(0.5), TrialState.RUNNING)
    second = table.trial(turn(20), TrialState.RUNNING)
    parting = table.store(first, 20)
    table.states()
    for trial in (first, second):
        table.dispatcher.extend(trial, 40, 0.0, 0.0)
    assert table.states()[parting].chance == 1.0
    for number, worker in enumerate(("v", "w")):
        table.dispatcher.handle(WorkerJoined(worker=worker), 0.0)
        table.dispatcher.handle(Started(attempt=f"{number}-a"), 0.0)
    assert table.states()[parting].chance == either(END)


def record(number: int, *values: float, state: TrialState = TrialState.COMPLETE) -> TrialRecord:
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={},
        sequences={},
        max_steps=1,
        state=state,
        steps=1,
        values=values or None,
    )


def test_winners_are_best_finite_values_without_failed_trials() -> None:
    nan, inf = float("nan"), float("inf")
    trials = [
        record(0, 0.5),
        record(1, nan),
        record(2, 0.1, state=TrialState.FAIL),
        record(3, 0.2, state=TrialState.PRUNED),
        record(4, inf),
        record(5),
        record(6, 0.2),
    ]
    best = [one.number for one in winners(trials, LOSS, Keep(best=2))]
    assert best == [3, 6]
    highest = Objective.single("loss", "maximize")
    assert [one.number for one in winners(trials, highest, Keep(best=1))] == [0]
    assert winners(trials, LOSS, Keep(best=0)) == []
    everyone = [one.number for one in winners(trials, LOSS, Keep(best=None))]
    assert everyone == [0, 1, 3, 4, 6]


def test_of_several_objectives_those_win_that_no_other_beats() -> None:
    both = Objective(metrics=("a", "b"), directions=(Direction.MINIMIZE, Direction.MAXIMIZE))
    trials = [record(0, 1.0, 1.0), record(1, 2.0, 0.5), record(2, 0.5, 0.5), record(3, 3.0, 9.0)]
    assert [one.number for one in winners(trials, both, Keep(best=2))] == [0, 2]
