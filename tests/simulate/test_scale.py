"""Simulated trials on several workers at once: their times, choices and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError
from dasktune.simulate import Simulation
from dasktune.simulate.pool import step_seconds

Seconds = Callable[..., float]


def linear(values: Mapping[str, Any], devices: int) -> float:
    return 1.0 / devices


def useless(values: Mapping[str, Any], devices: int) -> float:
    return 1.0


def curve(values: Mapping[str, Any], step: int) -> float:
    assert set(values) == {"lr"}
    return float(values["lr"]) / step


def halving() -> dt.algos.SHA:
    """Return 16 trials, of which 4 go on after step 1, and 1 after step 4."""
    space = dt.Space(lr=dt.Float(0.1, 1.0))
    return dt.algos.SHA(space, trials=16, max_steps=16, min_steps=1, eta=4, seed=0)


def run(seconds: Seconds, workers: Any = 16, most: int = 8, **options: Any) -> Simulation:
    scale = dt.Scale(max=most) if most else None
    return dt.simulate(
        halving(), curve, workers=workers, scale=scale, seconds_per_step=seconds, **options
    )


def devices(found: Simulation) -> list[tuple[tuple[int, int], ...]]:
    return sorted({tuple(trial.devices) for trial in found.trials})


def test_late_trials_train_on_more_workers_and_end_sooner() -> None:
    alone, found = run(linear, most=0), run(linear)
    assert alone.seconds == 16.0
    assert devices(alone) == [((0, 1),)]
    assert devices(found) == [((0, 1),), ((0, 1), (1, 4)), ((0, 1), (1, 4), (4, 8))]
    assert found.seconds == 1 + 3 / 4 + 12 / 8
    assert found.steps_executed == alone.steps_executed
    assert found.steps_repeated == 0


def test_values_are_those_of_trials_on_one_worker() -> None:
    alone, found = run(linear, most=0), run(linear)
    assert [trial.metrics for trial in found.trials] == [trial.metrics for trial in alone.trials]


def test_worker_seconds_count_every_worker_of_a_trial() -> None:
    found = run(linear)
    assert found.worker_seconds == pytest.approx(run(linear, most=0).worker_seconds)


def test_limit_of_worker_seconds_counts_every_worker() -> None:
    # 16 in the first rung; then 16 workers end it after a quarter of a second.
    found = run(linear, limits=dt.Limits(worker_seconds=20.0))
    assert found.seconds == pytest.approx(1.25)
    assert found.worker_seconds == pytest.approx(20.0)


def test_workers_that_do_not_help_are_given_back() -> None:
    found = run(useless)
    best = found.best_trial
    assert best is not None
    assert best.devices == ((0, 1), (1, 4), (4, 1))
    assert found.seconds == 16.0


def test_workers_that_slow_a_long_stage_are_given_back_early() -> None:
    def slower(values: Mapping[str, Any], devices: int) -> float:
        return 60.0 * devices

    longer = dt.algos.SHA(
        dt.Space(lr=dt.Float(0.1, 1.0)), trials=16, max_steps=32, min_steps=2, eta=4, seed=0
    )
    found = dt.simulate(longer, curve, workers=16, scale=dt.Scale(max=8), seconds_per_step=slower)
    # Workers tell how far they are after 1, 2, 4, ... steps, and end a stage at the next one.
    assert devices(found) == [((0, 1),), ((0, 1), (2, 4), (6, 1))]
    assert found.steps_repeated == 0
    assert sum(trial.steps == 32 for trial in found.trials) == 1


def test_a_population_smaller_than_the_workers_is_scaled() -> None:
    population = dt.algos.PBT(
        dt.Space(lr=dt.Float(0.1, 1.0)), population=5, max_steps=12, every=4, seed=0
    )
    found = dt.simulate(
        population, curve, workers=12, scale=dt.Scale(max=4), seconds_per_step=linear
    )
    assert {periods[:2] for periods in devices(found)} == {((0, 1), (4, 2)), ((0, 1), (4, 4))}
    assert found.seconds == 4 + 8 / 2
    # Children share what their donors have trained; a member was stopped after 2 steps.
    assert (found.steps_executed, found.steps_repeated) == (5 * 12 + 2, 0)


def test_equal_simulations_choose_alike() -> None:
    first, second = run(linear), run(linear)
    assert first.events == second.events
    assert devices(first) == devices(second)


def test_trials_train_together_on_workers_of_one_class_only() -> None:
    def seconds(values: Mapping[str, Any], kind: str, devices: int) -> float:
        return {"fast": 1.0, "slow": 2.0}[kind] / devices

    found = run(seconds, workers={"fast": 4, "slow": 4})
    best = found.best_trial
    assert best is not None
    assert max(number for _, number in best.devices) == 4


@pytest.mark.parametrize(
    "seconds", [None, 1.0, lambda values: 1.0, lambda values, kind: 1.0, lambda *values: 1.0]
)
def test_scale_without_times_by_devices_is_refused(seconds: object) -> None:
    with pytest.raises(ConfigurationError, match="scale must come with a function"):
        dt.simulate(halving(), curve, scale=dt.Scale(max=2), seconds_per_step=seconds)  # type: ignore[arg-type]


def test_scale_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"scale must be dasktune\.Scale, got 8"):
        dt.simulate(halving(), curve, scale=8, seconds_per_step=linear)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        lambda values, devices: devices,
        lambda values, *, devices: devices,
        lambda values, kind, devices: devices if kind == "slow" else 0,
        lambda values, devices, kind: devices if kind == "slow" else 0,
        lambda values, place, devices: devices if place == "slow" else 0,
        lambda values, *, devices=1, kind="fast": devices if kind == "slow" else 0,
    ],
)
def test_step_seconds_pass_the_devices_by_name(given: Seconds) -> None:
    assert step_seconds(given)({}, "slow", 4) == 4


def minutes(values: Mapping[str, Any], devices: int) -> float:
    return 60.0 / devices


def whole(trials: int, seconds: Seconds = minutes, **options: Any) -> Simulation:
    """Simulate trainings of 16 steps each, which the tuner asks for at once, on 8 workers."""
    tuner = dt.algos.Random(dt.Space(lr=dt.Float(0.1, 1.0)), trials=trials, max_steps=16, seed=0)
    return dt.simulate(
        tuner, curve, workers=8, scale=dt.Scale(max=8), seconds_per_step=seconds, **options
    )


def test_last_trial_of_a_study_grows_while_it_trains() -> None:
    found = whole(9)
    assert devices(found) == [((0, 1),), ((0, 1), (1, 8))]
    assert found.seconds == 60 * (16 + 1 + 15 / 8)
    assert found.steps_repeated == 0
    assert found.steps_executed == 9 * 16


def test_two_last_trials_share_the_idle_workers() -> None:
    found = whole(10)
    assert devices(found) == [((0, 1),), ((0, 1), (1, 4))]
    assert found.steps_repeated == 0


def test_stages_that_end_soon_are_not_stopped_to_grow() -> None:
    # Eight workers would save 13 of 15 seconds; more than 10 s must be left of it.
    assert devices(whole(9, lambda values, devices: 1.0 / devices))[1:] == [((0, 1), (1, 8))]
    assert devices(whole(9, lambda values, devices: 0.7 / devices)) == [((0, 1),)]


def test_growth_that_does_not_pay_is_tried_once() -> None:
    found = whole(9, lambda values, devices: 60.0)
    assert devices(found) == [((0, 1),), ((0, 1), (1, 8), (5, 1))]
    assert found.steps_repeated == 0


def test_trials_of_a_trunk_grow_together() -> None:
    space = dt.Space(
        lr=[dt.sequences.Piecewise([0.1, 0.2], boundaries=[12]), dt.sequences.Constant(0.1)]
    )
    found = dt.simulate(
        dt.algos.Grid(space, max_steps=16),
        curve,
        workers=8,
        scale=dt.Scale(max=8),
        seconds_per_step=minutes,
    )
    assert devices(found) == [((0, 1), (1, 4))]
    assert (found.steps_executed, found.steps_repeated) == (20, 0)
