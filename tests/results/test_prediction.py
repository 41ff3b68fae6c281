"""Learning curves of trials, questions to predictors, and the chances of targets."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune._engine.trials import ADDED, TrialRecord
from dasktune._results.prediction import (
    CurveReader,
    TrialPrediction,
    predict_trial,
    seconds_of_steps,
)
from dasktune.algos.curves import LEVELS, Curve, Persistence, Prediction
from dasktune.algos.curves.curve import MOST_SIBLINGS
from dasktune.algos.curves.observed import ObservedCurves
from dasktune.errors import ConfigurationError
from dasktune.graph.known import Measured
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, MultiStep, Piecewise, Warmup
from dasktune.storage.database.rows import StageRow
from dasktune.types import Direction, Register, Sequences, Step, TrialState

END = 12


class Rising:
    """Predicts, with a fixed spread, that the score grows by a hundredth a step."""

    spread = 0.1

    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        last = curve.measured[-1][1]
        rows = tuple(
            tuple(
                last + 0.01 * (step - curve.last_step) + self.spread * (one - 0.5) for one in LEVELS
            )
            for step in steps
        )
        return Prediction(
            after=curve.last_step, steps=steps, scores=rows, deviations=(0.0,) * len(steps)
        )

    def identity(self) -> dict[str, object]:
        return {"predictor": "Rising"}


def reader(
    trials: Mapping[int, Sequences],
    direction: Direction = Direction.MAXIMIZE,
    *,
    trained: Step = 8,
    tuner: int = 0,
    **more: object,
) -> CurveReader:
    """Return a reader of trials whose metric is step / 100, up to the step `trained`."""
    plan = SearchPlan("0" * 32)
    records = {}
    for number, sequences in trials.items():
        plan.register(number, sequences, END)
        records[number] = TrialRecord(
            number=number,
            tuner=tuner,
            local=number,
            params={},
            sequences=sequences,
            max_steps=END,
            state=TrialState.PAUSED,
            steps=4,
        )
    for node in plan:
        last = min(node.stop, trained)
        for step in range(node.start + 1, last + 1):
            node.metrics.add(step, {"score": step / 100})
    return CurveReader(plan=plan, records=records, metric="score", direction=direction, **more)  # type: ignore[arg-type]


ALIKE: Mapping[int, Sequences] = {
    0: {"lr": Constant(0.1)},
    1: {"lr": Piecewise([0.1, 0.2], boundaries=[4])},
    2: {"lr": Piecewise([0.1, 0.2, 0.3], boundaries=[4, 6])},
    3: {"lr": Constant(0.7)},
}


def test_curve_has_all_values_on_the_path_of_a_trial() -> None:
    found = reader(ALIKE).curve(2)
    assert found.steps == tuple(range(1, 9)), "also beyond its own last report, and shared ones"
    assert found.scores == tuple(step / 100 for step in range(1, 9))
    assert found.max_steps == END


def test_curve_of_minimized_metric_is_negated_with_bounds() -> None:
    found = reader(ALIKE, Direction.MINIMIZE, bounds=(0.0, 2.0)).curve(0)
    assert found.scores[:2] == (-0.01, -0.02)
    assert (found.low, found.high) == (-2.0, 0.0)
    assert math.copysign(1, found.high or 0.0) == 1, "not minus nought"
    upward = reader(ALIKE, bounds=(-math.inf, 1)).curve(0)
    assert (upward.low, upward.high) == (None, 1.0)


def test_siblings_are_ordered_by_shared_steps() -> None:
    found = reader(ALIKE).curve(2).siblings
    assert [one.at for one in found] == [6, 4], "0.7 shares nothing"
    assert [one.rates for one in found] == [((0, 0.1), (4, 0.2)), ((0, 0.1),)]
    assert all(one.steps == tuple(range(1, 9)) for one in found)


def test_siblings_without_own_values_are_left_out() -> None:
    assert reader(ALIKE, trained=4).curve(0).siblings == ()
    assert [one.at for one in reader(ALIKE, trained=6).curve(0).siblings] == [4, 4]


def test_siblings_are_those_that_a_running_tuner_has() -> None:
    curves = ObservedCurves()
    for number, sequences in ALIKE.items():
        curves.register(Register(trial=number, sequences=sequences, max_steps=END))
        for step in range(1, 9):
            curves.observe(number, step, step / 100)
    for trial in ALIKE:
        assert reader(ALIKE).curve(trial) == curves.curve(trial, max_steps=END)


def test_siblings_are_limited_in_number() -> None:
    many = {
        number: {"lr": Piecewise([0.1, 1.0 + number], boundaries=[1 + number % 7])}
        for number in range(4 * MOST_SIBLINGS)
    }
    found = reader(many).curve(0).siblings
    assert len(found) == MOST_SIBLINGS
    assert found[0].at == max(one.at for one in found)


def test_curve_has_the_future_learning_rate() -> None:
    trials: Mapping[int, Sequences] = {
        0: {"lr": MultiStep(0.1, milestones=[6, 9], gamma=0.5)},
        1: {"learning_rate": Warmup(2, 0.4) >> Constant(0.4)},
        2: {"rate": Constant(0.3), "lr": Constant(1.0)},
        3: {"lr": Constant("cosine")},
        4: {"momentum": Constant(0.9)},
    }
    known = [reader(trials).curve(number).rates for number in trials]
    assert known[0] == ((0, 0.1), (6, 0.05), (9, 0.025))
    assert known[1] == ((0, 0.2), (1, 0.4))
    assert known[2] == ((0, 1.0),)
    assert known[3:] == [(), ()]
    assert reader(trials, rate="rate").curve(2).rates == ((0, 0.3),)
    with pytest.raises(ConfigurationError, match="must have the hyper-parameter 'rate'; it has lr"):
        reader(trials, rate="rate").curve(0)


def test_learning_rate_ends_with_its_sequence() -> None:
    ends: Mapping[int, Sequences] = {0: {"lr": Constant(0.1)[:10] >> Constant(0.2)[:10]}}
    assert reader(ends).curve(0, until=100).rates == ((0, 0.1), (10, 0.2))


def test_prediction_has_the_direction_of_the_metric() -> None:
    found = predict_trial(reader(ALIKE, Direction.MINIMIZE), 0, steps=[9, 16], predictor=Rising())
    assert found.steps == (9, 16)
    assert found.medians == pytest.approx((0.07, 0.0)), "the loss falls"
    low, high = found.interval(0.8)[0]
    assert (low, high) == pytest.approx((0.03, 0.11))
    assert found.measured[-1] == (8, 0.08)
    assert found.chances(0.005)[1] == pytest.approx(0.55)
    assert found.chance(0.005) == pytest.approx(0.55)
    assert found.chance(1.0) == 1.0


def test_prediction_default_steps_go_to_the_end() -> None:
    found = predict_trial(reader(ALIKE), 0)
    assert found.steps == (9, 10, 11, 12)
    further = predict_trial(reader(ALIKE), 0, steps=40)
    assert (further.steps, further.curve.max_steps) == ((40,), END), "it is not trained further"


def test_target_already_reached_has_chance_1() -> None:
    found = predict_trial(reader(ALIKE), 0, predictor=Rising())
    assert found.reached(0.03) == 3
    assert (found.chance(0.03), found.expected_steps(0.03)) == (1.0, 0.0)
    assert found.reached(0.09) is None


def test_target_beyond_bounds_has_chance_0() -> None:
    found = predict_trial(reader(ALIKE, bounds=(0, 1)), 0, predictor=Persistence())
    assert found.chance(1.0001) == 0
    assert found.expected_steps(1.0001) is None
    falling = reader(ALIKE, Direction.MINIMIZE, bounds=(0, None))
    assert predict_trial(falling, 0, predictor=Persistence()).chance(-0.001) == 0
    assert predict_trial(reader(ALIKE), 0, predictor=Persistence()).chance(0.1) > 0


def test_expected_steps_is_mean_over_growth_of_chance() -> None:
    found = predict_trial(reader(ALIKE), 0, steps=[9, 10, 11], predictor=Rising(), step_seconds=2.0)
    assert found.chances(0.1) == pytest.approx((0.4, 0.5, 0.6))
    expected = (1 * 0.4 + 2 * 0.1 + 3 * 0.1) / 0.6
    assert found.expected_steps(0.1) == pytest.approx(expected)
    assert found.expected_seconds(0.1) == pytest.approx(2 * expected)
    # Between predicted steps the chance grows evenly: after 1, 2 or 3 steps alike.
    assert predict_trial(reader(ALIKE), 0, steps=11, predictor=Rising()).expected_steps(
        0.1
    ) == pytest.approx(2)


@given(
    st.lists(st.lists(st.floats(-1, 2), min_size=15, max_size=15), min_size=1, max_size=5),
    st.floats(-1, 2),
    st.booleans(),
)
def test_chances_and_expected_steps_are_in_range(
    rows: list[list[float]], target: float, rises: bool
) -> None:
    steps = tuple(range(4, 4 + 3 * len(rows), 3))
    found = TrialPrediction(
        trial=0,
        metric="score",
        direction=Direction.MAXIMIZE if rises else Direction.MINIMIZE,
        curve=Curve(steps=(1, 3), scores=(-5.0, -4.0), max_steps=20),
        prediction=Prediction(
            after=3,
            steps=steps,
            scores=tuple(tuple(sorted(row)) for row in rows),
            deviations=(0.0,) * len(rows),
        ),
    )
    target = target if rises else -target
    assert 0 <= found.chance(target) <= 1
    expected = found.expected_steps(target)
    assert expected is None or 1 <= expected <= steps[-1] - 3
    assert (expected is None) == (found.chance(target) == 0)
    for narrow, wide in zip(found.interval(0.5), found.interval(0.95), strict=True):
        assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


@pytest.mark.parametrize(
    "scores",
    [
        [0.5] * 8,
        [0.1, 0.2],
        [0.3],
        [math.nan, 0.2, math.inf, 0.25],
        [0.1, 0.2, math.nan],
    ],
    ids=["constant", "two", "one", "holes", "last"],
)
@pytest.mark.parametrize("direction", Direction)
def test_prediction_of_odd_curves_is_defined(scores: list[float], direction: Direction) -> None:
    read = reader(ALIKE, direction, trained=0, bounds=(0, 1))
    node = read.plan.nodes_of(3)[0]
    for step, score in enumerate(scores, 1):
        node.metrics.add(step, {"score": score})
    found = predict_trial(read, 3)
    assert found.steps == tuple(range(len(scores) + 1, END + 1))
    assert all(math.isfinite(one) for one in found.medians)
    assert all(0 <= low <= high <= 1 for low, high in found.interval(0.95))
    assert 0 <= found.chance(0.9) <= 1


def test_curve_missing_metric_is_nan() -> None:
    read = reader(ALIKE)
    node = read.plan.nodes_of(3)[0]
    node.metrics = Measured({**node.metrics, 8: {"other": 1.0}}.items())
    assert predict_trial(read, 3).measured[-1] == (7, 0.07)


@pytest.mark.parametrize(
    ("trial", "options", "message"),
    [
        (7, {}, "trial must be one of 0 to 3, got 7"),
        (0, {"steps": 8}, "steps of trial 0 must be after the last measured one, 8, got 8"),
        (0, {"steps": [9, 9]}, r"steps must be ascending whole numbers >= 1, got \[9, 9\]"),
        (0, {"steps": 9.5}, "steps must be ascending whole numbers >= 1, got 9.5"),
        (0, {"steps": []}, r"steps must be ascending whole numbers >= 1, got \[\]"),
        (0, {"predictor": "best"}, "predictor must be one of CurveEnsemble, .* got 'best'"),
        (0, {"predictor": Persistence}, "predictor must be one of .* or an instance"),
    ],
)
def test_predict_invalid_argument_is_refused(
    trial: int, options: Mapping[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        predict_trial(reader(ALIKE), trial, **options)  # type: ignore[arg-type]


def test_predict_trial_without_finite_metric_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="trial 0 has no finite score yet: there is noth"):
        predict_trial(reader(ALIKE, trained=0), 0)
    empty = reader(ALIKE, trained=0)
    node = empty.plan.nodes_of(3)[0]
    node.metrics = Measured({**node.metrics, 1: {"score": math.nan}}.items())
    with pytest.raises(ConfigurationError, match="no finite score"):
        predict_trial(empty, 3)
    with pytest.raises(ConfigurationError, match="trial must be one of a study that has some"):
        predict_trial(reader({}), 0)


def test_predict_added_trial_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="trial 1 was added with its result"):
        predict_trial(reader(ALIKE, tuner=ADDED), 1)


def test_predict_trial_at_its_end_is_refused_with_its_value() -> None:
    done = reader(ALIKE, Direction.MINIMIZE, trained=END)
    with pytest.raises(
        ConfigurationError, match=r"trial 0 is at its end, step 12, with score 0\.12: only steps"
    ):
        predict_trial(done, 0)
    assert predict_trial(done, 0, steps=20).steps == (20,)


@pytest.mark.parametrize(
    "bounds", [(1, 0), (0, 0), (0,), "01", 3, None, ("a", 1), (math.nan, 1), (True, 2)]
)
def test_predict_invalid_bounds_are_refused(bounds: object) -> None:
    with pytest.raises(ConfigurationError, match=r"bounds must be \(lowest, highest\) with low"):
        reader(ALIKE, bounds=bounds)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((0.035, 1), r"values of score, 0\.035 to 1, got 0\.01 at step 1 of trial 0"),
        ((None, 0.065), r"values of score, -inf to 0\.065, got 0\.07 at step 7 of trial 0"),
        ([2, 3], r"got 0\.01 at step 1"),
    ],
)
def test_predict_value_beyond_bounds_is_refused(
    bounds: tuple[float | None, float | None], message: str, direction: Direction
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        predict_trial(reader(ALIKE, direction, bounds=bounds), 0)


def test_bounds_include_their_ends_and_ignore_nan() -> None:
    read = reader(ALIKE, bounds=(0.01, 0.08))
    node = read.plan.nodes_of(0)[0]
    node.metrics = Measured({**node.metrics, 2: {"score": math.inf}}.items())
    low, high = predict_trial(read, 0).interval(0.95)[-1]
    assert 0.01 <= low <= high <= 0.08


@pytest.mark.parametrize("target", [math.nan, math.inf, "0.7", None, True])
def test_invalid_target_is_refused(target: object) -> None:
    found = predict_trial(reader(ALIKE), 0)
    with pytest.raises(ConfigurationError, match="target must be "):
        found.chance(target)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="probability must be between 0 and 1, got 80"):
        found.interval(80)


def test_prediction_document_has_the_target() -> None:
    found = predict_trial(
        reader(ALIKE, Direction.MINIMIZE), 0, predictor=Rising(), step_seconds=0.5
    )
    plain = found.to_json()
    assert (plain["step"], plain["value"], plain["steps"]) == (8, 0.08, [9, 10, 11, 12])
    assert "target" not in plain
    told = found.to_json(0.0)
    assert told["reached"] is None
    assert told["chance"] == pytest.approx(0.1)
    assert told["expected_steps"] == found.expected_steps(0.0) is not None
    assert told["expected_seconds"] == found.expected_seconds(0.0)
    assert found.to_json(0.5)["reached"] == 1


def stage(trials: list[int], seconds: float | None, steps: int = 4) -> StageRow:
    return StageRow(
        study_id=1,
        attempt="a",
        key="0",
        start=0,
        stop=4,
        worker="w",
        status="trained",
        started=100.0,
        ended=None if seconds is None else 100 + seconds,
        steps=steps,
        repeated=0,
        trials=trials,
    )


def test_seconds_of_steps_prefers_own_stages() -> None:
    stages = [stage([0, 1], 2.0), stage([1], 4.0), stage([0], None), stage([0], 1.0, steps=0)]
    assert seconds_of_steps(stages, 0) == 0.5
    assert seconds_of_steps(stages, 1) == 0.75
    assert seconds_of_steps(stages, 2) == 0.75, "of all"
    assert seconds_of_steps([], 0) is None
