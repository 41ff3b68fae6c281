"""The live display: what it shows, and what it costs when it shows nothing."""

from __future__ import annotations

import io
import math
import time
from dataclasses import replace

import pytest
from rich.console import Console
from rich.live import Live

from dasktune._driver.runner import RunSnapshot
from dasktune._engine.engine import Engine
from dasktune._engine.trials import TrialRecord
from dasktune.algos import Grid
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import WorkerJoined
from dasktune.report.progress import (
    ProgressDisplay,
    RunDisplay,
    best_record,
    display,
    remaining,
)
from dasktune.sequences import Constant, MultiStep
from dasktune.space import Space
from dasktune.types import Direction, Objective, TrialState

SPACE = Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[30], gamma=0.1)])
BEFORE = RunSnapshot(
    workers=2,
    busy=1,
    steps_executed=0,
    stages_left=2,
    seconds=0.0,
    worker_seconds=0.0,
    latest=None,
)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running_engine(space: Space = SPACE) -> Engine:
    engine = Engine(Dispatcher("root"), objective=Objective.single("loss", "minimize"), trials={})
    engine.begin(Grid(space, max_steps=60), place=0, capacity=1, now=0.0)
    engine.handle(WorkerJoined(worker="w", resources={}), 0.0)
    return engine


def progress_of(engine: Engine, clock: Clock | None = None) -> tuple[ProgressDisplay, io.StringIO]:
    out = io.StringIO()
    live = Live(console=Console(file=out, width=100), auto_refresh=False)
    progress = ProgressDisplay(
        "digits",
        "loss",
        Direction.MINIMIZE,
        engine=engine,
        live=live,
        clock=clock or time.monotonic,
    )
    return progress, out


def shown(progress: ProgressDisplay, snapshot: RunSnapshot) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(progress.render(snapshot))
    return out.getvalue()


def record(number: int, value: float | None, state: TrialState) -> TrialRecord:
    return TrialRecord(
        number=number,
        tuner=0,
        local=number,
        params={},
        sequences={},
        max_steps=1,
        state=state,
        values=None if value is None else (value,),
    )


def test_it_shows_what_is_asked_for_and_what_sharing_saves() -> None:
    text = shown(progress_of(running_engine())[0], BEFORE)
    assert "digits" in text
    assert "2 running" in text
    assert "0 trained, 90 left" in text
    assert "25% of 120 steps asked for" in text
    assert "1 of 2 busy, 2 stages to start" in text
    assert "none yet" in text


def test_progress_names_states_by_the_words_of_status() -> None:
    engine = running_engine()
    engine.trials[1].state = TrialState.FAIL
    assert "1 running  1 failed" in shown(progress_of(engine)[0], BEFORE)


def test_without_workers_it_says_that_it_waits_for_them() -> None:
    text = shown(progress_of(running_engine())[0], replace(BEFORE, workers=0, busy=0))
    assert "waiting for workers" in text


def test_the_time_left_follows_from_the_measured_speed() -> None:
    progress, _ = progress_of(running_engine())
    shown(progress, BEFORE)
    text = shown(progress, replace(BEFORE, seconds=10.0, steps_executed=30))
    assert "10.0 s elapsed, about 30.0 s left" in text


def test_the_best_value_names_its_trial() -> None:
    engine = running_engine()
    engine.trials[1].values = (0.25,)
    assert "loss 0.25 (trial 1)" in shown(progress_of(engine)[0], BEFORE)


@pytest.mark.parametrize(("direction", "best"), [("minimize", 3), ("maximize", 2)])
def test_the_best_trial_is_finite_and_did_not_fail(direction: str, best: int) -> None:
    records = [
        record(0, math.nan, TrialState.COMPLETE),
        record(1, None, TrialState.RUNNING),
        record(2, 0.9, TrialState.PRUNED),
        record(3, 0.5, TrialState.COMPLETE),
        record(4, -math.inf, TrialState.COMPLETE),
        record(5, 0.1, TrialState.FAIL),
        record(6, 1.1, TrialState.FAIL),
    ]
    found = best_record(records, Direction.parse(direction))
    assert found is not None
    assert found.number == best
    assert best_record(records[:2], Direction.parse(direction)) is None


def test_what_has_a_checkpoint_is_not_left() -> None:
    engine = running_engine()
    plan = engine.view.plan
    plan.nodes_of(0)[0].checkpoints.add(20)
    ahead = remaining(plan, engine.trials.values())
    assert (ahead.requested, ahead.unique, ahead.left) == (120, 90, 70)


def test_it_is_drawn_four_times_a_second_at_most_and_at_the_end() -> None:
    clock = Clock()
    progress, _ = progress_of(running_engine(), clock)
    for _ in range(100):
        progress(BEFORE)
        clock.now += 0.01
    assert progress.redraws == 4
    progress.finish()
    assert progress.redraws == 5


def test_slow_drawing_takes_a_twentieth_of_the_time_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    progress, _ = progress_of(running_engine(), clock)

    def slow(snapshot: RunSnapshot) -> str:
        clock.now += 0.1
        return ""

    monkeypatch.setattr(progress, "render", slow)
    began = clock.now
    while clock.now < began + 20:
        progress(BEFORE)
        clock.now += 0.01
    assert 0.1 * progress.redraws <= 0.022 * (clock.now - began)


def test_a_call_that_draws_nothing_costs_under_50_microseconds() -> None:
    lr = [Constant(i / 1000) for i in range(1, 1001)]
    progress, _ = progress_of(running_engine(Space(lr=lr)), Clock())
    progress(BEFORE)
    best = math.inf
    for _ in range(5):
        began = time.thread_time()  # other processes' turns do not count
        for _ in range(1000):
            progress(BEFORE)
        best = min(best, (time.thread_time() - began) / 1000)
    assert progress.redraws == 1
    assert best < 50e-6


def test_display_says_what_a_run_waits_for() -> None:
    out = io.StringIO()

    class Study:
        name, metric, direction = "digits [bold]", "loss", Direction.MINIMIZE

    with Live(console=Console(file=out, width=100), auto_refresh=False) as live:
        RunDisplay(Study, live).say("checking [it]: step 2 of 18")
    assert out.getvalue().strip() == "digits [bold]  checking [it]: step 2 of 18"


def test_the_display_goes_to_standard_error_and_leaves_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Study:
        name, metric, direction = "digits [bold]", "loss", Direction.MINIMIZE

    engine = running_engine()
    with display(Study, in_cell=False) as runs:
        on_turn = runs.follow(engine)
        on_turn(BEFORE)
        on_turn(replace(BEFORE, steps_executed=90, seconds=3.0))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "digits [bold]" in captured.err
    assert "90 trained" in captured.err
