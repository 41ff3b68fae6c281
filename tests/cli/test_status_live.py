"""The status of real runs, read from elsewhere: while they run, killed, failed, ended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from dasktune._worker.hardware import hardware_of
from dasktune.cli.status import StudyStatus, read
from tests.holding import wait_until

from .conftest import Folder

pytestmark = [pytest.mark.cluster, pytest.mark.process]


def status_when(folder: Folder, holds: Callable[[StudyStatus], bool]) -> StudyStatus:
    """Return the status as soon as something holds of it."""
    seen: list[StudyStatus] = []

    def look() -> bool:
        seen[:] = read(str(folder.path / "runs" / "counting"))
        return holds(seen[0])

    wait_until(look)
    return seen[0]


def count_workers(status: StudyStatus) -> int:
    """Return the number of workers of all classes at the last heartbeat."""
    return 0 if status.run is None else sum(status.run.classes.values())


def test_status_shows_a_run_that_is_running_killed_and_resumed(
    folder: Folder,
) -> None:
    options = ("--workers", "2", "--no-report", "--no-progress")
    driver = folder.start("run", "counting.py", *options, "--config", "pause=3")
    folder.wait_for_steps(1, driver)
    # Stages are there at once, the workers with the first heartbeat after both have joined.
    found = status_when(folder, lambda one: bool(one.running) and count_workers(one) == 2)
    assert found.driver is not None
    assert (found.driver.state, found.driver.pid) == ("running", driver.pid)
    assert found.run is not None
    assert found.run.classes == {hardware_of({}).name: 2}
    assert str(found).count(f"          2 workers: 2 x {hardware_of({}).name}") == 1
    stage = found.running[0]
    assert (stage.start, stage.host) == (0, "127.0.0.1")
    assert set(stage.trials) <= {0, 1, 2, 3}
    assert stage.trials
    told = folder.command("status", "runs/counting")
    assert "  trials  4 running\n" in told.stdout
    assert f"driver  process {driver.pid} on " in told.stdout
    assert "  runs    trial" in told.stdout

    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    found = status_when(folder, lambda one: True)
    assert found.driver is not None
    assert (found.driver.state, found.driver.is_gone) == ("dead", True)
    assert found.running  # what ran then
    assert "  trials  4 waiting to go on\n" in str(found)
    told = folder.command("status", "runs/counting", "--json")
    (document,) = json.loads(told.stdout)
    assert (document["driver"]["state"], document["trials"]) == ("dead", {"RUNNING": 4})
    assert document["running"][0]["worker"].startswith("tcp://")

    again = folder.command("run", "counting.py", *options)
    assert again.returncode == 0, again.stderr
    (found,) = read(str(folder.path / "runs" / "counting"))
    assert found.driver is not None
    assert (found.driver.state, tuple(found.running), found.failures) == ("ended", (), [])


def test_status_shows_failures_with_step_reason_and_tries(folder: Folder) -> None:
    options = ("--workers", "1", "--no-report", "--no-progress", "--config", "bad=true")
    logged = ("--log-file", "run.log", "--log-format", "json")
    done = folder.command("run", "counting.py", *options, *logged)
    assert done.returncode == 1, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "ValueError" in line)
    assert "trial 4 failed: ValueError: lr must be >= 0, got -1.0 (counting.py:" in line
    lines = [json.loads(one) for one in (folder.path / "run.log").read_text().splitlines()]
    assert {one["study"] for one in lines if one["logger"] == "dasktune._driver.attempts"} == {
        "counting"
    }
    failed = [one for one in lines if "failed after step 6" in one["message"]]
    assert [(one["trials"], one["step"], one["level"]) for one in failed] == [([4], 6, "INFO")] * 2
    assert any(one["message"].endswith("ended (ended)") for one in lines)
    (found,) = read(str(folder.path / "runs" / "counting"))
    (failure,) = found.failures
    assert (failure.trials, failure.step, failure.tries) == ((4,), 6, 2)
    brief = folder.command("status", "counting.py").stdout
    assert "failed  trial 4 after step 6: ValueError: lr must be >= 0, got -1.0 (tried 2" in brief
    assert "Traceback" not in brief
    full = folder.command("status", "counting.py", "--verbose").stdout
    assert "          Traceback (most recent call last)" in full
