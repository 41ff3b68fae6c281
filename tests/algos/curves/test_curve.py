"""A prediction is what the log holds of it, however far from zero its scores are."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dasktune.algos.curves import LEVELS, Curve, Persistence, Prediction
from dasktune.algos.curves.curve import Question

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
"""All of them, and below those that lie close together far from zero."""

ROWS = st.one_of(
    st.lists(FLOATS, min_size=len(LEVELS), max_size=len(LEVELS)),
    st.builds(
        lambda offset, width, parts: [offset + width * part for part in parts],
        st.floats(-1e17, 1e17),
        st.floats(1e-12, 1e6),
        st.lists(st.floats(0, 1), min_size=len(LEVELS), max_size=len(LEVELS)),
    ),
).map(sorted)


def predicted(row: list[float], deviation: float = 0.0) -> Prediction:
    return Prediction(after=1, steps=(2,), scores=(tuple(row),), deviations=(deviation,))


def logged(prediction: Prediction) -> Prediction:
    """Return a prediction after writing and reading it."""
    return Prediction.from_json(json.loads(json.dumps(prediction.to_json(), allow_nan=False)))


@given(row=ROWS, deviation=st.floats(0, 1e300))
@example(row=[*[1.0407889236330954] * 14, 1.0620295138638665], deviation=0.0)  # reaches further
def test_what_was_logged_once_is_logged_the_same_again(row: list[float], deviation: float) -> None:
    once = logged(predicted(row, deviation))
    assert logged(once) == once


@given(row=ROWS)
def test_levels_are_off_by_no_more_than_a_trifle_of_their_range(row: list[float]) -> None:
    (found,) = logged(predicted(row)).scores
    reach = row[-1] / 2 - row[0] / 2
    assert all(
        math.isclose(a, b, rel_tol=0, abs_tol=1e-7 * reach) for a, b in zip(found, row, strict=True)
    )


def test_levels_far_from_zero_stay_apart() -> None:
    curve = Curve(steps=(1, 2, 3), scores=(1e16, 1e16 + 2, 1e16 + 8), max_steps=9)
    asked = Question(predictor=Persistence(), curve=curve, steps=(5,))
    answer, exact = asked.answer(), Persistence().predict(curve, (5,))
    assert answer.scores == exact.scores
    assert answer.chances(1e16 + 8) == exact.chances(1e16 + 8)
    assert logged(answer) == answer


def test_scores_near_zero_are_short() -> None:
    (row,) = predicted([level / 3 for level in LEVELS]).to_json()["scores"]  # type: ignore[misc]
    assert row == [float(f"{level / 3:.9g}") for level in LEVELS]


@pytest.mark.parametrize("row", [[0.1 + 0.2] * len(LEVELS), [0.0] * len(LEVELS)])
def test_scores_without_a_range_are_exact(row: list[float]) -> None:
    assert logged(predicted(row)).scores == (tuple(row),)
