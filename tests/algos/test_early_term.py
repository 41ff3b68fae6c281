"""EarlyTerm: what it asks, and what becomes of a trial when the answer comes, however late."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

import dasktune as dt
from dasktune.algos.curves import LEVELS, Persistence, Prediction, Predictor, PriorFitted
from dasktune.algos.early_term import EarlyTerm
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.space import Float, Space
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Now,
    Predict,
    Rank,
    Report,
    Step,
    Stop,
    Value,
)
from tests.algos.reports import accuracy

SPACE = Space(lr=Float(0.01, 1.0))
MOST = 40


def early(trials: int = 4, direction: str = "maximize", **changes: object) -> EarlyTerm:
    arguments: dict[str, object] = {"max_steps": MOST, "predictor": Persistence(), **changes}
    tuner = EarlyTerm(SPACE, trials=trials, **arguments)  # type: ignore[arg-type]
    tuner.prepare({"directions": [direction]})
    tuner.ask(1)
    return tuner


def tell(
    tuner: EarlyTerm,
    trial: int,
    step: Step,
    score: float,
    between: Mapping[Step, float] | None = None,
) -> list[Decision]:
    """Return the decisions after a report, without the rank of a trial that goes on."""

    def losses(one: float) -> tuple[float, ...]:
        return (-one if math.isfinite(one) else math.inf,)

    seen = tuple((at, losses(one)) for at, one in (between or {}).items())
    now = Now(seconds=1.0, step_seconds=1.0, workers=2, between=seen)
    report = Report(trial=trial, step=step, metrics={}, losses=losses(score), now=now)
    return [one for one in tuner.tell(report) if one != Rank(trial=trial, priority=float(step))]


def predicted(after: Step, chance: float, best: float) -> Prediction:
    """Return a prediction with a given chance of at least `best` at the end."""
    place = LEVELS.index(1 - chance)
    row = tuple(best + level - LEVELS[place] for level in LEVELS)
    return Prediction(after=after, steps=(MOST,), scores=(row,), deviations=(0.1,))


def test_trial_is_extended_in_full_with_three_boundaries() -> None:
    for steps, every in ((120, 30), (40, 10), (3, 1)):
        extend = EarlyTerm(SPACE, trials=1, max_steps=steps).ask(1)[-1]
        assert extend == Extend(trial=0, until=steps, reports=tuple(range(every, steps, every)))


def test_a_prediction_is_asked_for_at_each_boundary() -> None:
    tuner = early()
    assert tell(tuner, 0, 10, 0.5, {4: 0.2, 8: 0.4}) == [Predict(trial=0)]
    question = tuner.question(0)
    assert question.steps == (MOST,)
    assert (question.curve.steps, question.curve.scores) == ((4, 8, 10), (0.2, 0.4, 0.5))
    assert question.curve.max_steps == MOST
    assert tuner.tell_prediction(0, predicted(10, 0.5, 0.5)) == []
    assert tell(tuner, 0, 20, 0.6) == [Predict(trial=0)]


def test_question_has_coming_learning_rates_and_bounds() -> None:
    drop = Space(lr=[Constant(0.1)[:30] >> Constant(0.01)])
    for direction, ends in (("maximize", (0.0, 1.0)), ("minimize", (-1.0, 0.0))):
        tuner = EarlyTerm(drop, trials=1, max_steps=MOST, bounds=(0, 1), seed=7)
        tuner.prepare({"directions": [direction]})
        tuner.ask(1)
        tell(tuner, 0, 10, 0.5 if direction == "maximize" else -0.5)
        curve = tuner.question(0).curve
        assert curve.rates == ((0, 0.1), (30, 0.01))
        assert (curve.low, curve.high) == ends


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_bounds_that_the_first_value_has_left_are_refused(direction: str) -> None:
    side = 1 if direction == "maximize" else -1
    tuner = early(direction=direction, bounds=(0, 1))
    tell(tuner, 0, 10, math.nan)
    with pytest.raises(ConfigurationError, match=r"bounds must hold all values of the metric, 0 t"):
        tell(tuner, 1, 10, side * 7.0)
    tuner = early(direction=direction, bounds=(0, 1))
    tell(tuner, 0, 10, side * 1.0)
    tell(tuner, 1, 10, side * 7.0)
    assert tuner.question(1).curve.scores == (1.0 if side > 0 else -1.0,)


def test_early_term_takes_a_bound_of_one_side_only() -> None:
    tuner = early(direction="minimize", bounds=(0, None))
    tell(tuner, 0, 10, -3000.0)
    curve = tuner.question(0).curve
    assert (curve.scores, curve.low, curve.high) == ((-3000.0,), None, 0.0)
    restored = EarlyTerm(SPACE, trials=4, max_steps=MOST, predictor=Persistence(), bounds=(0, None))
    restored.restore(tuner.snapshot())
    assert restored.question(0).curve == curve


def test_trial_with_a_chance_below_delta_is_stopped() -> None:
    for chance, stopped in ((0.025, True), (0.05, False), (0.1, False)):
        tuner = early(delta=0.05)
        tell(tuner, 0, 10, 0.9)
        tell(tuner, 1, 10, 0.3)
        found = tuner.tell_prediction(1, predicted(10, chance, 0.9))
        assert found == ([Stop(trial=1)] if stopped else [])


def test_the_best_is_that_of_all_trials_at_any_step() -> None:
    tuner = early()
    tell(tuner, 0, 10, 0.2, {5: 0.8})
    tell(tuner, 1, 10, 0.3)
    assert tuner.tell_prediction(1, predicted(10, 0.1, 0.8)) == []
    tell(tuner, 1, 20, 0.3)
    # What was sure against 0.8 is hopeless against 1.0.
    tell(tuner, 2, 10, 1.0)
    assert tuner.tell_prediction(1, predicted(20, 0.6, 0.8)) == []
    tell(tuner, 1, 30, 0.3)
    assert tuner.tell_prediction(1, predicted(30, 0.01, 1.0)) == [Stop(trial=1)]


def test_lucky_value_is_no_best_over_a_window() -> None:
    noisy = {6: 0.4, 8: 1.0}
    alone, several = early(), early(window=3)
    for tuner in (alone, several):
        tell(tuner, 0, 10, 0.4, noisy)
        tell(tuner, 1, 10, 0.3)
    assert alone.tell_prediction(1, predicted(10, 0.01, 0.9)) == [Stop(trial=1)]
    assert several.tell_prediction(1, predicted(10, 0.01, 0.9)) == []
    restored = EarlyTerm(SPACE, trials=4, max_steps=MOST, predictor=Persistence(), window=3)
    restored.restore(several.snapshot())
    for tuner in (several, restored):
        tell(tuner, 1, 20, 0.3)
        assert tuner.tell_prediction(1, predicted(20, 0.01, 0.6)) == [Stop(trial=1)], "of 3: 0.6"
    assert early().identity() == early(window=1).identity()


def test_late_prediction_is_compared_with_the_present_best() -> None:
    late = predicted(10, 0.5, 0.5)  # 0.5 +- 0.5 at the end
    tuner = early()
    tell(tuner, 0, 10, 0.4)
    tell(tuner, 1, 10, 0.3)
    tell(tuner, 0, 20, 1.5)
    assert tuner.tell_prediction(1, late) == [Stop(trial=1)]


def test_late_prediction_counts_and_another_is_asked_for() -> None:
    tuner = early()
    tell(tuner, 0, 10, 0.9)
    assert tell(tuner, 1, 10, 0.3) == [Predict(trial=1)]
    # Nothing more is asked before the first is answered.
    assert tell(tuner, 1, 20, 0.4) == []
    assert tuner.tell_prediction(1, predicted(10, 0.5, 0.9)) == [Predict(trial=1)]
    assert tuner.question(1).curve.last_step == 20
    assert tuner.tell_prediction(1, predicted(20, 0.01, 0.9)) == [Stop(trial=1)]


def test_late_prediction_contradicted_by_scores_is_ignored() -> None:
    tuner = early()
    tell(tuner, 0, 10, 0.5)
    tell(tuner, 1, 10, 0.3)
    tell(tuner, 1, 20, 0.6, {15: 0.7})
    assert tuner.tell_prediction(1, predicted(10, 0.01, 0.7)) == [Predict(trial=1)]


def test_a_prediction_that_cannot_be_made_lets_the_trial_go_on() -> None:
    tuner = early()
    tell(tuner, 0, 10, 0.9)
    tell(tuner, 1, 10, 0.1)
    tell(tuner, 1, 20, 0.1)
    assert tuner.tell_prediction(1, None) == []
    assert tell(tuner, 1, 30, 0.1) == [Predict(trial=1)]


def test_it_ends_when_its_last_trial_is_stopped() -> None:
    tuner = early(2)
    tell(tuner, 0, MOST, 0.9)
    tell(tuner, 1, 10, 0.3)
    found = tuner.tell_prediction(1, predicted(10, 0.01, 0.9))
    assert found == [Stop(trial=1), Finish()]


def test_infinite_value_at_a_boundary_stops_without_question() -> None:
    tuner = early()
    # Nothing is finite yet: there is nothing to ask, and nobody to be worse than.
    assert tell(tuner, 0, 10, math.nan) == []
    assert tell(tuner, 1, 10, 0.1) == [Predict(trial=1)]
    assert tell(tuner, 0, 20, math.nan) == [Stop(trial=0)]
    assert tell(tuner, 1, 20, math.inf) == [Stop(trial=1)]
    assert tell(tuner, 2, 10, 0.5, {3: math.nan}) == [Predict(trial=2)]
    assert tuner.question(2).curve.measured == ((10, 0.5),)


@pytest.mark.parametrize("predictor", [Persistence(), PriorFitted()])
def test_equal_and_constant_curves_stop_nobody(predictor: Persistence | PriorFitted) -> None:
    tuner = early(predictor=predictor)
    for step in (10, 20, 30):
        for trial in range(4):
            assert tell(tuner, trial, step, 0.5, {step - 5: 0.5}) == [Predict(trial=trial)]
            assert tuner.tell_prediction(trial, tuner.question(trial).answer()) == []


@pytest.mark.parametrize("predictor", [Persistence(), PriorFitted()])
def test_one_point_and_two_can_be_predicted(predictor: Persistence | PriorFitted) -> None:
    tuner = early(2, max_steps=3, every=1, predictor=predictor)
    for step in (1, 2):
        tell(tuner, 0, step, 0.5 * step)
        tell(tuner, 1, step, 0.1 * step)
        for trial in (0, 1):
            answer = tuner.question(trial).answer()
            assert isinstance(tuner.tell_prediction(trial, answer), list)


def test_questions_of_several_trials_have_seeds_of_their_own() -> None:
    tuner = early(seed=3)
    tell(tuner, 0, 10, 0.5)
    tell(tuner, 1, 10, 0.5)
    assert [tuner.question(trial).seed for trial in (0, 1)] == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "EarlyTerm: every must be >= 1, got 0"),
        ({"delta": 0}, "delta must be > 0 and <= 1, got 0"),
        ({"delta": 1.5}, "delta must be > 0 and <= 1, got 1.5"),
        ({"bounds": (2, 1)}, "bounds must be .low, high., finite and low < high"),
        ({"predictor": "pop"}, "predictor must be one of CurveEnsemble, Mixture, .* got 'pop'"),
        ({"predictor": Persistence}, "or an instance that has predict and identity, got <class"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Mapping[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        early(**arguments)  # type: ignore[arg-type]


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        EarlyTerm(SPACE, trials=0, max_steps=0, every=0, delta=0, bounds=(1, 1), predictor="pop")
    assert len(caught.value.problems) == 6


def loss(values: Mapping[str, Value], step: Step) -> float:
    return 1 - accuracy(values, step)


def simulated(direction: str, workers: int, seconds: float, predictor: Predictor | None) -> int:
    """Return how many steps are trained; the best trial must be among those trained in full."""
    tuner = EarlyTerm(SPACE, trials=20, max_steps=40, bounds=(0, 1), predictor=predictor)
    curve = accuracy if direction == "maximize" else loss
    found = dt.simulate(
        tuner, curve, workers=workers, direction=direction, prediction_seconds=seconds
    )
    best = min(found.trials, key=lambda trial: abs(trial.sequences["lr"](0) - 0.3))  # type: ignore[operator]
    assert found.best_trial is not None
    assert (found.best_trial.number, best.steps) == (best.number, 40)
    return found.steps_executed


@pytest.mark.parametrize("seconds", [0.0, 3.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_simulated_study_stops_the_bad_and_keeps_the_best(workers: int, seconds: float) -> None:
    rising, falling = (
        simulated(direction, workers, seconds, Persistence())
        for direction in ("maximize", "minimize")
    )
    assert rising == falling < 20 * 40 * 0.85
    for direction in ("maximize", "minimize"):
        assert simulated(direction, workers, seconds, None) < 20 * 40 * 0.85


def test_training_does_not_wait_for_predictions() -> None:
    assert simulated("maximize", 4, 1e6, Persistence()) == 20 * 40
