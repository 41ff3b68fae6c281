"""Whether a driver lives, what runs and what failed are told from rows, in words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from dasktune._driver.run_status import Wait
from dasktune._engine.timeouts import NO_HEARTBEAT_SECONDS
from dasktune.report.status_report import (
    LONGEST_MESSAGE,
    MOST_SHOWN,
    driver_of,
    failures_of,
    folded,
    running_of,
    waits_text,
)
from dasktune.storage.database.database import FailedStages
from dasktune.storage.database.rows import RunRow, StageRow, TrialRow

NOW = psutil.Process().create_time() + 1000.0
MINE = RunRow(
    run="digits-0a",
    study_id=1,
    host=socket.gethostname(),
    pid=os.getpid(),
    version="1",
    began=NOW - 200.0,
    seen=NOW - 3.0,
)
THEIRS = replace(MINE, host="elsewhere")


@pytest.fixture(scope="module")
def gone() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_driver_of_recent_heartbeat_is_running() -> None:
    for row in (MINE, THEIRS):
        driver = driver_of(row, NOW)
        assert (driver.state, driver.is_alive) == ("running", True)
        assert "runs since 3 min 20 s, its last heartbeat was 3.0 s ago" in driver.in_words(NOW)


@pytest.mark.process
def test_one_whose_process_is_gone_is_dead_at_once(gone: int) -> None:
    driver = driver_of(replace(MINE, pid=gone), NOW)
    assert (driver.state, driver.is_gone, driver.is_alive) == ("dead", True, False)
    assert driver.in_words(NOW).startswith("dead: its last heartbeat was 3.0 s ago (process ")


def test_driver_of_reused_process_id_is_dead() -> None:
    long_ago = replace(MINE, began=psutil.Process().create_time() - 100.0)
    assert driver_of(long_ago, NOW).state == "dead"


@pytest.mark.process
def test_elsewhere_it_is_dead_when_it_has_long_not_signed(gone: int) -> None:
    row = replace(THEIRS, pid=gone)
    assert driver_of(row, row.seen + NO_HEARTBEAT_SECONDS).state == "running"
    driver = driver_of(row, row.seen + 3 * 3600)
    assert (driver.state, driver.is_gone) == ("dead", False)
    assert "dead: its last heartbeat was 3 h 0 min ago" in driver.in_words(row.seen + 3 * 3600)


def test_here_it_hangs_when_it_has_long_not_signed() -> None:
    driver = driver_of(MINE, NOW + NO_HEARTBEAT_SECONDS)
    assert (driver.state, driver.is_alive) == ("silent", True)
    assert "it hangs" in driver.in_words(NOW + NO_HEARTBEAT_SECONDS)


@pytest.mark.parametrize(
    ("how", "message", "says"),
    [
        ("ended", "", "ended 3.0 s ago (process"),
        ("ended", "the target was reached", "): the target was reached"),
        ("interrupted", "", "interrupted 3.0 s ago (process"),
        ("limit", "60 steps", "by a limit"),
        ("failed", "ClusterError: no\nworker \x1b[31m", "ClusterError: no worker \ufffd[31m"),
    ],
)
def test_one_that_ended_says_how(how: str, message: str, says: str) -> None:
    row = replace(MINE, ended=NOW - 3.0, how=how, message=message)
    driver = driver_of(row, NOW + 9999.0)
    assert (driver.state, driver.is_alive) == (how, False)
    assert says in driver.in_words(NOW)


def stage(attempt: str, started: float, trials: list[int], worker: str = "w") -> StageRow:
    return StageRow(
        study_id=1,
        attempt=attempt,
        key="a1",
        start=10,
        stop=40,
        worker=worker,
        status="running",
        started=started,
        ended=None,
        steps=0,
        repeated=0,
        trials=trials,
    )


def test_running_of_lists_the_longest_running_stage_first() -> None:
    row = replace(MINE, positions={"1-a": 23})
    rows = [stage("2-a", NOW - 5, [3]), stage("1-a", NOW - 123, [0, 1], "tcp://10.0.0.7:1234")]
    first, second = running_of(row, rows, NOW)
    assert (first.attempt, first.step, first.host) == ("1-a", 23, "10.0.0.7")
    assert str(first) == (
        "trials 0, 1: steps 10 to 40, at 23, on tcp://10.0.0.7:1234 for 2 min 3 s"
    )
    assert (second.step, second.host) == (None, "")
    assert str(second) == "trial 3: steps 10 to 40, on w for 5.0 s"


def failed(number: int, message: str, traceback: str = "") -> TrialRow:
    record = {"message": message, "traceback": traceback}
    return TrialRow(study_id=1, number=number, state="FAIL", steps=0, value=None, record=record)


def test_a_failure_says_step_reason_and_tries() -> None:
    stages = [
        FailedStages(step=6, message="ValueError: no", trials=(3, 4), count=2, last=NOW - 60),
        FailedStages(step=1, message="OSError: x", trials=(7,), count=1, last=NOW - 5),
    ]
    trials = [failed(3, "ValueError: no", "tb"), failed(9, "ValueError: no")]
    final, again = failures_of(trials, stages)
    assert final.in_words(NOW) == (
        "trials 3, 9 after step 6: ValueError: no (tried 2 times, last 1 min 0 s ago)"
    )
    assert (final.is_final, again.is_final) == (True, False)
    assert again.in_words(NOW) == (
        "trial 7 after step 1: OSError: x (tried 1 time, last 5.0 s ago, not given up)"
    )


def test_one_reason_at_two_steps_is_two_failures() -> None:
    stages = [
        FailedStages(step=step, message="boom", trials=(number,), count=2, last=1.0)
        for number, step in ((1, 3), (2, 8))
    ]
    found = failures_of([failed(1, "boom"), failed(2, "boom"), failed(5, "boom")], stages)
    assert [(one.trials, one.step, one.tries) for one in found] == [
        ((1,), 3, 2),
        ((2,), 8, 2),
        ((5,), None, 0),
    ]


def test_failures_of_trial_without_a_stage_is_redacted() -> None:
    url = "postgresql://ann:hunter2-hunter2@db/x"
    (found,) = failures_of([failed(4, f"lost {url}", f"at {url}")], [])
    assert "hunter2" not in f"{found}{found.in_words(NOW)}"
    assert found.in_words(NOW) == "trial 4: lost postgresql://***@db/x"


def test_failures_of_redacted_message_matches_its_trial() -> None:
    stages = [FailedStages(step=2, message="x://***@db", trials=(4,), count=2, last=1.0)]
    (found,) = failures_of([failed(4, "x://ann:hunter2-hunter2@db")], stages)
    assert (found.step, found.tries, found.is_final) == (2, 2, True)


def test_long_messages_and_many_lines_are_folded() -> None:
    (found,) = failures_of([failed(4, "x" * 9999)], [])
    assert len(found.in_words(NOW)) < LONGEST_MESSAGE + 20
    lines = [str(number) for number in range(MOST_SHOWN + 5)]
    assert folded(lines, shows_all=False) == [*lines[:MOST_SHOWN], "and 5 more"]
    assert folded(lines, shows_all=True) == lines
    assert folded(["a"], shows_all=False, more=1200) == ["a", "and 1,200 more"]


def test_what_is_waited_for_says_since_when() -> None:
    waits = [Wait(kind="pool", text="a", since=NOW - 40), Wait(kind="x", text="b\nc")]
    assert list(waits_text(waits, NOW)) == ["a, since 40.0 s", "b c"]
