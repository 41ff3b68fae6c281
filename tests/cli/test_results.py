"""How trials are ranked and shown."""

from __future__ import annotations

import math

import pytest

from dasktune._engine.trials import Trial
from dasktune.cli.results import failed, last_line, ranking, table
from dasktune.types import Direction, TrialState


def trial(number: int, value: float | None, state: str = "COMPLETE", error: str = "") -> Trial:
    return Trial(
        number=number,
        state=TrialState(state),
        params={},
        sequences={},
        steps=1,
        values=None if value is None else [value],
        metrics={},
        error=error or None,
        user_attrs={},
    )


TRIALS = [
    trial(0, 0.5),
    trial(1, math.nan),
    trial(2, 0.25, "PRUNED"),
    trial(3, 0.0, "FAIL", "Traceback ...\n  line\nValueError: no\n"),
    trial(4, None, "RUNNING"),
    trial(5, 0.25),
    trial(6, -math.inf),
]


@pytest.mark.parametrize(
    ("direction", "numbers"), [("minimize", [2, 5, 0]), ("maximize", [0, 2, 5])]
)
def test_finite_values_of_trials_that_did_not_fail_are_ranked(
    direction: str, numbers: list[int]
) -> None:
    assert [one.number for one in ranking(TRIALS, Direction(direction))] == numbers


def test_a_failed_trial_is_named_by_the_last_line_of_its_error() -> None:
    assert [last_line(one) for one in failed(TRIALS)] == ["ValueError: no"]
    assert last_line(trial(0, None, "FAIL")) == "failed"


def test_a_tables_columns_are_as_wide_as_their_contents() -> None:
    assert table(["n", "value"], [[10, 0.123456789], [2, "Constant(1)"]]) == [
        "n   value",
        "10  0.123457",
        "2   Constant(1)",
    ]
