"""Variables of training functions that no state can hold."""

import itertools
import random
import time
from datetime import datetime
from queue import Queue

import numpy as np
import pytest
import torch
from torch import nn

from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.trainer.carried import refusals
from dasktune.trainer.function import trainer_of
from dasktune.trainer.lifecycle import TrainerRun

VALUES = {"lr": 0.1}


def state_after(function, steps):
    run = TrainerRun.start(trainer_of(function), VALUES, config={}, seed=0)
    for _ in range(steps):
        run.advance(VALUES)
    return run.state()


def refused(function, steps):
    """Return the message with which a function is refused after some steps, and its kind."""
    with pytest.raises((ConfigurationError, StateError, TrainerError)) as error:
        state_after(function, steps)
    return error.type, str(error.value)


def queue_made_anew(run):
    queue = Queue()
    for _ in run.steps():
        queue = Queue(maxsize=queue.maxsize + 1)
        run.report(loss=queue.maxsize)


def loss_function_that_changes(run):
    loss_of = nn.MSELoss()
    for step in run.steps():
        if step == 7:
            loss_of = nn.L1Loss()
        run.report(loss=loss_of(torch.zeros(1), torch.ones(1)))


def generator_made_anew(run):
    noise = np.random.default_rng(0)
    for step in run.steps():
        if step:
            noise = np.random.default_rng(noise.integers(100))
        run.report(loss=noise.random())


def model_that_is_not_tracked(run):
    model = nn.Linear(1, 1)
    for _ in run.steps():
        model = nn.Linear(1, 1) if model.bias is None else model
        run.report(loss=0)


def none_then_queue(run):
    queue = None
    for step in run.steps():
        if step == 3:
            queue = Queue()
        run.report(loss=queue is None)


def list_of_queues(run):
    queues = []
    for step in run.steps():
        if step == 2:
            queues.append(Queue())
        run.report(loss=len(queues))


def function_that_changes(run):
    weight = max
    for step in run.steps():
        if step == 2:
            weight = lambda *numbers: sum(numbers)  # noqa: E731
        run.report(loss=weight(step, 1))


def best_weights_without_copies(run):
    model, best = nn.Linear(1, 1), None
    run.track(model)
    for step in run.steps():
        if step == 0:
            best = model.state_dict()
        run.report(loss=len(best))


def rows_of_the_state(run):
    run.state["table"] = np.zeros((2, 2))
    row = np.zeros(2)
    for _ in run.steps():
        run.report(loss=row.sum())
        row = run.state["table"][0]


def windows_of_one_array(run):
    windows = []
    for step in run.steps():
        if not windows:
            table = np.arange(6.0) + step
            windows = [table[:4], table[2:]]
        windows[0] += 1
        run.report(loss=windows[1].sum())


def rows_beside_their_table(run):
    table, rows = np.zeros(6), []
    for step in run.steps():
        if not rows:
            table = np.arange(6.0) + step
            rows = np.split(table, 2)
        table += 1
        run.report(loss=rows[1].sum())


def rows_beside_their_tables_owner(run):
    class Table:
        def __init__(self):
            self.values = np.zeros(6)

    table, rows = Table(), []
    run.keep_fixed(table)
    for _ in run.steps():
        if not rows:
            rows = np.split(table.values, 2)
        table.values += 1
        run.report(loss=rows[1].sum())


REFUSED = {
    queue_made_anew: (
        0,
        ConfigurationError,
        "test_refused.py:39: the variable 'queue' is carried from one step to the next and is a "
        "Queue, which cannot be saved: hold what later steps need of it as numbers, arrays, lists "
        'or dicts, such as run.state["queue"] = ..., or give Queue the methods state_dict() and '
        "load_state_dict(), and call run.track with it before the loop; if it decides nothing, "
        "call run.keep_fixed with it",
    ),
    loss_function_that_changes: (0, ConfigurationError, "and is a MSELoss, which cannot be saved"),
    generator_made_anew: (0, ConfigurationError, "call run.track(noise) before the loop"),
    model_that_is_not_tracked: (0, ConfigurationError, "call run.track(model) before the loop"),
    none_then_queue: (5, StateError, "the variable 'queue' is carried from one step to the next"),
    list_of_queues: (
        4,
        StateError,
        "the variable 'queues' has changed since the loop began and holds a Queue at queues[0], "
        "which cannot be saved",
    ),
    function_that_changes: (4, StateError, "is a function, which cannot be saved"),
    best_weights_without_copies: (
        1,
        ConfigurationError,
        "and holds what uses the memory of the tracked model, and changes with it: keep copies: "
        "x.detach().clone() for each of them",
    ),
    **dict.fromkeys(
        (windows_of_one_array, rows_beside_their_table, rows_beside_their_tables_owner),
        (
            1,
            ConfigurationError,
            "holds what uses the memory of another variable: keep copies: x.copy() for each of "
            "them",
        ),
    ),
    rows_of_the_state: (
        1,
        ConfigurationError,
        "uses the memory of run.state['table'], and changes with it: write row = row.copy()",
    ),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_a_variable_that_no_state_can_hold_is_refused(function):
    steps, kind, words = REFUSED[function]
    error, message = refused(function, steps)
    assert (error, words in message) == (kind, True), message


def counting_round_the_bar(run):
    for place, _ in enumerate(reversed_twice(run.steps())):
        run.report(loss=place)


def reversed_twice(steps):
    yield from steps


def beside_batches(run):
    batches = [1, 2, 3]
    for _, batch in zip(run.steps(), itertools.cycle(batches), strict=False):
        run.report(loss=batch)


def epochs_with_steps(run):
    steps = run.steps()
    for epoch in range(100):
        next(steps)
        run.report(loss=epoch)


def step_within_an_expression(run):
    steps, total = run.steps(), 0
    while True:
        total += next(steps)
        run.report(loss=total)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (counting_round_the_bar, "enumerate(reversed_twice(run.steps())) counts from 0 where"),
        (beside_batches, "counts from 0 where a trial goes on; loop over the steps alone"),
        (epochs_with_steps, "next(steps) takes a step within a loop or an expression"),
        (step_within_an_expression, "next(steps) takes a step within a loop or an expression"),
    ],
)
def test_a_position_that_python_hides_is_refused(function, words):
    error, message = refused(function, 0)
    assert error is TrainerError
    assert words in message


