"""Bandit: who is stopped at a boundary, in either direction and with any sign."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.algos.bandit import Bandit
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Decision, Extend, Finish, Now, Rank, Report, Step, Stop
from tests.algos.reports import accuracy

SPACE = Space(lr=Float(0.01, 1.0))
MOST = 30


def bandit(direction: str = "maximize", trials: int = 4, **changes: object) -> Bandit:
    arguments: dict[str, object] = {"max_steps": MOST, "every": 10, **changes}
    tuner = Bandit(SPACE, trials=trials, **arguments)  # type: ignore[arg-type]
    tuner.prepare({"directions": [direction]})
    tuner.ask(1)
    return tuner


def report_of(
    trial: int, step: Step, value: float, direction: str, between: tuple[float, ...] = ()
) -> Report:
    sign = -1.0 if direction == "maximize" else 1.0

    def losses(one: float) -> tuple[float, ...]:
        return (sign * one if math.isfinite(one) else math.inf,)

    first = step - len(between)
    seen = tuple((first + place, losses(one)) for place, one in enumerate(between))
    now = Now(seconds=1.0, step_seconds=1.0, workers=2, between=seen)
    return Report(trial=trial, step=step, metrics={"value": value}, losses=losses(value), now=now)


def stops(
    tuner: Bandit, *values: float, step: Step = 10, direction: str = "maximize"
) -> list[bool]:
    """Return of each trial in turn whether it is stopped with its value at a step."""
    found = []
    for trial, value in enumerate(values):
        decisions = tuner.tell(report_of(trial, step, value, direction))
        assert decisions in ([Rank(trial=trial, priority=step)], [Stop(trial=trial)])
        found.append(decisions == [Stop(trial=trial)])
    return found


def test_trial_goes_on_within_the_slack_of_the_best() -> None:
    # 0.5 x 1.5 is just 0.75, and must be more.
    assert stops(bandit(), 0.75, 0.51, 0.5, 0.49) == [False, False, True, True]


def test_the_first_to_come_is_judged_again_at_its_next_boundary() -> None:
    tuner = bandit()
    assert stops(tuner, 0.1, 0.6) == [False, False]
    assert stops(tuner, 0.2, 0.6, step=20) == [True, False]


def test_the_best_of_all_steps_counts_not_the_last() -> None:
    tuner = bandit(trials=2)
    tuner.tell(report_of(0, 10, 0.1, "maximize", between=(0.3, 0.9, 0.2)))
    # The best of all was at a step between reports.
    assert tuner.tell(report_of(1, 10, 0.59, "maximize")) == [Stop(trial=1)]
    assert tuner.tell(report_of(0, 20, 0.0, "maximize")) == [Rank(trial=0, priority=20)]


def test_minimized_trial_goes_on_within_the_slack_of_the_best() -> None:
    found = stops(bandit("minimize"), 2.0, 2.9, 3.0, 3.1, direction="minimize")
    assert found == [False, False, True, True]


def test_slack_of_the_user_decides() -> None:
    assert stops(bandit(slack=0.0), 0.6, 0.6, 0.59) == [False, False, True]
    assert stops(bandit(slack=2.0), 0.75, 0.26, 0.25) == [False, False, True]


def test_rewards_are_compared_within_their_bounds() -> None:
    # Of -500 to 300: 0.9, 0.625, 0.5875.
    rewards = bandit(bounds=(-500, 300))
    assert stops(rewards, 220.0, 0.0, -30.0) == [False, False, True]
    # A metric that falls has its best at the lower end: 0.9, 0.65, 0.55.
    errors = bandit("minimize", bounds=(0, 10))
    assert stops(errors, 1.0, 3.5, 4.5, direction="minimize") == [False, False, True]


def test_value_beyond_a_bound_counts_as_the_bound() -> None:
    assert stops(bandit(bounds=(0, 1)), 50.0, 0.7, 0.6) == [False, False, True]
    # All are at the worst there can be: nothing tells them apart.
    assert stops(bandit(bounds=(0, 1)), -1.0, -5.0) == [False, False]


def test_negative_value_to_maximize_is_a_loss_without_bounds() -> None:
    assert stops(bandit(), -100.0, -140.0, -150.0) == [False, False, True]
    assert stops(bandit("minimize"), -3.0, -2.1, -2.0, direction="minimize") == [
        False,
        False,
        True,
    ]


def test_without_bounds_the_sign_of_the_best_decides() -> None:
    # Next to a gain of 5, a loss is nothing; next to 0, only 0 is good enough.
    assert stops(bandit(), 5.0, 3.4, -1.0) == [False, False, True]
    assert stops(bandit(), 0.0, 0.0, -0.001) == [False, False, True]


def test_equal_values_stop_nobody() -> None:
    for value in (0.7, 0.0, -3.0):
        tuner = bandit(slack=0.0)
        for step in (10, 20):
            assert stops(tuner, *[value] * 4, step=step) == [False] * 4


def test_nan_stops_a_trial_once_anything_was_finite() -> None:
    tuner = bandit()
    assert stops(tuner, math.nan, math.inf, 0.5, math.nan) == [False, False, False, True]
    # However good it was before.
    assert stops(tuner, 0.9, 0.8, math.nan, step=20) == [False, False, True]


def test_no_trial_is_stopped_before_the_grace() -> None:
    tuner = bandit(grace=20)
    assert stops(tuner, 0.9, 0.1) == [False, False]
    assert stops(tuner, 0.9, 0.1, step=20) == [False, True]


def test_there_are_ten_boundaries_unless_said_otherwise() -> None:
    for steps, every in ((100, 10), (120, 12), (7, 1)):
        extend = Bandit(SPACE, trials=1, max_steps=steps).ask(1)[-1]
        assert extend == Extend(trial=0, until=steps, reports=tuple(range(every, steps, every)))


Values = st.lists(st.floats(0, 1e6), min_size=1, max_size=8)


@given(Values, st.floats(0, 3), st.floats(1e-3, 1e3))
def test_the_unit_of_a_positive_metric_does_not_matter(
    values: list[float], slack: float, unit: float
) -> None:
    powers = [2.0 ** round(math.log2(one + 1e-9)) for one in values]
    scale = 2.0 ** round(math.log2(unit))  # exact: rounding must not decide
    found = stops(bandit(slack=slack, trials=8), *powers)
    assert stops(bandit(slack=slack, trials=8), *[one * scale for one in powers]) == found


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.sampled_from([None, (-10, 10)]))
def test_best_trial_so_far_is_never_stopped(
    values: list[float], bounds: tuple[float, float] | None
) -> None:
    for direction, better in (("maximize", max), ("minimize", min)):
        found = stops(bandit(direction, trials=8, bounds=bounds), *values, direction=direction)
        for place, value in enumerate(values):
            if value == better(values[: place + 1]):
                assert not found[place]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slack": -0.1}, "Bandit: slack must be >= 0, got -0.1"),
        ({"slack": math.nan}, "slack must be a finite number, got nan"),
        ({"every": 0}, "every must be >= 1, got 0"),
        ({"grace": 0}, "grace must be >= 1, got 0"),
        ({"bounds": (1, 0)}, "bounds must be .low, high., finite and low < high, got .1, 0."),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bandit(**arguments)  # type: ignore[arg-type]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Bandit(SPACE, trials=0, max_steps=0, slack=-1, every=0, bounds=(1, 1), grace=0)
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize("workers", [1, 4, 30])
def test_a_simulated_study_stops_the_bad_and_keeps_the_best(workers: int) -> None:
    tuner = Bandit(SPACE, trials=30, max_steps=40)
    found = dt.simulate(tuner, accuracy, workers=workers, direction="maximize")
    best = min(found.trials, key=lambda trial: abs(trial.sequences["lr"](0) - 0.3))  # type: ignore[operator]
    assert found.best_trial is not None
    assert found.best_trial.number == best.number
    assert {trial.state.value for trial in found.trials} == {"COMPLETE", "PRUNED"}
    stopped = [trial for trial in found.trials if trial.state.value == "PRUNED"]
    assert all(trial.steps % 4 == 0 for trial in stopped)
    assert found.steps_executed < 30 * 40 * 0.85


def test_a_single_boundary_with_two_points_is_enough() -> None:
    decisions: list[Decision] = []
    tuner = bandit(max_steps=2, every=1, trials=2)
    for trial, step, value in ((0, 1, 0.9), (1, 1, 0.1), (0, 2, 0.9)):
        decisions += tuner.tell(report_of(trial, step, value, "maximize"))
    assert decisions == [Rank(trial=0, priority=1), Stop(trial=1), Finish()]
