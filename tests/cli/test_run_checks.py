"""`dasktune run` checks a new trainer: a wrong one is stopped, and ctrl-C ends the check."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from dasktune.cli.status import read
from dasktune.trainer.check_switch import SWITCH
from tests.holding import wait_until

from .conftest import PATIENCE, STUDY_FILE, UNIQUE, Folder

pytestmark = [pytest.mark.cluster, pytest.mark.process]

RUN = ("run", "counting.py", "--workers", "2", "--no-progress", "--no-report")
CHECKED = 18
"""Steps of a whole check."""

RIGHT = 'self.weight, self.path = state["weight"], state["path"]'
WRONG = STUDY_FILE.replace(RIGHT, 'self.weight, self.path = np.zeros(2), state["path"]')


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the checks on, which are off in this suite."""
    monkeypatch.setenv(SWITCH, "on")


def test_run_checks_a_trainer_once(folder: Folder) -> None:
    first = folder.command(*RUN, "--audit", "0", "--json")
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)["summary"]
    assert (summary["steps_executed"], summary["steps_audited"]) == (UNIQUE, CHECKED)
    assert RIGHT in STUDY_FILE
    assert len(folder.steps()) == UNIQUE + CHECKED
    status = folder.command("status", "counting.py").stdout
    assert "33 trained of 48 asked for, 18 more by checks" in status


def test_run_stops_a_wrong_trainer_before_a_state_is_loaded(folder: Folder) -> None:
    (folder.path / "counting.py").write_text(WRONG)
    first = folder.command(*RUN)
    assert first.returncode == 2, first.stdout
    assert "Counting must resume exactly for its trials to be merged" in first.stderr
    assert "state['weight']" in first.stderr
    assert "Traceback" not in first.stderr
    (status,) = read(str(folder.path / "runs" / "counting"))
    assert status.trials.get("COMPLETE", 0) <= 2, "they end without a stored state"
    assert (status.steps_executed <= 24, status.steps_audited > 0) == (True, True)
    assert not any("0.3" in path for path in folder.steps()), "that stage loads a state"
    steps = len(folder.steps())
    again = folder.command(*RUN)
    assert (again.returncode, len(folder.steps())) == (2, steps), "the verdict is known"
    control = folder.command(*RUN, "--allow-failed-check")
    assert control.returncode == 0, control.stderr


def test_no_check_starts_none(folder: Folder) -> None:
    (folder.path / "counting.py").write_text(WRONG)
    done = folder.command(*RUN, "--no-check", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["steps_audited"] == 0


def test_ctrl_c_ends_the_check_at_once(folder: Folder) -> None:
    folder.hold(at=3)  # the check and two stages train beside each other, and wait there
    process = folder.start(*RUN)
    folder.wait_for_steps(6, process)
    checking = [
        each
        for each in psutil.Process(process.pid).children(recursive=True)
        if "check_resume" in " ".join(each.cmdline())
    ]
    assert len(checking) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    wait_until(lambda: not any(each.is_running() for each in checking))
    folder.go_on(at=3)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (status,) = read(str(folder.path / "runs" / "counting"))
    assert status.steps_executed >= 6, "what the stages trained was saved"
    assert status.steps_audited == 2
    done = folder.command(*RUN)
    assert done.returncode == 0, done.stderr