class Output:
    def __init__(self, loss):
        self.loss = loss


def output_of_the_last_batch(run):
    for step in run.steps():
        for batch in range(3):
            output = Output(loss=batch + step)
        run.report(loss=output.loss)


def output_of_the_last_step(run):
    for step in run.steps():
        if step == 2:
            output = Output(loss=step)
        run.report(loss=0 if step < 2 else output.loss)


def test_what_only_an_empty_loop_hands_on_is_left_out():
    assert "variables" not in state_after(output_of_the_last_batch, 3)
    with pytest.raises(StateError, match="the variable 'output' is carried"):
        state_after(output_of_the_last_step, 4)


def deleting(run):
    first = 1
    for step in run.steps():
        if step == 0:
            del first
        run.report(loss=0)


def test_a_deleted_variable_is_refused_by_newer_pythons(monkeypatch):
    monkeypatch.setattr(refusals, "CAN_UNBIND", False)
    assert "the variable 'first' is deleted in the loop" in refused(deleting, 1)[1]


def fixed_and_constant(run):
    random_numbers = random.Random(0)
    queue, table = Queue(), np.arange(6)
    run.keep_fixed(queue, table)
    run.track(random_numbers)
    scale = max
    for _ in run.steps():
        queue.put(1)
        table += 1
        loss = random_numbers.random()
        run.report(loss=scale(loss, 0))


def test_what_is_fixed_or_drops_out_is_not_saved():
    run = TrainerRun.start(trainer_of(fixed_and_constant), VALUES, config={}, seed=0)
    for _ in range(2):
        run.advance(VALUES)
    assert "variables" not in run.state()


def with_times(run):
    start, seconds, best = time.time(), 0.0, 1.0
    last = datetime.now()
    for step in run.steps():
        now = time.time()
        seconds += round(now - start, 2)
        last = datetime.now()
        best, start = min(best, 1.0 / (step + 1)), now
        run.report(loss=best, seconds=seconds, year=last.year)


def test_variables_that_each_step_sets_first_are_dropped():
    run = TrainerRun.start(trainer_of(with_times), VALUES, config={}, seed=0)
    dropped = run.trainer.run.carried.dropped()
    assert dropped == {"with_times": {"step", "now", "start", "seconds", "last"}}


def test_times_are_not_saved():
    assert state_after(with_times, 2)["variables"] == {"with_times": {"best": 0.5}}


def gradient_through_an_earlier_step(run):
    w = torch.ones(1, requires_grad=True)
    run.keep_fixed(w)
    before = None
    for _ in run.steps():
        loss = (w * 2).sum()
        if before is not None:
            (before + loss).backward()
        before = loss
        run.report(loss=loss.detach())


def test_a_gradient_through_a_saved_tensor_is_refused():
    trainer = trainer_of(gradient_through_an_earlier_step)
    first = TrainerRun.start(trainer, VALUES, config={}, seed=0)
    first.advance(VALUES)
    run = TrainerRun.resume(
        trainer,
        step=1,
        first_values=VALUES,
        last_values=VALUES,
        state=first.state(),
        config={},
        seed=0,
    )
    with pytest.raises(TrainerError, match="through a tensor that an earlier step has computed"):
        run.advance(VALUES)


def test_without_its_source_a_function_saves_all_it_sets():
    names = {"__name__": __name__}
    text = """
def function(run):
    best, seen = 5.0, []
    for step in run.steps():
        best = min(best, 3.0 - step)
        seen.append(step)
        run.report(best=best)
"""
    exec(text, names)
    run = TrainerRun.start(trainer_of(names["function"]), VALUES, config={}, seed=0)
    for _ in range(2):
        run.advance(VALUES)
    assert run.state()["variables"] == {
        "function": {
            "best": 2.0,
            "step": 1,
            "seen": {"kept": ["function", "seen"], "list": [0, 1]},
        }
    }
