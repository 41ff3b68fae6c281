"""The mixture follows the rules that have predicted the study's other trials well."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dasktune.algos.curves import Branch, Curve, Mixture, Persistence, Prediction
from dasktune.algos.curves.curve import future_steps
from dasktune.algos.curves.mixture.mixture import FORM
from dasktune.algos.curves.network.prior_fitted import packaged
from dasktune.testing import PredictorConformance
from tests.effort import examples

STEPS = tuple(range(1, 61))
PART, SEEN = 35, 30


class Other:
    """Predicts as `Mixture` does, under another name."""

    def predict(self, curve: Curve, steps: tuple[int, ...], *, seed: int = 0) -> Prediction:
        return Mixture().predict(curve, steps, seed=seed)

    def identity(self) -> dict[str, object]:
        return {"predictor": "Other"}


class TestConformance(PredictorConformance):
    def make(self) -> Mixture:
        return Mixture()

    def make_other(self) -> Other:
        return Other()


def dropped(seed: int, end: float = 0.9) -> tuple[float, ...]:
    """Return an accuracy at rest at 0.63 until its rate drops; all are the same until there."""
    steps = np.arange(1.0, 61.0)
    shared, own = (np.random.default_rng(each).standard_normal(60) for each in (0, seed))
    scores = 0.63 * (1 - np.exp(-steps / 6)) + 0.005 * shared
    after = end - (end - 0.63) * np.exp(-(steps - PART) / 1.5) + 0.005 * own
    return tuple(np.where(steps > PART, after, scores).tolist())


def rates(after: float) -> tuple[tuple[int, float], ...]:
    return ((0, 0.1), (PART, after))


def with_siblings(end: float, count: int = 3) -> Curve:
    """Return a curve that was the same as its siblings so far, and has the same drop ahead."""
    siblings = tuple(
        Branch(at=PART, steps=STEPS, scores=dropped(number, end), rates=rates(0.01 + number / 1e3))
        for number in range(1, count + 1)
    )
    return Curve(
        steps=STEPS[:SEEN],
        scores=dropped(9)[:SEEN],
        max_steps=60,
        low=0.0,
        high=1.0,
        rates=rates(0.01),
        siblings=siblings,
    )


def ask(curve: Curve, predictor: Mixture | Persistence | None = None) -> Prediction:
    steps = future_steps(curve.last_step, curve.max_steps)
    return (predictor or Mixture()).predict(curve, steps)


@pytest.mark.parametrize("end", [0.66, 0.75, 0.9])
def test_siblings_with_the_same_drop_ahead_are_followed(end: float) -> None:
    prediction = ask(with_siblings(end))
    low, high = prediction.interval(0.8)[-1]
    assert prediction.medians[-1] == pytest.approx(end, abs=0.01)
    assert low <= end <= high
    assert high - low < 0.1
    before = prediction.steps.index(34)
    assert prediction.medians[before] == pytest.approx(0.63, abs=0.01)


def study(count: int, seed: int = 0, *, known: int = 60) -> list[Branch]:
    """Return trials that rise to levels of their own, which the first steps do not tell."""
    rng = np.random.default_rng(seed)
    steps = np.arange(1.0, 61.0)
    branches = []
    for _ in range(count):
        level = 0.5 + 0.1 * rng.standard_normal()
        scores = level * (1 - np.exp(-steps / 20)) + 0.01 * rng.standard_normal(60)
        branches.append(Branch(at=0, steps=STEPS[:known], scores=tuple(scores[:known].tolist())))
    return branches


def question(branches: list[Branch], number: int, seen: int = 12) -> Curve:
    return Curve(
        steps=STEPS[:seen],
        scores=branches[number].scores[:seen],
        max_steps=60,
        low=0.0,
        high=1.0,
        others=tuple(each for place, each in enumerate(branches) if place != number),
    )


def test_bands_hold_with_others_and_are_wide_without() -> None:
    branches = study(30)
    truths = [each.scores[-1] for each in branches]
    asked = [question(branches, number) for number in range(30)]
    held, widths = [], []
    for curve, truth in zip(asked, truths, strict=True):
        low, high = ask(curve).interval(0.8)[-1]
        held.append(low <= truth <= high)
        widths.append(high - low)
    assert 0.7 <= np.mean(held) <= 0.95
    alone = [ask(replace(curve, others=())).interval(0.8)[-1] for curve in asked]
    pairs = zip(alone, truths, strict=True)
    assert np.mean([low <= truth <= high for (low, high), truth in pairs]) >= 0.75
    assert np.median([high - low for low, high in alone]) > 2 * np.median(widths)


def test_curves_that_fall_later_make_predictions_fall() -> None:
    steps = np.arange(1.0, 61.0)
    others = tuple(
        Branch(
            at=0,
            steps=STEPS,
            scores=tuple((level - 0.01 * np.maximum(steps - 30, 0)).tolist()),
        )
        for level in np.linspace(0.5, 0.7, 8)
    )
    curve = Curve(
        steps=STEPS[:20], scores=(0.6,) * 20, max_steps=60, low=0.0, high=1.0, others=others
    )
    assert ask(curve).medians[-1] == pytest.approx(0.3, abs=0.02)


def test_medians_go_on_where_most_others_were_stopped() -> None:
    rng = np.random.default_rng(7)
    steps = np.arange(1.0, 25.0)
    gains, paces = rng.uniform(0.2, 0.9, (13, 1)), rng.uniform(2, 20, (13, 1))
    rows = 0.1 + gains * (1 - np.exp(-steps / paces))
    rung, seen = 13, 6
    rows = rows[np.argsort(rows[:, rung - 1])]
    stops = [*[rung] * 9, *[24] * 4]
    others = tuple(
        Branch(at=0, steps=STEPS[:stop], scores=tuple(row[:stop].tolist()))
        for row, stop in zip(rows[1:], stops[1:], strict=True)
    )
    worst = tuple(rows[0][:seen].tolist())
    curve = Curve(steps=STEPS[:seen], scores=worst, max_steps=24, low=0.0, high=1.0, others=others)
    medians = Mixture().predict(curve, tuple(range(seen + 1, 23))).medians
    # The mean of the 4 that went on is 0.2 above that of all.
    assert np.abs(np.diff(medians)).max() < 0.05


def test_what_others_report_later_alone_changes_nothing() -> None:
    branches = study(6, known=12)
    curve = question(branches, 0)
    assert ask(curve) == ask(replace(curve, others=()))


def test_its_identity_names_the_version_of_its_rules() -> None:
    identity = {"predictor": "Mixture", "form": FORM, "weights": packaged().digest}
    assert Mixture().identity() == identity


@given(
    st.lists(st.one_of(st.floats(allow_nan=True), st.floats(-1, 1)), min_size=2, max_size=30),
    st.integers(1, 29),
    st.integers(0, 3),
    st.booleans(),
)
@example([0.0, 0.0, 4e-242, 0.0], 3, 0, False)
@example([5e-324, 0.0, 0.0], 2, 1, False)
@settings(max_examples=examples(60), deadline=None)
def test_any_curve_has_a_finite_prediction(
    scores: list[float], seen: int, count: int, is_bounded: bool
) -> None:
    seen = min(seen, len(scores) - 1)
    if not any(map(np.isfinite, scores[:seen])):
        return
    steps = tuple(range(len(scores)))
    other = Branch(at=0, steps=steps, scores=tuple(scores), rates=((0, 0.1), (2, 0.01)))
    curve = Curve(
        steps=steps[:seen],
        scores=tuple(scores[:seen]),
        max_steps=40,
        low=min((each for each in scores if np.isfinite(each)), default=0.0)
        if is_bounded
        else None,
        rates=((0, 0.1), (3, 0.01)),
        others=(other,) * count,
    )
    ask(curve)
