"""The bars of attempts in the report."""

from __future__ import annotations

from typing import Any

from dasktune._dashboard.attempts import IDLE_SECONDS, MOST_WORKERS, attempt_bars
from dasktune.storage.database.rows import StageRow


def attempt(number: int, worker: str, status: str, begin: float, end: float | None) -> StageRow:
    return StageRow(
        study_id=1,
        attempt=f"attempt-{number}",
        key=f"{number:032x}",
        start=0,
        stop=4,
        worker=worker,
        status=status,
        started=begin,
        ended=end,
        steps=4,
        repeated=0,
    )


def bars_of(*stages: StageRow) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return the document, and the worker, start, stop and status of each bar."""
    document: Any = attempt_bars(stages)
    columns = [document["bars"].get(name, []) for name in ("worker", "start", "stop", "status")]
    return document, list(zip(*columns, strict=True))


def test_attempts_lie_in_the_row_of_their_worker() -> None:
    document, bars = bars_of(
        attempt(2, "tcp://10.0.0.2:2", "lost", 100.0, 104.0),
        attempt(1, "tcp://10.0.0.1:1", "trained", 101.0, 110.0),
        attempt(3, "tcp://10.0.0.2:2", "failed", 105.0, 108.0),
        attempt(4, "tcp://10.0.0.2:2", "running", 109.0, None),
    )
    assert document["words"] == "3 attempts on 2 workers"
    assert document["workers"] == ["10.0.0.2:2", "10.0.0.1:1"]
    assert bars == [
        (0, 100.0, 104.0, "lost"),
        (1, 101.0, 110.0, "trained"),
        (0, 105.0, 108.0, "failed"),
    ]
    assert document["bars"]["words"][0] == "steps 0-4, 4 steps in 4.0 s"


def test_narrow_neighbours_of_one_status_are_one_bar() -> None:
    crowded = [attempt(i, "w", "trained", 100 + i, 101 + i) for i in range(5)]
    document, bars = bars_of(
        *crowded, attempt(9, "w", "failed", 105, 106), attempt(10, "w", "trained", 200, 10_100)
    )
    assert bars == [(0, 100, 105, "trained"), (0, 105, 106, "failed"), (0, 200, 10_100, "trained")]
    assert document["bars"]["words"][0] == "5 attempts, 20 steps"


def test_plot_begins_after_the_last_long_idle_time() -> None:
    later = 10 + 2 * IDLE_SECONDS
    document, bars = bars_of(
        attempt(1, "w", "trained", 1.0, 10.0), attempt(2, "w", "trained", later, later + 10)
    )
    assert document["since"] == later
    assert len(bars) == 2


def test_workers_without_a_row_are_counted() -> None:
    stages = [attempt(i, f"w{i}", "trained", 1.0 + i, 2.0 + i) for i in range(MOST_WORKERS + 2)]
    document, bars = bars_of(*stages)
    assert document["words"] == "50 attempts on 50 workers; 2 workers are not shown"
    assert len(document["workers"]) == len(bars) == MOST_WORKERS


def test_study_without_an_attempt_has_no_bars() -> None:
    assert bars_of(attempt(1, "w", "running", 1.0, None))[0]["workers"] == []
