"""Training functions that pause at several places, or within loops that begin anew."""

import math
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

from dasktune.errors import ResumeError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import TrainerRun, run_alone

STEPS = 12
VALUES = {"lr": 0.1}
SCALES = [0.1, 0.7, 0.4, 0.9]


def started(function, steps):
    run = TrainerRun.start(trainer_of(function), VALUES, config={}, seed=3)
    for _ in range(steps):
        run.advance(VALUES)
    return run


def resumed(function, step, state):
    return TrainerRun.resume(
        trainer_of(function),
        step=step,
        first_values=VALUES,
        last_values=VALUES,
        state=state,
        config={},
        seed=3,
    )


def refusals_of(function):
    """Return the messages of the refused resumes by step; each other one must be exact."""
    alone, refusals = run_alone(function, VALUES, STEPS, seed=3).metrics, {}
    for split in range(1, STEPS):
        snapshot = encode(started(function, split).state())
        try:
            run = resumed(function, split, decode(snapshot.document, snapshot.data))
        except ResumeError as error:
            refusals[split] = str(error)
            continue
        for _ in range(split, STEPS):
            run.advance(VALUES)
            assert run.evaluate() == alone[run.step], split
    assert len(alone) == STEPS
    return refusals


def two_phases(run):
    steps, weight = iter(run.steps()), 1.0
    for step in steps:
        weight -= run["lr"] * (weight - step)
        run.report(loss=weight)
        if step == 3:
            break
    for step in steps:
        weight = weight * 0.9 - step
        run.report(loss=weight)


def two_calls(run):
    steps, weight = iter(run.steps()), [1.0]
    a_phase(run, steps, weight, 1.0)
    a_phase(run, steps, weight, 0.2)
    a_phase(run, steps, weight, 0.4)
    a_phase(run, steps, weight, 0.8)


def a_phase(run, steps, weight, scale):
    turns = 0
    for _ in steps:
        weight[0] = weight[0] * 0.5 + scale
        run.report(loss=weight[0])
        turns += 1  # noqa: SIM113
        if turns == 4:
            return


def by_next(run):
    steps, turns, weight = run.steps(), 0, 1.0
    while turns < 4:
        next(steps)
        turns += 1
        weight += turns
        run.report(loss=weight)
    while True:
        next(steps)
        weight *= 0.5
        run.report(loss=weight)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            two_phases,
            "the training goes on in the loop at line 64, and the function begins again in the "
            "loop at line 59: its variables come from the state, but not its place. Write one loop "
            "over run.steps(), and choose by run.step in each step what it does",
        ),
        (two_calls, "goes on at `a_phase(run, steps, weight, 0.2)` at line 72, and the function"),
        (by_next, "goes on at `next(steps)` at line 95, and the function begins again at `next("),
    ],
)
def test_a_function_that_begins_at_another_place_is_refused(function, words):
    refusals = refusals_of(function)
    assert [*refusals] == [*range(4, STEPS)]
    assert words in refusals[5]
    assert refusals[5].startswith("test_positions.py:")


def phases_of_a_list(run):
    steps, weight = iter(run.steps()), 1.0
    for scale in SCALES:
        turns = 0
        for _ in steps:
            turns += 1  # noqa: SIM113
            weight -= run["lr"] * (weight - scale * turns)
            run.report(loss=weight)
            if turns == 4:
                break


def doubles_of_a_list(run):
    steps, weight = iter(run.steps()), 1.0
    for scale in (0.1, 0.7, 0.1, 0.9):
        for step in steps:
            weight -= run["lr"] * (weight - scale * step)
            run.report(loss=weight)
            if step % 4 == 3:
                break


def counted_epochs(run):
    steps, weight = iter(run.steps()), 1.0
    for _ in range(run.step // 4, 25):
        for step in steps:
            weight -= run["lr"] * (weight - step)
            run.report(loss=weight)
            if step % 4 == 3:
                break


def phases_of_dicts(run):
    steps, weight = iter(run.steps()), 1.0
    phases = [{"scale": 0.1, "at": np.zeros(2)}, {"scale": 0.1, "at": np.ones(2)}, {}, {"at": 1}]
    for phase in phases:
        phase["turns"] = 0
        for _ in steps:
            phase["turns"] += 1
            weight = weight * phase.get("scale", 0.5) + float(np.sum(phase.get("at", 2)))
            run.report(loss=weight)
            if phase["turns"] == 4:
                break


def phases_of_tuples(run):
    steps, weight = iter(run.steps()), 1.0
    for scale, turns in ((0.1, 4), (0.7, 4), (0.1, 8)):
        for step in steps:
            weight = weight * scale + turns
            run.report(loss=weight)
            if step % 4 == turns - 1:
                break


def a_call_in_a_list(run):
    steps, weight = iter(run.steps()), [1.0]
    for scale in SCALES:
        a_phase(run, steps, weight, scale)


def through_a_generator(run):
    weight = 1.0
    for scale in by_scales(run.steps()):
        weight = weight * 0.5 + scale
        run.report(loss=weight)


def by_scales(steps):
    for scale in SCALES:
        for step in steps:
            yield scale
            if step % 4 == 3:
                break


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            phases_of_a_list,
            "the loop `for scale in SCALES` around the steps begins anew where a training goes on "
            "(it is at 0.1, and was at 0.7), and no state can hold its turn: loop over run.steps() "
            "alone, and choose by run.step in each step what it does; or write the loop as a while "
            "loop over a variable",
        ),
        (counted_epochs, "the loop `for _ in range(run.step // 4, 25)` around the steps begins"),
        (a_call_in_a_list, "the loop `for scale in SCALES` around the steps begins anew"),
        (through_a_generator, "the loop `for scale in SCALES` around the steps begins anew"),
        (phases_of_tuples, "(it is at (0.1, 4), and was at (0.7, 4))"),
        (phases_of_dicts, "around the steps begins anew where a training goes on (it is at {"),
    ],
)
def test_a_loop_around_the_steps_that_begins_anew_is_refused(function, words):
    refusals = refusals_of(function)
    assert [*refusals] == [*range(4, STEPS)]
    assert words in refusals[5]


