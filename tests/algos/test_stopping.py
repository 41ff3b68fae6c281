"""Stopping rules: which trials are given up, where, and what they are compared with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.algos.samplers import RandomSource
from dasktune.algos.stopping import (
    MedianStopping,
    PatienceStopping,
    PercentileStopping,
    StoppingTuner,
    percentile_of,
)
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Decision, Extend, Finish, Rank, Register, Report, Step, Stop, Value
from tests.algos.reports import arrived

SPACE = Space(lr=Float(0.01, 1.0))


def median(trials: int = 4, **changes: object) -> MedianStopping:
    arguments: dict[str, object] = {"max_steps": 8, "every": 2, "min_trials": 2, **changes}
    return MedianStopping(SPACE, trials=trials, **arguments)  # type: ignore[arg-type]


def patient(trials: int = 2, **changes: object) -> PatienceStopping:
    arguments: dict[str, object] = {"max_steps": 12, "every": 2, "patience": 4, **changes}
    return PatienceStopping(SPACE, trials=trials, **arguments)  # type: ignore[arg-type]


def tell(tuner: StoppingTuner, trial: int, step: Step, loss: float) -> list[Decision]:
    """Return the decisions after a report, without the rank of a trial that goes on."""
    report = arrived(trial, step, loss)
    decisions = tuner.tell(report)
    ranks = [one for one in decisions if isinstance(one, Rank)]
    assert ranks in ([], [Rank(trial=trial, priority=step)])
    return [one for one in decisions if one not in ranks]


def test_trial_that_goes_on_ranks_by_its_step() -> None:
    tuner = median()
    tuner.ask(1)
    report = Report(trial=0, step=2, metrics={"loss": 1.0}, losses=(1.0,))
    assert tuner.tell(report) == [Rank(trial=0, priority=2)]


@pytest.mark.parametrize("make", [median, patient])
def test_trial_is_extended_in_full_with_reports_on_the_way(
    make: Callable[..., StoppingTuner],
) -> None:
    tuner = make(trials=3, max_steps=7, every=3)
    decisions = tuner.ask(1)
    assert [type(one) for one in decisions] == [Register] * 3 + [Extend] * 3
    assert decisions[3:] == [Extend(trial=t, until=7, reports=(3, 6)) for t in range(3)]
    assert tuner.ask(9) == []


def test_there_are_twenty_reports_unless_said_otherwise() -> None:
    extend = median(1, max_steps=60, every=None).ask(1)[-1]
    assert isinstance(extend, Extend)
    assert extend.reports == tuple(range(3, 60, 3))
    extend = median(1, max_steps=7, every=None).ask(1)[-1]
    assert isinstance(extend, Extend)
    assert extend.reports == (1, 2, 3, 4, 5, 6)


def test_a_median_example_worked_by_hand() -> None:
    tuner = median()
    tuner.ask(1)
    # Two must have reported before anybody is compared.
    assert tell(tuner, 0, 2, 4.0) == []
    assert tell(tuner, 1, 2, 8.0) == []
    # The median of 4 and 8 is 6: equal is not worse.
    assert tell(tuner, 2, 2, 6.0) == []
    # Of 4, 6, 8: 6.
    assert tell(tuner, 3, 2, 6.5) == [Stop(trial=3)]
    # At step 4 the averages are (4 + 2) / 2 = 3 and (8 + 4) / 2 = 6, their median is 4.5;
    # trial 2 is judged by the better of 6 and 5.
    assert tell(tuner, 0, 4, 2.0) == []
    assert tell(tuner, 1, 4, 4.0) == []
    assert tell(tuner, 2, 4, 5.0) == [Stop(trial=2)]
    # At step 6 only one other has reported.
    assert tell(tuner, 1, 6, 9.0) == []
    assert tell(tuner, 0, 6, 9.0) == []
    assert tell(tuner, 0, 8, 9.0) == []
    assert tell(tuner, 1, 8, 99.0) == [Finish()]


def test_the_best_so_far_counts_not_the_last() -> None:
    tuner = median()
    tuner.ask(1)
    for trial, loss in ((0, 3.0), (1, 5.0), (2, 1.0)):
        assert tell(tuner, trial, 2, loss) == []
    for trial in (0, 1):
        assert tell(tuner, trial, 4, 3.0) == []
    assert tell(tuner, 2, 4, 100.0) == []


def test_a_percentile_below_the_median_is_stricter() -> None:
    def stopped(percentile: float) -> list[int]:
        tuner = PercentileStopping(
            SPACE, trials=9, max_steps=8, every=2, percentile=percentile, min_trials=4
        )
        tuner.ask(1)
        for trial, loss in enumerate([1.0, 2.0, 3.0, 4.0]):
            tell(tuner, trial, 2, loss)
        # Between: 1.75 at 25, 2.5 at 50, 3.25 at 75, before their own averages join.
        losses = [1.7, 1.8, 2.6, 3.4]
        return [int(bool(tell(tuner, 4 + i, 2, loss))) for i, loss in enumerate(losses)]

    # The averages that join move the percentile, at 25 from 1.75 to 1.7.
    assert stopped(25.0) == [0, 1, 1, 1]
    assert stopped(50.0) == [0, 0, 1, 1]
    assert stopped(75.0) == [0, 0, 0, 1]


@pytest.mark.parametrize("before", [0.001, 1000.0])
def test_an_infinite_loss_stops_its_trial_once_there_are_others(before: float) -> None:
    tuner = median(5)
    tuner.ask(1)
    assert tell(tuner, 0, 2, math.inf) == []
    assert tell(tuner, 1, 2, math.inf) == []
    # Infinite averages rank last: the median of the others is infinite.
    assert tell(tuner, 2, 2, before) == []
    assert tell(tuner, 3, 2, math.inf) == [Stop(trial=3)]
    assert tell(tuner, 0, 4, 1.0) == []
    assert tell(tuner, 1, 4, 1.0) == []
    assert tell(tuner, 2, 4, math.inf) == [Stop(trial=2)]


def test_equal_losses_stop_nobody_however_they_are_rounded() -> None:
    tuner = median(6, max_steps=40, every=1)
    tuner.ask(1)
    for step in range(1, 40):
        assert [tell(tuner, trial, step, 0.7) for trial in range(6)] == [[]] * 6


def test_a_patience_example_worked_by_hand() -> None:
    tuner = patient(min_delta=0.5)
    tuner.ask(1)
    assert tell(tuner, 0, 2, 5.0) == []
    assert tell(tuner, 0, 4, 4.5) == []  # not better by more than 0.5
    assert tell(tuner, 1, 2, math.inf) == []
    assert tell(tuner, 1, 4, math.inf) == [Stop(trial=1)]  # nothing finite for 4 steps
    assert tell(tuner, 0, 6, 4.4) == []  # better than 5.0 at step 2
    assert tell(tuner, 0, 8, math.inf) == []
    assert tell(tuner, 0, 10, 4.0) == [Stop(trial=0), Finish()]
    assert tell(tuner, 0, 12, 0.0) == []


RULES: Mapping[str, Callable[..., StoppingTuner]] = {
    "median": lambda **changes: median(trials=7, **changes),
    "percentile": lambda **changes: PercentileStopping(
        SPACE, trials=7, percentile=20.0, **{"max_steps": 8, "every": 2, "min_trials": 1, **changes}
    ),
    "patience": lambda **changes: patient(trials=7, **{"max_steps": 8, **changes}),
}


@pytest.mark.parametrize("rule", RULES)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([0.0, 0.1]))
def test_it_ends_in_any_order_and_stops_nobody_in_the_grace(
    rule: str, seed: int, grace: int, failing: float
) -> None:
    tuner, rng = RULES[rule](grace=grace), np.random.default_rng(seed)
    tuner.ask(3)
    at, ended = dict.fromkeys(range(7), 0), 0
    while at:
        trial = sorted(at)[int(rng.integers(len(at)))]
        at[trial] += 2
        if rng.random() < failing:
            found = tuner.tell_failure(trial)
            del at[trial]
        else:
            loss = math.inf if rng.random() < 0.1 else float(rng.random())
            found = tell(tuner, trial, at[trial], loss)
            if Stop(trial=trial) in found:
                assert grace <= at[trial] < 8
                del at[trial]
            elif at[trial] == 8:
                del at[trial]
        ended += found[-1:] == [Finish()]
        assert (ended == 1) == (not at)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9).map(sorted),
    st.floats(0.1, 99.9),
)
def test_percentiles_are_those_of_numpy(found: list[float], percentile: float) -> None:
    expected = float(np.percentile(found, percentile))
    assert percentile_of(found, percentile) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert percentile_of(found, 50.0) == pytest.approx(statistics.median(found))
    assert percentile_of([*found, *[math.inf] * (len(found) + 2)], 50.0) == math.inf
    assert percentile_of([0.1, 0.1, 0.1], percentile) == 0.1


def in_fractions(ascending: list[float], percentile: float) -> float:
    place = Fraction(repr(percentile)) / 100 * (len(ascending) - 1)
    low, high = ascending[math.floor(place)], ascending[math.ceil(place)]
    return low if low == high else low + (high - low) * float(place % 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.01, 99.99))
def test_percentile_is_that_in_fractions_bit_for_bit(
    losses: list[float], percentile: float
) -> None:
    losses.sort()
    assert percentile_of(losses, percentile) == in_fractions(losses, percentile)


class _Learning(RandomSource):
    learns = True

    def __init__(self) -> None:
        super().__init__(SPACE, 0)


@pytest.mark.parametrize("make", [median, patient])
def test_a_sampler_that_learns_proposes_for_free_workers_only(
    make: Callable[..., StoppingTuner],
) -> None:
    tuner = make(trials=5, sampler=_Learning())
    assert len(tuner.ask(2)) == 4
    assert len(tuner.ask(1)) == 2
    assert tuner.tell_failure(0) == tuner.tell_failure(1) == tuner.tell_failure(2) == []
    assert len(tuner.ask(9)) == 4
    assert tuner.ask(9) == []
    assert [tuner.tell_failure(3), tuner.tell_failure(4)] == [[], [Finish()]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: median(every=0), "MedianStopping: every must be >= 1, got 0"),
        (lambda: median(grace=0), "grace must be >= 1, got 0"),
        (lambda: median(min_trials=0), "min_trials must be >= 1, got 0"),
        (
            lambda: PercentileStopping(SPACE, trials=1, max_steps=8, percentile=100),
            "percentile must be > 0 and < 100, got 100",
        ),
        (lambda: patient(patience=0), "patience must be >= 1, got 0"),
        (lambda: patient(min_delta=-1), "min_delta must be >= 0, got -1"),
        (lambda: median().restore({**median().snapshot(), "state": {}}), "not the state"),
        (
            lambda: median().restore({**median().snapshot(), "state": {"open": [0], "rule": {}}}),
            "not the state",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        median(trials=0, max_steps=0, every=0, grace=0, min_trials=0)
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("workers", [1, 4, 30])
def test_simulated_study_saves_steps_and_keeps_the_best(workers: int) -> None:
    def curve(values: Mapping[str, Value], step: Step) -> float:
        lr = values["lr"]
        assert isinstance(lr, float)
        return abs(lr - 0.3) + 1 / step

    tuner = MedianStopping(SPACE, trials=30, max_steps=40, every=4)
    found = dt.simulate(tuner, curve, workers=workers)
    states = [trial.state.value for trial in found.trials]
    assert set(states) == {"COMPLETE", "PRUNED"}
    best = min(found.trials, key=lambda trial: abs(trial.sequences["lr"](0) - 0.3))  # type: ignore[operator]
    assert found.best_trial is not None
    assert found.best_trial.number == best.number
    assert best.state.value == "COMPLETE"
    stopped = [trial for trial in found.trials if trial.state.value == "PRUNED"]
    assert all(trial.steps % 4 == 0 for trial in stopped)
    assert found.steps_executed < 30 * 40 * 0.75
