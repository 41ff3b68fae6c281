"""Stopping ASHA judges a trial at each rung by who reported there before."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.stopping_asha import StoppingASHA
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Decision, Extend, Finish, Rank, Register, Stop
from tests.algos.reports import arrived

SPACE = Space(x=Float(0.0, 1.0))


def make(trials: int = 8, max_steps: int = 4, eta: int = 2) -> StoppingASHA:
    return StoppingASHA(
        SPACE, trials=trials, max_steps=max_steps, min_steps=1, eta=eta, brackets="aggressive"
    )


def begun(trials: int = 8, max_steps: int = 4, eta: int = 2) -> StoppingASHA:
    tuner = make(trials, max_steps, eta)
    tuner.ask(1)
    return tuner


def on(trial: int, rung: int = 1) -> list[Decision]:
    """Return the decision for a trial that goes on from a rung, counted from 1."""
    return [Rank(trial=trial, priority=rung)]


def goes_on(decisions: list[Decision]) -> bool:
    stops = [one for one in decisions if isinstance(one, Stop)]
    assert len(stops) <= 1
    return not stops


def test_trial_is_extended_once_with_reports_at_the_rungs() -> None:
    decisions = make().ask(1)
    assert [type(one) for one in decisions] == [Register] * 8 + [Extend] * 8
    assert decisions[8] == Extend(trial=0, until=4, reports=(1, 2))
    several = StoppingASHA(SPACE, trials=30, max_steps=60).ask(1)
    reports = [one.reports for one in several if isinstance(one, Extend)]
    assert {one: reports.count(one) for one in set(reports)} == {(3, 15): 22, (15,): 8}


@given(
    losses=st.lists(
        st.one_of(st.integers(0, 4).map(float), st.just(math.inf)), min_size=4, max_size=40
    ),
    eta=st.integers(2, 4),
)
def test_a_trial_goes_on_if_its_loss_is_within_the_top_so_far(
    losses: list[float], eta: int
) -> None:
    tuner = begun(len(losses), max_steps=eta, eta=eta)
    for trial, loss in enumerate(losses):
        so_far = sorted(losses[: trial + 1])
        limit = so_far[max(1, len(so_far) // eta) - 1]
        found = tuner.tell(arrived(trial, 1, loss))
        assert goes_on(found) == (loss <= limit and loss < math.inf)


def test_only_the_best_goes_on_before_eta_arrivals() -> None:
    tuner = begun(eta=4)
    losses = [0.5, 0.6, 0.4, 0.45]
    assert [goes_on(tuner.tell(arrived(trial, 1, loss))) for trial, loss in enumerate(losses)] == [
        True,
        False,
        True,
        False,
    ]


def test_equal_losses_fare_alike() -> None:
    tuner = begun(eta=4)
    assert all(goes_on(tuner.tell(arrived(trial, 1, 0.5))) for trial in range(8))


def test_an_infinite_loss_never_goes_on_not_even_the_first() -> None:
    tuner = begun()
    assert tuner.tell(arrived(0, 1, math.inf)) == [Stop(trial=0)]
    assert tuner.tell(arrived(1, 1, math.inf)) == [Stop(trial=1)]
    assert tuner.tell(arrived(2, 1, 9.0)) == on(2)


def test_report_that_skips_a_rung_is_judged_at_the_last() -> None:
    tuner = begun()
    assert tuner.tell(arrived(0, 2, 0.5)) == on(0, rung=2)
    # The first rung knows of the 0.5, so that the 0.6 is not the best there.
    assert tuner.tell(arrived(1, 1, 0.6)) == [Stop(trial=1)]
    assert tuner.tell(arrived(2, 1, 0.4)) == on(2)
    # At the last rung passed it is the second of two, though it would be the best at the first.
    assert tuner.tell(arrived(3, 3, 0.55)) == [Stop(trial=3)]
    # A skipped rung is not asked for again.
    assert tuner.tell(arrived(0, 1, 99.0)) == []


def test_a_report_between_rungs_is_judged_at_the_rung_below_once() -> None:
    tuner = begun(max_steps=16, trials=16)
    assert tuner.tell(arrived(0, 3, 0.5)) == on(0, rung=2)
    assert tuner.tell(arrived(0, 3, 99.0)) == []
    assert tuner.tell(arrived(1, 1, 0.4)) == on(1)
    assert tuner.tell(arrived(1, 2, 0.6)) == [Stop(trial=1)]


def test_no_trial_is_stopped_at_the_end_and_the_last_finishes() -> None:
    tuner = begun(trials=4, max_steps=4)
    assert tuner.tell(arrived(0, 4, 0.1)) == []
    assert tuner.tell(arrived(1, 4, 0.9)) == []
    assert tuner.tell(arrived(2, 1, 0.5)) == [Stop(trial=2)]
    assert tuner.tell(arrived(3, 1, 0.6)) == [Stop(trial=3), Finish()]


def test_a_failed_trial_keeps_its_places() -> None:
    tuner = begun(trials=4)
    tuner.tell(arrived(0, 1, 0.1))
    assert tuner.tell_failure(0) == []
    assert tuner.tell(arrived(1, 1, 0.2)) == [Stop(trial=1)]
    assert tuner.tell_failure(2) == []
    assert tuner.tell_failure(3) == [Finish()]


def test_more_trials_compete_with_the_earlier_ones() -> None:
    tuner = make(8).widened_from(make(4).identity())
    assert tuner is not None
    tuner.ask(1)
    for trial in range(4):
        last = tuner.tell(arrived(trial, 1, 0.1 + trial))
    assert goes_on(last) is False
    assert tuner.tell(arrived(0, 4, 0.1)) == [Finish()]
    assert [one.trial for one in tuner.widen(8) if isinstance(one, Extend)] == [4, 5, 6, 7]
    assert tuner.tell(arrived(4, 1, 3.0)) == [Stop(trial=4)]
    assert tuner.tell(arrived(5, 1, 1.0)) == on(5)


def test_trials_are_judged_at_the_old_top_when_the_horizon_grows() -> None:
    tuner = StoppingASHA(SPACE, trials=4, min_steps=1, brackets=[0])
    tuner.ask(1)
    for trial, loss in enumerate([0.3, 0.2]):
        assert goes_on(tuner.tell(arrived(trial, 1, loss)))
        tuner.tell(arrived(trial, 4, loss))
    assert goes_on(tuner.tell(arrived(2, 1, 0.1)))
    decisions = tuner.widen(16)
    assert tuner.max_steps == 16
    assert decisions[:4] == [
        Extend(trial=2, until=16, reports=(4,), priority=1),
        Extend(trial=3, until=16, reports=(1, 4), priority=-3),
        Extend(trial=0, until=16, priority=2),
        Extend(trial=1, until=16, priority=2),
    ], "each was the best so far when it arrived"
    assert tuner.tell(arrived(2, 4, 0.4)) == [Stop(trial=2)]
    assert tuner.tell(arrived(0, 16, 0.4)) == []


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=">= 4"):
        make(trials=3)
