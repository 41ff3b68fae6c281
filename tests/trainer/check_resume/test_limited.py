"""The processes of a check that a study starts: when they are ended, and what that leaves."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from dasktune.errors import ConfigurationError, TrainerError
from dasktune.trainer.check_resume.check import CheckLimit, ResumeReport, check_resume
from dasktune.trainer.check_resume.limited import (
    CheckEndedError,
    CheckTimes,
    LimitedProcesses,
    Watch,
)
from dasktune.trainer.check_resume.new_process import COMMAND
from tests.holding import PATIENCE, wait_until
from tests.toy_trainers import Adding

AT_LENGTH = CheckTimes(seconds=1e9)


class Starting(Adding):
    """Starts a process in its third step, and writes down its own process and this one."""

    def train(self) -> None:
        super().train()
        if self.total > 2.5:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e9)"])
            path = Path(self.config["pids"])
            pids = path.read_text() if path.exists() else ""
            path.with_suffix(".new").write_text(f"{pids} {os.getpid()} {child.pid}")
            path.with_suffix(".new").rename(path)


class Waiting(Starting):
    """Starts a process in its third step, and waits for ever then."""

    def train(self) -> None:
        super().train()
        if self.total > 2.5:
            threading.Event().wait()


class WaitingLater(Adding):
    """Waits for ever when a state after more than two steps is loaded; says so before."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.total > 2.5:
            Path(self.config["pids"]).touch()
            threading.Event().wait()


class RefusingAndStaying(Adding):
    """Refuses its values, and leaves a thread behind that keeps its process alive."""

    def build(self, hp: Mapping[str, Any]) -> None:
        threading.Thread(target=threading.Event().wait).start()
        raise ConfigurationError("no such rate")


class Aborting(Adding):
    def train(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def check(
    trainer: type, processes: LimitedProcesses, config: dict[str, object] | None = None
) -> ResumeReport:
    limit = CheckLimit(seconds=1e9)
    with processes:
        return check_resume(trainer, {"lr": 1.0}, config=config, limit=limit, run=processes.run)


def all_gone(pids: Path) -> bool:
    """Return whether the processes in a file are gone; one that nobody has waited for is, too."""
    left = [pid for pid in map(int, pids.read_text().split()) if psutil.pid_exists(pid)]
    return all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in left)


@pytest.mark.process
def test_a_check_that_ends_in_time_has_its_report() -> None:
    processes = LimitedProcesses(AT_LENGTH)
    report = check(Adding, processes)
    assert report.ok, str(report)
    assert (report.splits, report.steps, processes.steps) == ((2, 3, 5), 18, 18)
    assert processes.planned == 18


