from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

import dasktune as dt
from dasktune._engine import timeouts as waits
from dasktune.errors import ConfigurationError

PACKAGE = Path(waits.__file__).parents[1]
NO_WAITS = {
    *("AHEAD_SECONDS", "FAR_SECONDS", "SAME_SECONDS", "SLOW_SECONDS"),  # thresholds
    *("LOAD_SECONDS", "LOOKAHEAD_SECONDS", "TICK_SECONDS"),  # estimates, and a rounding
    *("FRESH_SECONDS", "IDLE_SECONDS", "RATE_SECONDS", "REDRAW_SECONDS"),  # of displays
    *("AWAY_SECONDS", "ASIDE_SECONDS", "LONGEST_ASIDE_SECONDS"),  # of decisions, below this layer
    *("PATIENCE_SECONDS", "TURN_SECONDS", "MOST_OWED_SECONDS"),
    "EPOCH_SECONDS",  # how much a check trains
    "CLOSE_SECONDS",  # the name of a variable
}


def test_waits_relate_as_their_module_says() -> None:
    assert waits.LOOP_SECONDS < waits.HEARTBEAT_SECONDS < waits.NO_HEARTBEAT_SECONDS / 2
    assert 3 * waits.RENEW_SECONDS + waits.LEASE_STORE_SECONDS < waits.LEASE_SECONDS
    assert waits.LEASE_POLL_SECONDS[1] < waits.RENEW_SECONDS
    assert waits.LEASE_SECONDS < waits.LEASE_LIMIT_SECONDS < waits.STALE_SECONDS
    assert waits.LEASE_STORE_SECONDS < waits.LEASE_SECONDS < waits.STORE_SECONDS
    assert waits.STORE_SECONDS <= waits.LAST_WRITES_SECONDS
    assert 4 * waits.STORE_SECONDS < waits.REMOVAL_MARK_SECONDS
    users = dt.Timeouts()
    assert max(waits.RESULT_SECONDS, waits.LOOK_UP_SECONDS) < users.silence_seconds
    assert min(users.scheduler_seconds, users.database_seconds) > waits.LAST_WRITES_SECONDS
    assert waits.PROGRESS_FLUSH_SECONDS < waits.LAST_MESSAGES_SECONDS


def test_every_wait_stands_in_one_module() -> None:
    names = {
        name.id
        for path in PACKAGE.rglob("*.py")
        if path != Path(waits.__file__) and "_SECONDS" in (text := path.read_text())
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for name in ast.walk(statement)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    assert {name for name in names if name.endswith("_SECONDS")} == NO_WAITS


def test_every_wait_has_a_name_of_its_own() -> None:
    statements = ast.parse(Path(waits.__file__).read_text()).body
    targets = [each.targets[0] for each in statements if isinstance(each, ast.Assign)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    assert len(names) == len(set(names))


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
