from __future__ import annotations

import math

import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "60"])
@pytest.mark.parametrize(
    "name", ["step_seconds", "silence_seconds", "scheduler_seconds", "database_seconds"]
)
def test_a_timeout_is_a_number_of_seconds(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be a number of seconds > 0"):
        dt.Timeouts(**{name: value})  # type: ignore[arg-type]


def test_timeouts_report_all_problems_together() -> None:
    with pytest.raises(ConfigurationError) as refused:
        dt.Timeouts(step_seconds=0, silence_seconds=-1)
    assert len(refused.value.problems) == 2


def test_only_a_step_may_take_for_ever() -> None:
    assert dt.Timeouts().step_seconds is None
    with pytest.raises(ConfigurationError, match="silence_seconds"):
        dt.Timeouts(silence_seconds=None)  # type: ignore[arg-type]