@pytest.mark.process
def test_the_second_process_of_a_check_starts_with_the_first(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with LimitedProcesses(AT_LENGTH, is_cancelled=pids.exists) as processes:
        limit, config = CheckLimit(seconds=1e9), {"pids": str(pids)}
        with pytest.raises(CheckEndedError):
            check_resume(Waiting, {"lr": 1.0}, config=config, limit=limit, run=processes.run)
        children = psutil.Process().children()  # multiprocessing may have some of its own
        (waiting,) = (each for each in children if each.cmdline()[1:] == COMMAND[1:])
    assert not waiting.is_running()


@pytest.mark.process
@pytest.mark.parametrize("ends_by", ["time", "cancel"])
def test_a_trainer_that_hangs_is_killed_with_its_children(tmp_path: Path, ends_by: str) -> None:
    pids, hours = tmp_path / "pids", itertools.count()

    def clock() -> float:
        """Return the time: it stands still until the trainer hangs, then hours pass."""
        return 3600.0 * next(hours) if ends_by == "time" and pids.exists() else 0.0

    def is_cancelled() -> bool:
        return ends_by == "cancel" and pids.exists()

    processes = LimitedProcesses(CheckTimes(seconds=30.0), is_cancelled=is_cancelled, clock=clock)
    reason = "not done after 30 s of work, at step 3" if ends_by == "time" else "it was interrupted"
    with pytest.raises(CheckEndedError, match=reason):
        check(Waiting, processes, {"pids": str(pids)})
    assert processes.steps == 2
    wait_until(lambda: all_gone(pids))


@pytest.mark.process
def test_an_ended_check_keeps_what_it_has_found(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    processes = LimitedProcesses(AT_LENGTH, is_cancelled=pids.exists)
    report = check(WaitingLater, processes, {"pids": str(pids)})
    assert (report.ok, report.is_cut_short, report.splits) == (True, True, (2,))
    assert "resuming after steps 3 and 5, for want of time" in report.unchecked


@pytest.mark.process
def test_a_refusal_counts_though_its_process_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = tmp_path.glob
    processes = LimitedProcesses(AT_LENGTH, is_cancelled=lambda: any(written("*/whole.json")))
    with pytest.raises(ConfigurationError, match="no such rate"):
        check(RefusingAndStaying, processes)


@pytest.mark.process
def test_a_check_that_ends_leaves_no_process_of_the_trainer(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert check(Starting, LimitedProcesses(AT_LENGTH), {"pids": str(pids)}).ok
    wait_until(lambda: all_gone(pids))


@pytest.mark.process
def test_a_trainer_that_kills_its_process_is_an_error() -> None:
    with pytest.raises(TrainerError, match=r"Aborting failed in check_resume: .* code -9"):
        check(Aborting, LimitedProcesses(AT_LENGTH))


PARENT = """
import sys
from dasktune.trainer.check_resume.limited import LimitedProcesses, CheckTimes
from tests.trainer.check_resume.test_limited import AT_LENGTH, Waiting, check
check(Waiting, LimitedProcesses(AT_LENGTH), {"pids": sys.argv[1]})
"""


@pytest.mark.process
def test_a_check_ends_when_its_driver_was_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(pids)]) as driver:
        wait_until(pids.exists, driver)
        driver.kill()
    wait_until(lambda: all_gone(pids), seconds=PATIENCE)


STEPS = [(1.0, 0), (100.0, 0), (101.0, 1), (200.0, 1), (201.5, 1)]

Look = tuple[float, int | None, float]
"""A time, the number of steps, and the processor time until then."""

LOOKS: list[tuple[CheckTimes, list[Look], list[str | None]]] = [
    (
        CheckTimes(seconds=30.0),
        [(59.0, None, 59.0), (61.0, None, 61.0)],
        [None, "its process did not start"],
    ),
    (
        CheckTimes(seconds=30.0),
        [(59.0, 0, 59.0), (88.0, 0, 88.0), (90.0, 0, 90.0)],
        [None, None, "after 30 s"],
    ),
    (  # on a busy machine, and one that waits
        CheckTimes(seconds=30.0),
        [(0.0, 0, 0.0), (200.0, 5, 29.0), (299.0, 6, 30.0), (301.0, 6, 30.0)],
        [None, None, None, "after 30 s"],
    ),
    (  # with several threads
        CheckTimes(seconds=30.0),
        [(0.0, 0, 0.0), (29.0, 5, 200.0), (31.0, 5, 210.0)],
        [None, None, "after 30 s"],
    ),
    (
        CheckTimes(seconds=30.0, free=5, step_seconds=100.0),
        [(now, steps, now) for now, steps in STEPS],
        [None, None, None, None, "step 2 of its process took longer than 100 s"],
    ),
]


@pytest.mark.parametrize(("times", "looks", "reasons"), LOOKS)
def test_watch_decides_by_times_and_steps(
    times: CheckTimes, looks: list[Look], reasons: list[str | None]
) -> None:
    watch = Watch(times, spent=0.0, now=0.0)
    for look, reason in zip(looks, reasons, strict=True):
        now, steps, cpu = look
        text = watch.look(now, steps, cpu=cpu)
        assert text is None if reason is None else text is not None and reason in text, look


def test_watch_counts_the_time_of_earlier_processes() -> None:
    watch = Watch(CheckTimes(seconds=30.0), spent=25.0, now=100.0)
    assert (watch.look(104.0, 0, cpu=1.0), watch.look(109.0, 3, cpu=6.0)) == (None, None)
    assert (watch.spent(109.0), watch.steps) == (30.0, 3)
    assert watch.look(109.5, 3, cpu=6.5) is not None
