"""A limit ends a simulation to the moment, and what was known by then is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.simulate import Incumbent, Simulation
from dasktune.types import TrialState
from tests.effort import examples

from .cases import BRANCHING, STEPS, grid, spans, wavy


def pace(values: dict[str, float]) -> float:
    return 0.7 + values["lr"]


def three(steps: int = 10) -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=[0.1, 0.2, 0.4]), max_steps=steps)


def falling(values: dict[str, float], step: int) -> float:
    return values["lr"] / step


@pytest.mark.parametrize(
    ("limits", "seconds", "steps", "words"),
    [
        (Limits(seconds=4.5), 4.5, 4 + 2, "4.5 s have passed"),
        (Limits(worker_seconds=9), 4.5, 4 + 2, "9 worker seconds were used"),
        (Limits(steps=5), 4.0, 6, "5 of 5 steps were trained"),
        (Limits(steps=7), 5.0, 7, "7 of 7 steps were trained"),
        (Limits(target=0.05), 2.0, 3, "value reached its target 0.05"),
        (Limits(target=0.05, steps=2), 2.0, 3, "value reached its target 0.05"),
        (Limits(seconds=3, steps=100), 3.0, 4, "3 s have passed"),
        (Limits(steps=1_000), 20.0, 30, None),
    ],
)
def test_simulate_each_limit_ends_the_run_at_its_moment(
    limits: Limits, seconds: float, steps: int, words: str | None
) -> None:
    # Steps of trial 0 take 1 s, of the others 2 s and 1 s: trials 0 and 1 run first.
    found = dt.simulate(
        three(),
        falling,
        workers=2,
        seconds_per_step=lambda values: 2.0 if values["lr"] == 0.2 else 1.0,
        limits=limits,
    )
    assert (found.seconds, found.steps_executed, found.limit) == (seconds, steps, words)


def test_limit_saves_running_jobs_without_events() -> None:
    found = dt.simulate(three(), falling, workers=2, limits=Limits(seconds=4.5))
    first, second, waiting = found.trials
    assert [trial.state for trial in found.trials] == [TrialState.RUNNING] * 3
    assert list(first.metrics) == list(second.metrics) == [1, 2, 3, 4]
    assert (waiting.metrics, first.steps, first.value) == ({}, 0, None)
    assert found.incumbents[-1] == Incumbent(4.0, 8, pytest.approx(0.1 / 4))
    assert found.summary()["steps_executed"] == 8
    assert found.worker_seconds == 9.0
    assert found.completed == []
    assert [one.step for one in found.events if one.kind == "ended"] == [4, 4]


def test_limit_above_the_use_has_no_effect() -> None:
    free = dt.simulate(grid(), wavy, workers=2)
    used = Limits(
        seconds=free.seconds, worker_seconds=free.worker_seconds, steps=free.steps_executed
    )
    found = dt.simulate(grid(), wavy, workers=2, limits=used)
    assert found.limit is None
    assert found.events == free.events


@settings(max_examples=examples(60), deadline=None)
@given(
    workers=st.integers(1, 4),
    share=st.floats(0.01, 0.99),
    by=st.sampled_from(["seconds", "worker_seconds", "steps"]),
    straggling=st.sampled_from([0.0, 1.0]),
    drop=st.sampled_from([0.0, 0.1]),
    resume=st.booleans(),
)
def test_limited_run_is_a_prefix_of_the_unlimited_run(
    workers: int, share: float, by: str, straggling: float, drop: float, resume: bool
) -> None:
    def run(limits: Limits | None = None) -> Simulation:
        return dt.simulate(
            grid(),
            wavy,
            workers=workers,
            seconds_per_step=pace,
            straggling=straggling,
            drop=drop,
            resume=resume,
            limits=limits,
        )

    free = run()
    whole = {
        "seconds": free.seconds,
        "worker_seconds": free.worker_seconds,
        "steps": free.steps_executed,
    }[by]
    amount = max(1, int(whole * share)) if by == "steps" else whole * share
    found = run(Limits(**{by: amount}))
    used = {
        "seconds": found.seconds,
        "worker_seconds": found.worker_seconds,
        "steps": found.steps_executed,
    }[by]
    # Steps may end at one moment on several workers; times are met exactly.
    assert found.limit is not None
    assert used == pytest.approx(amount) if by != "steps" else amount <= used < amount + workers
    earlier = [one for one in free.events if one.at < found.seconds]
    assert found.events[: len(earlier)] == earlier
    known = [one for one in free.incumbents if one.seconds <= found.seconds]
    assert found.incumbents == known


@settings(max_examples=examples(40), deadline=None)
@given(
    workers=st.integers(1, 4),
    every=st.integers(1, 5),
    straggling=st.sampled_from([0.0, 1.0]),
    direction=st.sampled_from(["minimize", "maximize"]),
)
def test_incumbents_are_the_best_known_values_over_time(
    workers: int, every: int, straggling: float, direction: str
) -> None:
    found = dt.simulate(
        grid(),
        wavy,
        workers=workers,
        report_every=every,
        straggling=straggling,
        direction=direction,
        merge=False,
    )
    # Nothing is shared, so each job is a trial, and they begin in the order of their numbers.
    jobs = sorted(spans(found), key=lambda job: int(job[0].attempt.split("-")[0]))
    ends = [
        (start.at + step * (end.at - start.at) / STEPS, BRANCHING[trial], step)
        for trial, (start, end) in enumerate(jobs)
        for step in range(1, STEPS + 1)
    ]
    sign = -1 if direction == "maximize" else 1
    told = [
        (at, sign * wavy({"lr": rate(step - 1)}, step))
        for at, rate, step in ends
        if step % every == 0 or step == STEPS or step in rate.boundaries(0, STEPS)
    ]
    finite = sorted(one for one in told if math.isfinite(one[1]))
    for one in found.incumbents:
        assert sign * one.value == min(loss for at, loss in finite if at <= one.seconds + 1e-9)
        assert one.steps == sum(at <= one.seconds + 1e-9 for at, _, _ in ends)
        assert found.time_to(one.value) == one.seconds
        assert found.steps_to(one.value) == one.steps
    for at, loss in finite:
        reached = found.time_to(sign * loss)
        assert reached is not None
        assert reached <= at + 1e-9
    assert found.time_to(sign * -10.0) is None
    assert found.steps_to(sign * -10.0) is None
