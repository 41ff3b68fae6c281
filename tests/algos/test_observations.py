"""Observations: trials that report at several steps, as a sampler sees them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.observations import (
    FAILED,
    RUNNING,
    Observations,
    Observed,
    TrialOutcome,
    losses_of,
)
from dasktune.errors import ConfigurationError, InternalError
from dasktune.types import TrialState

INF = math.inf


def complete(*losses: float) -> TrialOutcome:
    return TrialOutcome(TrialState.COMPLETE, losses)


def observed(trials: int, reports: list[tuple[int, int, float]]) -> Observations:
    """Return trials with one coordinate, so that three of them make a level."""
    found = Observations()
    for trial in range(trials):
        found.add(Observed(trial=trial, point={"x": trial}, domains={}))
    for trial, step, loss in reports:
        found.report(trial, step, (loss,))
    return found


def test_level_is_the_largest_step_with_enough_reports() -> None:
    found = observed(5, [(trial, 1, trial + 0.5) for trial in range(4)])
    assert found.level() == 1
    assert found.outcomes() == [complete(trial + 0.5) for trial in range(4)] + [RUNNING]
    for trial in (0, 1):
        found.report(trial, 3, (trial + 0.1,))
    assert found.level() == 1
    assert found.outcomes()[:2] == [complete(0.5), complete(1.5)]
    found.report(2, 3, (2.1,))
    assert found.level() == 3
    assert found.outcomes() == [complete(0.1), complete(1.1), complete(2.1), RUNNING, RUNNING]


def test_a_sampler_may_want_more_trials_for_a_level() -> None:
    reports = [(trial, step, 1.0) for trial in range(3) for step in (1, 3)]
    found = observed(6, [*reports, (3, 1, 1.0)])
    assert (found.level(), found.level(3), found.level(4)) == (3, 3, 1)


def test_each_coordinate_asks_for_one_more_trial() -> None:
    found = observed(4, [(trial, step, 1.0) for trial in range(3) for step in (1, 3)])
    found.report(3, 1, (1.0,))
    assert found.level() == 3
    found.add(Observed(trial=4, point={"y": 1}, domains={}))
    assert found.level() == 1


def test_with_full_training_the_first_report_counts() -> None:
    found = observed(2, [(1, 60, 0.5)])
    assert found.level() == 60
    assert found.outcomes() == [RUNNING, complete(0.5)]
    assert observed(2, []).level() is None


def test_a_trial_fails_only_where_it_has_no_loss() -> None:
    found = observed(4, [(trial, 1, 1.0) for trial in range(3)])
    found.fail(0)
    found.fail(3)
    assert found.outcomes() == [complete(1.0)] * 3 + [FAILED]


def test_a_trial_that_began_above_the_level_is_running() -> None:
    found = observed(5, [(trial, 1, 1.0) for trial in range(4)] + [(4, 9, 0.0)])
    assert found.outcomes()[4] == RUNNING


def test_an_infinite_loss_is_the_worst_finite_one() -> None:
    found = observed(3, [(0, 5, INF)])
    assert found.outcomes() == [RUNNING] * 3
    found.report(1, 5, (0.5,))
    assert found.outcomes() == [complete(0.5), complete(0.5), RUNNING]
    found.report(2, 5, (2.0,))
    assert found.outcomes() == [complete(2.0), complete(0.5), complete(2.0)]


def test_each_objective_has_its_own_worst() -> None:
    found = observed(3, [])
    for trial, losses in enumerate([(1.0, INF), (INF, 3.0), (2.0, 4.0)]):
        found.report(trial, 5, losses)
    assert found.objectives == 2
    assert found.outcomes() == [complete(1.0, 4.0), complete(2.0, 3.0), complete(2.0, 4.0)]


def test_earlier_trials_are_complete_at_any_level_and_make_none() -> None:
    found = Observations()
    for trial in range(9):
        point = {"x": trial}
        found.add(Observed(trial=None, point=point, domains={}, losses={100: (trial / 10,)}))
    found.add(Observed(trial=0, point={"x": 1}, domains={}))
    assert found.level() is None
    assert found.outcomes() == [complete(trial / 10) for trial in range(9)] + [RUNNING]
    found.report(0, 60, (7.0,))
    assert found.level() == 60
    assert found.outcomes()[-1] == complete(7.0)


def test_trials_must_have_as_many_losses() -> None:
    found = observed(2, [(0, 5, 1.0)])
    with pytest.raises(ConfigurationError, match="as many losses, got 1 and 2"):
        found.report(1, 5, (1.0, 2.0))


def test_reports_of_strangers_are_a_bug() -> None:
    with pytest.raises(InternalError, match="trial 2 has a report"):
        observed(2, [(2, 5, 1.0)])
    with pytest.raises(InternalError, match="trial 3 has a report"):
        observed(2, []).fail(3)


REPORTS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([1, 3, 9]), st.floats(0, 9) | st.just(INF)),
    unique_by=lambda report: report[:2],
)


@given(REPORTS, st.sets(st.integers(0, 7)))
def test_outcomes_do_not_depend_on_the_order_of_reports(
    reports: list[tuple[int, int, float]], failed: set[int]
) -> None:
    found, other = observed(8, reports), observed(8, reports[::-1])
    for trial in sorted(failed):
        found.fail(trial)
        other.fail(trial)
    assert found.outcomes() == other.outcomes()
    again = Observations()
    for one in found.trials:
        document = json.loads(json.dumps(one.to_json(), allow_nan=False))
        losses = losses_of(document.pop("losses"))
        again.add(Observed(**document, domains={}, losses=losses))
    assert again.outcomes() == found.outcomes()


@given(REPORTS)
def test_outcomes_have_only_finite_losses_of_the_level(
    reports: list[tuple[int, int, float]],
) -> None:
    found = observed(8, reports)
    level = found.level()
    at_level = {trial: loss for trial, step, loss in reports if step == level}
    for trial, outcome in enumerate(found.outcomes()):
        if outcome.state is TrialState.COMPLETE:
            assert math.isfinite(outcome.losses[0])
            assert outcome.losses[0] == at_level[trial] or at_level[trial] == INF
        else:
            assert at_level.get(trial, INF) == INF
