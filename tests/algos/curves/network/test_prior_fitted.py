"""The small network knows what is coming: drops of the rate, siblings, noise, bounds."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.algos.curves import Branch, Curve, Prediction, PriorFitted
from dasktune.algos.curves.curve import future_steps
from dasktune.algos.curves.network.prior_fitted import Weights, packaged
from dasktune.errors import ConfigurationError
from dasktune.testing import PredictorConformance
from tests.effort import examples

NOISE = 0.004
RATE, DROP = ((0, 0.1),), ((0, 0.1), (30, 0.01))


class TestConformance(PredictorConformance):
    def make(self) -> PriorFitted:
        return PriorFitted()

    def make_other(self) -> PriorFitted:
        return PriorFitted(weights=replace(packaged(), digest="other"))


def rising(count: int = 28, *, noise: float = NOISE, **others: object) -> Curve:
    """Return an accuracy that has come to rest at some 0.7."""
    x = np.arange(1, count + 1)
    wobble = noise * np.random.default_rng(3).standard_normal(count)
    scores = 0.7 - 0.5 * np.exp(-x / 5) + wobble
    known: dict[str, object] = {"max_steps": 45, "low": 0.0, "high": 1.0, "rates": RATE, **others}
    return Curve(steps=tuple(x.tolist()), scores=tuple(scores.tolist()), **known)  # type: ignore[arg-type]


def last(curve: Curve) -> float:
    """Return the median that is predicted of the last score."""
    return ask(curve).medians[-1]


def ask(curve: Curve) -> Prediction:
    return PriorFitted().predict(curve, future_steps(curve.last_step, curve.max_steps))


def test_prediction_rises_before_a_drop_of_the_learning_rate() -> None:
    kept, dropped = rising(rates=RATE), rising(rates=DROP)
    assert last(dropped) > last(kept) + 0.005
    before, after = (PriorFitted().predict(dropped, (30, 36)).medians[at] for at in (0, 1))
    assert after > before + 0.005


def test_what_a_sibling_gained_is_expected_here_too() -> None:
    steps = tuple(range(1, 46))
    shared = rising().scores
    gained = (*shared, *(0.70 + 0.08 * min(n / 3, 1) for n in range(17)))
    stayed = (*shared, *(0.70 for _ in range(17)))
    at = {"at": 28, "steps": steps, "rates": RATE}
    better = rising(siblings=(Branch(scores=gained, **at),))  # type: ignore[arg-type]
    same = rising(siblings=(Branch(scores=stayed, **at),))  # type: ignore[arg-type]
    assert last(better) > last(same) + 3 * NOISE


def test_a_noisy_plateau_is_covered() -> None:
    rng = np.random.default_rng(8)
    hits = []
    for _ in range(40):
        scores = 0.6 + 0.02 * rng.standard_normal(50)
        curve = Curve(
            steps=tuple(range(1, 51)), scores=tuple(scores.tolist()), max_steps=60, low=0, high=1
        )
        low, high = ask(curve).interval(0.8)[-1]
        hits.append((low <= 0.6 + 0.02 * rng.standard_normal(), high - low))
    assert 0.6 <= np.mean([hit for hit, _ in hits]) <= 1.0
    assert 0.03 < np.median([width for _, width in hits]) < 0.12


def test_a_curve_that_falls_is_expected_to_go_on_falling() -> None:
    losses = [-0.5 - 0.04 * step for step in range(20)]
    curve = Curve(steps=tuple(range(1, 21)), scores=tuple(losses), max_steps=40, high=0.0)
    assert last(curve) < losses[-1]


def test_more_seen_is_surer() -> None:
    widths = [
        np.subtract(*ask(rising(count, max_steps=60)).interval(0.8)[-1]) for count in (4, 15, 50)
    ]
    assert widths[0] < widths[1] < widths[2] < 0


def test_little_seen_gives_a_wide_answer() -> None:
    for scores in ((0.4,), (0.4, 0.45)):
        curve = Curve(steps=(1, 2)[: len(scores)], scores=scores, max_steps=50, low=0, high=1)
        low, high = ask(curve).interval(0.9)[-1]
        assert high - low > 0.1


def test_beyond_its_end_a_curve_is_taken_for_one_that_goes_on() -> None:
    short, long = (rising(max_steps=end, rates=DROP) for end in (29, 90))
    assert PriorFitted().predict(short, (60, 90)) == PriorFitted().predict(long, (60, 90))


def test_a_prediction_takes_milliseconds() -> None:
    sibling = Branch(at=20, steps=tuple(range(1, 46)), scores=(0.5,) * 45, rates=DROP)
    curve = rising(28, max_steps=400, siblings=(sibling,) * 8)
    ask(curve)
    took = []
    for _ in range(10):
        began = time.process_time()  # of other threads, too: clusters that others use are there
        ask(curve)
        took.append(time.process_time() - began)
    assert min(took) < 0.05


@settings(max_examples=examples(60), deadline=None)
@given(
    scores=st.lists(
        st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, 0.0, 1e300]),
        min_size=1,
        max_size=30,
    ),
    bounded=st.booleans(),
)
def test_any_scores_give_finite_ascending_levels(scores: list[float], bounded: bool) -> None:
    if not any(map(math.isfinite, scores)):
        scores = [*scores, 0.5]
    curve = Curve(
        steps=tuple(range(len(scores))),
        scores=tuple(scores),
        max_steps=100,
        low=-1.0 if bounded else None,
        high=1.0 if bounded else None,
    )
    found = ask(curve)
    assert np.isfinite(found.scores).all()
    assert np.isfinite(found.deviations).all()
    if bounded:
        assert np.abs(found.scores).max() <= 1


def test_the_identity_names_the_weights() -> None:
    found = PriorFitted().identity()
    assert found == {"predictor": "PriorFitted", "weights": packaged().digest}
    assert len(packaged().digest) == 16


def test_weights_survive_a_file_unless_of_another_form() -> None:
    arrays = {
        "form": np.array(0),
        "stretch": np.zeros((3, 2)),
        "mean": np.zeros((1, 1, 2)),
        "deviation": np.ones((1, 1, 2)),
    }
    file = BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    file.seek(0)
    with pytest.raises(ConfigurationError, match="must be for features of form"):
        Weights.load(file)
