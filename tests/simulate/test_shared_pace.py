"""Simulated devices on which several trials train together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.simulate.shared_pace import SharedDevice, SharedPace
from dasktune.traces.timing import EvenPace


def run(trials: int, **options: Any) -> dt.Simulation:
    space = dt.Space(lr=[0.5 + number for number in range(trials)])
    tuner = dt.algos.Grid(space, max_steps=10)
    return dt.simulate(tuner, lambda values, step: values["lr"] / step, **options)


def test_stages_together_share_the_speed_of_a_device() -> None:
    device = SharedDevice("d0", (1.0, 1.5))
    first, second = (SharedPace(EvenPace(1.0), 0, 1.0) for _ in range(2))
    device.begin("w0", first, 0.0, 0.0)
    assert first.between(0, 10) == 10.0
    device.begin("w1", second, 4.0, 4.0)  # now each has 0.75 of its speed
    assert first.between(0, 4) == 4.0
    assert first.between(0, 10) == pytest.approx(4.0 + 6.0 / 0.75)
    assert second.between(0, 3) == pytest.approx(4.0)
    device.end("w0", 12.0)
    assert second.between(0, 6) == pytest.approx(8.0)
    assert second.between(6, 10) == pytest.approx(4.0)


@given(st.lists(st.tuples(st.floats(0.01, 50.0), st.floats(0.1, 2.0)), max_size=8))
def test_changes_of_speed_leave_the_past_as_it_was(bends: list[tuple[float, float]]) -> None:
    pace, now = SharedPace(EvenPace(1.0), 0, 1.0), 0.0
    for seconds, speed in bends:
        now += seconds
        before = {step: pace.between(0, step) for step in range(100)}
        pace.bend(now, speed)
        for step, at in before.items():
            if at <= now:
                assert pace.between(0, step) == pytest.approx(at)
    times = [pace.between(0, step) for step in range(100)]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("together", "least"),
    [
        ((1.0, 1.8, 1.8), 1.7),
        ((1.0, 1.7, 2.4, 3.0), 2.6),
        ((1.0, 1.02, 1.02), 0.98),
        ((1, 0.7), 0.97),
    ],
)
def test_a_run_gains_what_its_devices_gain(together: tuple[float, ...], least: float) -> None:
    alone, shared = run(400, workers=2), run(400, workers=2, together=together)
    assert alone.seconds / shared.seconds > least
    assert shared.steps_executed == alone.steps_executed
    assert shared.steps_repeated == 0
    assert shared.best_trial.params == alone.best_trial.params


def test_limits_hold_on_shared_devices() -> None:
    shared = run(400, together=(1.0, 1.8), limits=dt.Limits(steps=1005))
    assert shared.steps_executed in (1005, 1006)  # two may end at one moment
    shared = run(400, together=(1.0, 1.8), limits=dt.Limits(seconds=333.25))
    assert shared.seconds == 333.25


def test_one_class_alone_may_have_shared_devices() -> None:
    pool = {"gpu": 1, "cpu": 2}
    shared = run(300, workers=pool, together={"gpu": (1.0, 2.0)})
    assert run(300, workers=pool).seconds / shared.seconds > 1.2


@pytest.mark.parametrize(
    ("together", "message"),
    [
        ((), "of which the first is 1"),
        ((2.0, 3.0), "of which the first is 1"),
        ((1.0, 0.0), "numbers > 0"),
        ("1", "numbers > 0"),
        ({"gpu": (1.0, 2.0)}, "classes of the workers, got 'gpu'"),
    ],
)
def test_other_curves_of_devices_are_refused(together: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(2, together=together)