def test_equal_values_of_a_loop_around_do_not_tell_its_turn():
    refusals = refusals_of(doubles_of_a_list)
    assert [*refusals] == [*range(1, STEPS)]
    assert "begins anew where a training goes on, and no state can hold its turn" in refusals[9]


def a_name_for_both(run):
    steps, weight = iter(run.steps()), 1.0
    for _ in range(5):
        turns = 0
        for _ in steps:
            turns += 1  # noqa: SIM113
            weight += turns
            run.report(loss=weight)
            if turns == 4:
                break


def test_a_loop_whose_variable_the_steps_set_is_refused():
    assert [*refusals_of(a_name_for_both)] == [*range(1, STEPS)]


def while_around(run):
    steps, weight, epoch = iter(run.steps()), 1.0, 0
    while epoch < 25:
        turns = 0
        for _ in steps:
            turns += 1  # noqa: SIM113
            weight -= run["lr"] * (weight - epoch * turns)
            run.report(loss=weight)
            if turns == 4:
                break
        epoch += 1


def batches_around(run):
    loader = run.loader(torch.arange(20.0), batch_size=4)
    steps, weight = iter(run.steps()), 1.0
    while True:
        for batch in loader:
            for _ in steps:
                weight = weight * 0.9 + float(batch.sum())
                run.report(loss=weight)
                break


def folds_that_never_go_on(run):
    model = run.track(nn.Linear(1, 1))
    for fold in (0, 0, 1):
        steps = run.steps()
        for step in steps:
            for batch in range(3):
                if batch == 2:
                    break
            with torch.no_grad():
                model.weight += fold + math.sin(step)
            run.report(loss=model.weight.sum())


def attempts(run):
    steps, weight = iter(run.steps()), 1.0
    for attempt in range(3):
        try:
            for step in steps:
                weight += step + attempt
                run.report(loss=weight)
        except MemoryError:
            continue


def turns_of_a_while(run):
    steps, weight = iter(run.steps()), 1.0
    while True:
        for scale in count():
            for _ in steps:
                weight = weight * 0.5 + scale
                run.report(loss=weight)
                break
            break


def in_a_function(run):
    for _ in range(2):
        fit(run)


def fit(run):
    weight = 1.0
    for step in run.steps():
        weight = weight * 0.5 + step
        run.report(loss=weight)


@pytest.mark.parametrize(
    "function",
    [
        while_around,
        batches_around,
        folds_that_never_go_on,
        attempts,
        turns_of_a_while,
        in_a_function,
    ],
)
def test_a_function_that_begins_at_its_place_is_not_refused(function):
    assert refusals_of(function) == {}


def test_a_state_without_a_position_is_loaded():
    state = started(two_phases, 5).state()
    assert state.pop("position") == [{"call": "two_phases", "at": "For 0"}]
    resumed(two_phases, 5, state).advance(VALUES)


def test_a_function_with_one_place_has_no_position():
    assert "position" not in started(fit, 2).state()
    assert "position" not in started(in_a_function, 2).state()
    assert "position" not in started(while_around, 2).state()


def test_a_state_of_another_function_is_refused():
    state = {**started(fit, 2).state(), "position": [{"call": "other", "at": "For 0"}]}
    with pytest.raises(ResumeError, match="the training goes on elsewhere: in other"):
        resumed(fit, 2, state)


def test_without_its_source_a_call_has_a_place():
    names = {"__name__": __name__}
    text = """
def two_loops(run, steps):
    for step in steps:
        run.report(loss=step)
        if step == 3:
            break
    for step in steps:
        run.report(loss=-step)
"""
    exec(text, names)

    def function(run):
        names["two_loops"](run, iter(run.steps()))

    resumed(function, 2, started(function, 2).state())
    state = started(function, 5).state()
    with pytest.raises(ResumeError, match="elsewhere: in two_loops, and the function begins again"):
        resumed(function, 5, state)
    inner, outer = state["position"]
    assert inner["at"].partition(" of ")[1]
    state["position"] = [{**inner, "at": "2 of other"}, outer]
    resumed(function, 5, state)
