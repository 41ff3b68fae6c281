"""The columns of a node against the set and the dict that they stand for."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.graph.known import Measured, Steps
from dasktune.types import Metrics, Step

STEPS = st.integers(0, 12)
METRICS = st.dictionaries(
    st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=False), max_size=2
)
REPORTS = st.lists(st.tuples(STEPS, METRICS), max_size=12)


@given(st.lists(st.tuples(st.booleans(), STEPS)), STEPS)
def test_steps_are_those_of_a_set_ascending(changes: list[tuple[bool, Step]], part: Step) -> None:
    steps, expected = Steps(), set[Step]()
    for is_added, step in changes:
        (steps.add if is_added else steps.discard)(step)
        (expected.add if is_added else expected.discard)(step)
    assert [*steps] == sorted(expected)
    assert [step in steps for step in range(-1, 14)] == [step in expected for step in range(-1, 14)]
    low, high = steps.split(part)
    assert ([*low], [*high]) == (
        [step for step in steps if step <= part],
        [step for step in steps if step > part],
    )


@given(REPORTS, STEPS)
def test_measured_keeps_what_a_dict_does(reports: list[tuple[Step, Metrics]], part: Step) -> None:
    measured, expected = Measured(reports), dict[Step, Metrics]()
    for step, metrics in reports:
        expected.setdefault(step, metrics)
    assert [*measured.items()] == sorted(expected.items(), key=lambda report: report[0])
    assert [[*metrics] for metrics in measured.values()] == [
        [*expected[step]] for step in sorted(expected)
    ]
    assert (len(measured), part in measured) == (len(expected), part in expected)
    low, high = measured.split(part)
    assert {**low, **high} == expected
    assert all(step <= part for step in low)
    assert all(step > part for step in high)


def test_measured_gives_back_every_float() -> None:
    values = {"nan": math.nan, "infinite": -math.inf, "zero": -0.0, "least": 5e-324}
    metrics = Measured([(1, values)])[1]
    assert repr(metrics) == repr(values)


def test_metrics_with_a_name_of_their_step_are_kept() -> None:
    reports = {step: {"loss": 0.5, f"loss_{step}": float(step)} for step in range(2000)}
    assert dict(Measured(reports.items())) == reports


def test_metrics_too_large_for_a_float_leave_no_trace() -> None:
    measured = Measured([(1, {"loss": 0.5})])
    with pytest.raises(OverflowError):
        measured.add(2, {"loss": 10**400})
    assert dict(measured) == {1: {"loss": 0.5}}


def test_steps_of_other_integer_types_are_found() -> None:
    step = np.int64(3)
    assert step in Measured([(3, {"loss": 0.5})])
    assert step in Steps([3])


def test_reader_finds_a_step_while_another_is_inserted() -> None:
    class Inserting(Measured):
        """Adds step 2, as another thread may, after a reader of step 5 has begun."""

        __slots__ = ()

        def _place_of(self, rows: array[float], step: int) -> int:
            if step == 5:
                self.add(2, {"loss": 2.0})
            return super()._place_of(rows, step)

    for read in (Inserting.__contains__, Inserting.__getitem__):
        measured = Inserting((step, {"loss": 1.0}) for step in (1, 3))
        rows = measured._rows
        rows.extend((5.0, 1.0))
        assert read(measured, 5)
        assert [*measured] == [1, 2, 3, 5]
