"""POP reaches a target soon: what it promotes, suspends and ends, and when (section 5.3)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from optuna.samplers import TPESampler

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune.algos.curves import Persistence
from dasktune.algos.pop import POP, Label
from dasktune.errors import ConfigurationError
from dasktune.simulate import Simulation, Trace, simulate
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Now,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
    TrialState,
)
from tests.algos.pop.foresight import Foresight

FLAT, STEPS = 0.3, 20
"""Of a curve that learns little, and how long curves are."""


def lines(*finals: float, steps: Step = STEPS) -> Trace:
    """Return curves that rise straight to their last value."""
    parts = np.arange(1, steps + 1) / steps
    return Trace.from_arrays({"accuracy": [final * parts for final in finals]})


def pop(trace: Trace, **settings: Any) -> POP:
    given = {"trials": len(trace.configurations), "max_steps": trace.steps, "every": 2}
    given |= {"predictor": Foresight(), "sampler": "grid"}
    return POP(trace.space(), **{**given, **settings})


def run(tuner: POP, trace: Trace, workers: int = 2, **settings: Any) -> Simulation:
    given = {"metric": "accuracy", "direction": "maximize"}
    return simulate(tuner, trace, workers=workers, **{**given, **settings})


def report(
    trial: int, step: Step, score: float, *, seconds: float = 0.0, **metrics: float
) -> Report:
    return Report(
        trial=trial,
        step=step,
        metrics={"accuracy": score, **metrics},
        losses=(-score if math.isfinite(score) else math.inf,),
        now=Now(seconds=seconds, step_seconds=1.0, workers=2),
    )


def begun(**settings: Any) -> POP:
    """Return a tuner of four trials that has been asked."""
    inputs = {"directions": settings.pop("directions", ["maximize"])}
    tuner = pop(lines(*[0.5] * 4), **{"target": 0.8, **settings})
    tuner.prepare(inputs)
    tuner.ask(2)
    return tuner


def ending(decisions: list[Decision]) -> str:
    """Return why a tuner ends; empty if it does not, or decides anything else."""
    match decisions:
        case [Finish(reason=why)]:
            return why
        case _:
            assert not any(isinstance(one, Finish) for one in decisions)
            return ""


def predicted(tuner: POP, trial: int) -> list[Any]:
    return tuner.tell_prediction(trial, tuner.question(trial).answer())


# ------------------------------------------------------------------------- slots and turns


def test_all_trials_are_tried_in_turn() -> None:
    tuner = pop(lines(*[0.5] * 4), target=0.8)
    decisions = tuner.ask(2)
    requests = [one for one in decisions if isinstance(one, Extend)]
    assert [one.until for one in requests] == [2] * 4
    assert [one.priority for one in requests] == [-1, -2, -3, -4]


def test_trial_at_a_boundary_is_suspended_and_predicted() -> None:
    tuner = begun()
    found = tuner.tell(report(0, 2, 0.07))
    # It waits behind the other three.
    assert found == [Predict(trial=0), Extend(trial=0, until=4, priority=-5.0)]


def test_promising_trial_holds_a_slot_through_its_boundaries() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.09))
    (found,) = predicted(tuner, 0)
    assert isinstance(found, Extend)
    assert (found.until, found.reports) == (20, (4, 6, 8, 10, 12, 14, 16, 18))
    assert 1.9 < found.priority < 2.0
    label, outlook = tuner.standing[0]
    assert label is Label.PROMISING
    assert outlook is not None
    assert outlook.confidence == pytest.approx(found.priority - 1)


def test_a_promising_trial_goes_on_without_a_word() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.09))
    predicted(tuner, 0)
    assert tuner.tell(report(0, 4, 0.18)) == [Predict(trial=0)]


def test_one_that_promises_no_more_waits_for_its_turn_again() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.09))
    predicted(tuner, 0)
    tuner.tell(report(0, 4, 0.15))
    assert predicted(tuner, 0) == [Extend(trial=0, until=6, priority=-6.0)]
    assert tuner.standing[0][0] is Label.OPPORTUNISTIC


def test_poor_trial_is_ended_once_another_is_better() -> None:
    tuner = begun(ends_poor=True)
    tuner.tell(report(0, 2, 0.07))
    assert Stop(trial=0) not in predicted(tuner, 0)
    tuner.tell(report(1, 2, 0.09))
    assert Stop(trial=0) in predicted(tuner, 1)


def test_or_it_waits_behind_all_others() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.02))
    (found,) = predicted(tuner, 0)
    assert isinstance(found, Extend)
    assert (found.until, found.priority < -1e9) == (4, True)
    assert tuner.standing[0][0] is Label.POOR


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_poor_trials_rank_by_distance_to_the_target(unit: float) -> None:
    tuner = begun(predictor=Foresight(deviation=0.02 * unit), target=0.8 * unit)
    asked = {}
    for trial, score in enumerate((0.04, 0.045, 0.02)):
        tuner.tell(report(trial, 2, score * unit))
        (found,) = predicted(tuner, trial)
        assert isinstance(found, Extend)
        asked[trial] = found.priority
    assert asked[1] > asked[0] > asked[2]
    (again,) = (one for one in tuner.tell(report(2, 4, 0.13 * unit)) if isinstance(one, Extend))
    assert again.priority == asked[2], "what has been predicted is as it was"
    (ranked,) = predicted(tuner, 2)
    assert ranked == Rank(trial=2, priority=pytest.approx(asked[1] + math.log2(0.35 / 0.15)))
    assert tuner.standing[2][0] is Label.POOR


def test_dedicated_slots_are_no_more_than_there_are() -> None:
    tuner = begun()
    for trial, score in enumerate((0.09, 0.095, 0.1)):
        tuner.tell(report(trial, 2, score))
        predicted(tuner, trial)
    labels = [label for label, _ in tuner.standing.values()]
    assert labels.count(Label.PROMISING) == 2
    assert tuner.standing[0][0] is Label.OPPORTUNISTIC  # the least confident of the three


def test_a_prediction_that_cannot_be_made_changes_nothing() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.09))
    assert tuner.tell_prediction(0, None) == []
    # It is asked for again at the next boundary.
    assert Predict(trial=0) in tuner.tell(report(0, 4, 0.18))


def test_prediction_of_an_earlier_step_is_used_and_renewed() -> None:
    tuner = begun()
    tuner.tell(report(0, 2, 0.09))
    late = tuner.question(0).answer()
    assert Predict(trial=0) not in tuner.tell(report(0, 4, 0.18))
    found = tuner.tell_prediction(0, late)
    assert found[0] == Predict(trial=0)
    assert isinstance(found[1], Extend)
    assert tuner.standing[0][0] is Label.PROMISING


# ----------------------------------------------------------------------------- thresholds


def test_trial_below_the_kill_threshold_ends_unpredicted() -> None:
    tuner = begun(kill=0.05)
    assert tuner.tell(report(0, 2, 0.04)) == [Stop(trial=0)]
    assert tuner.tell(report(1, 2, 0.05))[0] == Predict(trial=1)


def test_trial_that_loses_what_it_learned_is_ended() -> None:
    tuner = begun(target=200, crash=-100, window=2, predictor=Persistence())
    tuner.tell(report(0, 2, -100.0))
    tuner.tell(report(0, 4, -150.0))
    assert 0 in tuner.standing, "one that has learned nothing yet goes on"
    for step, reward in ((2, -90.0), (4, 60.0), (6, -120.0)):
        tuner.tell(report(1, step, reward))
        assert 1 in tuner.standing
    assert tuner.tell(report(1, 8, -100.0))[0] == Stop(trial=1)
    for step, reward in ((2, 60.0), (4, 60.0), (6, -120.0), (8, -99.0), (10, -120.0)):
        tuner.tell(report(2, step, reward))
    assert 2 in tuner.standing, "it had recovered"


def test_crash_of_a_minimized_metric_is_a_rise() -> None:
    tuner = begun(target=0.1, crash=0.9, directions=["minimize"], predictor=Persistence())
    for step, error in ((2, 0.5), (4, 0.95)):
        tuner.tell(report(0, step, -error))
    assert tuner.tell(report(0, 6, -0.9))[0] == Stop(trial=0)


def test_later_values_beyond_the_bounds_count_as_the_bound() -> None:
    tuner = begun(target=0.8, bounds=(0, 1), window=2, predictor=Persistence())
    tuner.tell(report(0, 2, 0.5))
    for trial in (0, 1):
        tuner.tell(report(trial, 4, -3.0))
        assert tuner.question(trial).curve.scores[-1] == 0.0
    assert tuner.tell(report(2, 2, 1.5))
    assert ending(tuner.tell(report(2, 4, 0.6))) is not None


@pytest.mark.parametrize("score", [math.nan, -math.inf])
def test_a_trial_that_diverges_is_ended(score: float) -> None:
    assert begun().tell(report(0, 2, score)) == [Stop(trial=0)]


def test_a_constant_curve_and_one_of_two_points_are_predicted() -> None:
    tuner = begun(predictor=Persistence())
    for step in (2, 4):
        tuner.tell(report(0, step, 0.5))
        assert predicted(tuner, 0) == [Stop(trial=0)] or 0 in tuner.standing


# -------------------------------------------------------------------------------- the end


def test_reaching_the_target_ends_the_study() -> None:
    found = ending(begun().tell(report(0, 2, 0.8, seconds=4.71)))
    assert found == "the target was reached after 4.7 s (target 0.8, best 0.8)"


def test_what_ended_it_is_said_in_the_metrics_own_unit() -> None:
    tuner = begun(target=0.2, within="30s", directions=["minimize"])
    tuner.tell(report(0, 2, -0.5))
    assert ending(tuner.tell_time(30.0)) == "its 30 s are over (target 0.2, best 0.5)"
    assert ending(begun(target=None, within=1).tell_time(1.0)) == (
        "its 1 s are over (nothing was reported)"
    )
    assert ending(begun(ends_when={"accuracy": (0.3, None)}).tell(report(0, 2, 0.4))) == (
        "a report met its condition to end (target 0.8, best 0.4)"
    )
    alone = pop(lines(0.5), target=0.8)
    alone.prepare({"directions": ["maximize"]})
    alone.ask(1)
    assert ending(alone.tell(report(0, 20, 0.5))) == (
        "no trial is left to go on (target 0.8, best 0.5)"
    )


@pytest.mark.parametrize(
    ("settings", "value", "message"),
    [
        ({"bounds": (0, 1)}, 40.0, "bounds must hold all values of the metric, 0 to 1, got 40"),
        ({"bounds": (0.5, None)}, 0.4, "0.5 to inf, got 0.4"),
        ({"bounds": (None, 1), "directions": ["minimize"]}, -2.0, "-inf to 1, got 2"),
        ({"ends_when": {"crshes": (None, 1)}}, 0.4, "unknown metric 'crshes'; known: accuracy"),
    ],
)
def test_a_first_report_shows_what_cannot_be(
    settings: dict[str, Any], value: float, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        begun(**settings).tell(report(0, 2, value))


@pytest.mark.parametrize(
    ("direction", "target", "kill"), [("maximize", 0.8, 0.8), ("minimize", 0.2, 0.1)]
)
@pytest.mark.parametrize("name", ["kill", "crash"])
def test_what_reaches_the_target_may_not_be_killed(
    name: str, direction: str, target: float, kill: float
) -> None:
    text = f"{name} must be worse than the target, {target}, got {kill}"
    with pytest.raises(ConfigurationError, match=text):
        begun(target=target, directions=[direction], **{name: kill})


def test_a_target_that_is_reached_between_boundaries_counts() -> None:
    now = Now(seconds=2.0, step_seconds=1.0, workers=2, between=((1, (-0.9,)),))
    told = Report(trial=0, step=2, metrics={"accuracy": 0.1}, losses=(-0.1,), now=now)
    assert ending(begun().tell(told))


def test_a_dynamic_target_rises_beyond_what_was_reached() -> None:
    tuner = begun(dynamic=0.05)
    assert not ending(tuner.tell(report(0, 2, 0.87)))
    assert tuner.target == pytest.approx(0.9)


def test_a_dynamic_target_ends_where_the_metric_can_go_no_higher() -> None:
    assert ending(begun(dynamic=0.15, bounds=(0, 1)).tell(report(0, 2, 0.96)))


def test_without_a_target_the_best_within_the_time_is_looked_for() -> None:
    trace = lines(0.5, 0.9, 0.6, 0.95, 0.3)
    found = run(pop(trace, target=None, within=60), trace)
    assert found.best_trial is not None
    assert found.best_trial.params == {"configuration": 3}
    assert found.seconds <= 60


def test_the_time_ends_the_study_on_the_second() -> None:
    trace = lines(*[0.7] * 8)
    found = run(pop(trace, target=0.99, within="13s", least=0.0), trace)
    assert found.seconds == pytest.approx(13, abs=1)  # what runs ends at its next step
    assert {trial.state for trial in found.trials} == {TrialState.PRUNED}


def test_a_time_shorter_than_a_step_ends_the_study_in_it() -> None:
    trace = lines(0.5, 0.6)
    found = run(pop(trace, target=0.9, within=0.5), trace)
    assert found.seconds == pytest.approx(1.0)


def test_confidence_shrinks_as_time_passes() -> None:
    tuner = begun(within=18.0)
    tuner.tell(report(0, 2, 0.09, seconds=0.0))
    predicted(tuner, 0)
    before = tuner.standing[0][1]
    # Another trial's report says that only a few steps are left.
    tuner.tell(report(1, 2, 0.085, seconds=17.0))
    label, after = tuner.standing[0]
    assert before is not None
    assert after is not None
    assert (before.confidence > 0.9, after.confidence, label) == (True, 0.0, Label.POOR)


def test_a_user_may_end_the_study_by_several_metrics() -> None:
    tuner = begun(ends_when={"accuracy": (0.3, None), "crashes": (None, 0.1)})
    assert not ending(tuner.tell(report(0, 2, 0.4, crashes=0.2)))
    assert not ending(tuner.tell(report(1, 2, 0.4)))
    assert ending(tuner.tell(report(2, 2, 0.3, crashes=0.1)))


def test_a_user_may_end_the_study_by_code() -> None:
    class Cautious(POP):
        def is_done(self, report: Report) -> bool:
            return report.metrics["accuracy"] > 0.5 and report.step >= 4

    trace = lines(0.5)
    tuner = Cautious(trace.space(), target=0.9, trials=1, max_steps=20, every=2)
    tuner.prepare({"directions": ["maximize"]})
    tuner.ask(1)
    assert not ending(tuner.tell(report(0, 2, 0.6)))
    assert ending(tuner.tell(report(0, 4, 0.6)))


def test_solved_is_a_mean_over_a_window() -> None:
    tuner = begun(window=3, target=0.8)
    for step, score in ((2, 0.9), (4, 0.9), (6, 0.2), (8, 0.85), (10, 0.85)):
        assert not ending(tuner.tell(report(0, step, score)))
    assert tuner.question(0).curve.scores[-3:] == (0.2, 0.85, 0.85)
    assert ending(tuner.tell(report(0, 12, 0.85)))


def test_it_ends_when_no_trial_is_left() -> None:
    trace = lines(0.1, 0.2, 0.15)
    found = run(pop(trace, target=0.99, ends_poor=True), trace)
    assert {trial.state for trial in found.trials} == {TrialState.PRUNED}
    assert found.steps_executed < 3 * STEPS


# ------------------------------------------------------------------------------ whole runs


def test_it_gets_there_sooner_than_training_everything() -> None:
    finals = [0.3, 0.5, 0.6, 0.4, 0.55, 0.35, 0.9, 0.45] * 4
    trace = lines(*finals)
    tuner = pop(trace, target=0.85, within=1000)
    everything = dt.algos.Grid(trace.space(), max_steps=STEPS)
    limits = Limits(target=0.85)
    here = run(tuner, trace, limits=limits).time_to(0.85)
    there = simulate(
        everything,
        trace,
        workers=2,
        metric="accuracy",
        direction="maximize",
        limits=limits,
    ).time_to(0.85)
    assert here is not None
    assert there is not None
    assert there > 1.8 * here


def test_late_predictions_cost_little() -> None:
    trace = lines(*[0.3, 0.5, 0.6, 0.4, 0.55, 0.35, 0.9, 0.45] * 2)
    at_once, late = (
        run(pop(trace, target=0.85), trace, prediction_seconds=seconds).time_to(0.85)
        for seconds in (0.0, 3.0)
    )
    assert at_once is not None
    assert late is not None
    assert late <= at_once + 4 * 3


def test_a_metric_that_gets_better_downwards_is_treated_the_same() -> None:
    finals = [0.3, 0.5, 0.6, 0.4, 0.55, 0.35, 0.9, 0.45] * 2
    up = lines(*finals)
    down = Trace.from_arrays({"accuracy": -up.values[:, :, 0]})
    risen = run(pop(up, target=0.85, kill=0.02, bounds=(0, 1)), up)
    fallen = simulate(
        pop(down, target=-0.85, kill=-0.02, bounds=(-1, 0)),
        down,
        workers=2,
        metric="accuracy",
        direction="minimize",
    )
    assert (risen.seconds, risen.steps_executed) == (fallen.seconds, fallen.steps_executed)
    assert [one.state for one in risen.trials] == [one.state for one in fallen.trials]


def test_at_a_barrier_all_are_suspended() -> None:
    trace = lines(0.5, 0.6, 0.7, 0.9)
    tuner = pop(trace, target=0.85, barrier=True)
    tuner.prepare({"directions": ["maximize"]})
    first = tuner.ask(2)
    assert [one.trial for one in first if isinstance(one, Extend)] == [0, 1]
    assert not any(isinstance(one, Extend) for one in tuner.tell(report(0, 2, 0.08)))
    # Both are there, and one is not predicted yet.
    assert not any(isinstance(one, Extend) for one in tuner.tell(report(1, 2, 0.085)))
    assert predicted(tuner, 0) == []
    after = [one for one in predicted(tuner, 1) if isinstance(one, Extend)]
    assert [(one.trial, one.until) for one in after] == [(1, 4), (2, 2)]


def test_a_run_with_barriers_gets_there() -> None:
    trace = lines(*[0.5, 0.6, 0.7, 0.9] * 2)
    found = run(pop(trace, target=0.85, barrier=True), trace)
    assert found.time_to(0.85) is not None


def hill(values: Mapping[str, Any], step: Step) -> float:
    return float((1 - abs(values["x"] - 0.4)) * step / STEPS)


def learning(**settings: Any) -> POP:
    given: dict[str, Any] = {"target": 0.97, "trials": 30, "max_steps": STEPS, "every": 2}
    given |= {"predictor": Foresight(), "sampler": TPESampler(seed=1)}
    return POP(dt.Space(x=dt.Float(0, 1)), **{**given, **settings})


def test_a_learning_sampler_is_asked_for_more_while_others_wait() -> None:
    found = simulate(learning(), hill, workers=2, direction="maximize")
    assert found.time_to(0.97) is not None
    assert len(found.trials) > 2


def test_shared_stage_has_the_priority_of_its_best_trial() -> None:
    """Two trials share ten steps: ending one leaves those to the other."""
    from dasktune.sequences import Constant

    drops = [Constant(0.1)[:10] >> Constant(rate) for rate in (0.01, 0.02)]

    def curve(values: Mapping[str, Any], step: Step) -> float:
        return 0.04 * step if step <= 10 or values["lr"] == 0.02 else 0.4

    tuner = POP(
        dt.Space(lr=drops),
        target=0.75,
        trials=2,
        max_steps=STEPS,
        every=5,
        predictor=Foresight(),
        ends_poor=True,
        sampler="grid",
    )
    found = simulate(tuner, curve, workers=1, direction="maximize")
    assert found.time_to(0.75) is not None
    # One gets there. The other is trained alone for one boundary, and a step until it ends.
    assert found.steps_executed <= STEPS + 5 + 1
    assert found.steps_repeated == 0


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"target": 1.2, "bounds": (0, 1)},
            "target must lie within the bounds, 0.0 to 1.0, got 1.2",
        ),
        ({"kill": -3, "bounds": (0, 1)}, "kill must lie within the bounds, 0.0 to 1.0, got -3"),
        ({"bounds": (1, 0)}, "bounds must be"),
        ({"bounds": (0, math.inf)}, "bounds must be"),
        ({"bounds": "[0,None)"}, "bounds must be (low, high), each finite or None for no bound"),
        ({"within": "8 parsecs"}, "within must be seconds > 0, or a number with one of"),
        ({"within": 0}, "within must be seconds > 0"),
        ({"within": -1.0}, "within must be seconds > 0"),
        ({"target": math.nan}, "target must be"),
        ({"least": 1.0}, "least must be >= 0 and < 1, got 1.0"),
        ({"dynamic": 0.0}, "dynamic must be > 0, got 0.0"),
        ({"window": 0}, "window must be"),
        ({"window": 21}, "window must be <= max_steps, 20, got 21"),
        ({"every": 21}, "every must be <= max_steps, 20, got 21"),
        ({"ends_when": {"reward": (None, None)}}, "None where there is no bound but not twice"),
        ({"every": 0}, "every must be"),
        ({"ends_when": {"reward": 200}}, "ends_when: reward must be (least, most)"),
        ({"ends_when": 7}, "ends_when must be ranges of metrics"),
        ({"predictor": "mcmc"}, "predictor must be one of"),
        ({"predictor": Persistence}, "predictor must be one of"),
        ({"within": 10**400}, "within must be seconds > 0"),
        ({"ends_when": {"reward": (3, 1)}}, "ends_when: reward must be (least, most)"),
        ({"ends_when": {"reward": (math.nan, 1)}}, "ends_when: reward must be"),
        ({"ends_when": {"reward": (math.inf, None)}}, "with finite values between"),
        ({"ends_when": {"reward": (None, -math.inf)}}, "with finite values between"),
        ({"ends_when": {"reward": (-math.inf, math.inf)}}, "with finite values between"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pop(lines(0.5), **{"target": 0.8, **settings})
    assert text in str(caught.value)


def test_all_problems_are_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        pop(lines(0.5), target=3, bounds=(0, 1), within="soon", window=0)
    assert len(caught.value.problems) == 3


def test_times_are_read_as_people_write_them() -> None:
    times = ["90s", "30min", "8h", "1.5d", 12, 0.5, None]
    found = [pop(lines(0.5), target=0.8, within=time).options.within for time in times]
    assert found == [90, 1800, 28800, 129600, 12, 0.5, math.inf]


def test_trials_are_registered_once() -> None:
    tuner = pop(lines(0.5, 0.6), target=0.8)
    assert len([one for one in tuner.ask(2) if isinstance(one, Register)]) == 2
    assert tuner.ask(2) == []


# ------------------------------------------------------------------------ found in a review


@pytest.mark.parametrize(("dynamic", "reached"), [(1e-9, 0.95), (1e-300, 0.95)])
def test_a_target_that_rises_by_little_rises_at_once(dynamic: float, reached: float) -> None:
    tuner = begun(dynamic=dynamic)
    found = tuner.tell(report(0, 2, reached))
    # Either beyond what was reached, or it is too little to be told from nothing.
    assert ending(found) or (tuner.target is not None and tuner.target > reached)


def test_without_a_target_nothing_is_asked_for_that_cannot_be() -> None:
    tuner = begun(target=None, bounds=(0, 1))
    for trial, score in enumerate((0.2, 0.999)):
        tuner.tell(report(trial, 2, score))
    assert tuner.target is not None
    assert 0.999 < tuner.target < 1.0


def test_wide_bounds_do_not_change_what_is_looked_for() -> None:
    targets = []
    for bounds in (None, (0.0, 1000.0)):
        tuner = begun(target=None, bounds=bounds)
        for trial, score in enumerate((0.2, 0.6)):
            tuner.tell(report(trial, 2, score))
        targets.append(tuner.target)
    assert targets[0] == targets[1] == pytest.approx(0.604)


def test_a_sampler_that_learns_is_asked_at_each_barrier_only() -> None:
    tuner = learning(target=2.0, barrier=True)
    tuner.prepare({"directions": ["maximize"]})
    assert len([one for one in tuner.ask(2) if isinstance(one, Register)]) == 2
    assert tuner.ask(1) == [], "the others of the round are on their way"
    found = simulate(learning(barrier=True), hill, workers=2, direction="maximize")
    assert found.time_to(0.97) is not None


def test_more_trials_let_those_go_on_that_had_not_ended() -> None:
    tuner = pop(lines(*[0.5] * 6), trials=4, target=0.8)
    tuner.prepare({"directions": ["maximize"]})
    tuner.ask(2)
    tuner.tell(report(0, 2, 0.07))
    assert ending(tuner.tell(report(1, 2, 0.8)))
    asked = {one.trial for one in tuner.widen(6) if isinstance(one, Extend)}
    assert asked == {0, 1, 2, 3, 4, 5}


def test_more_trials_are_refused_when_the_time_is_over() -> None:
    tuner = begun(within=10.0)
    assert ending(tuner.tell_time(10.0))
    with pytest.raises(ConfigurationError, match="time is over"):
        tuner.widen(6)


def test_a_single_crash_ends_nobody_who_is_judged_by_a_window() -> None:
    tuner = begun(kill=0.05, window=3)
    for step, score in ((2, 0.3), (4, 0.3), (6, 0.0)):
        assert Stop(trial=0) not in tuner.tell(report(0, step, score))
    assert Stop(trial=0) in [one for step in (8, 10) for one in tuner.tell(report(0, step, 0.0))]


def test_a_predictor_that_answers_another_question_is_refused() -> None:
    class Early(Foresight):
        def predict(self, curve: Any, steps: tuple[Step, ...], *, seed: int = 0) -> Any:
            found = super().predict(curve, steps, seed=seed)
            return dt.algos.curves.Prediction(
                after=0, steps=found.steps, scores=found.scores, deviations=found.deviations
            )

    tuner = begun(predictor=Early())
    tuner.tell(report(0, 2, 0.07))
    with pytest.raises(ConfigurationError, match="a predictor must predict steps"):
        tuner.question(0).answer()


def test_what_lies_behind_a_trial_counts_no_more() -> None:
    tuner = begun(every=2)
    tuner.tell(report(0, 2, 0.09))
    late = tuner.question(0).answer()
    tuner.tell(report(0, 18, 0.3))
    tuner.tell_prediction(0, late)
    expected = tuner.standing[0][1]
    assert expected is not None
    assert 0 <= expected.confidence <= 1
