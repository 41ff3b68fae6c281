"""Whose jobs are left over: by what is certain of the process that submitted them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from dasktune.slurm.leftover import Driver

HERE = Driver.this()
RUNNING = {"7": "RUNNING", "8": "PENDING (BeginTime)"}


def elsewhere(job: str = "", restarts: str = "0") -> Driver:
    return Driver(host="other-1", pid=1, born=1, job=job, restarts=restarts)


def test_a_driver_is_read_from_the_comment_of_its_jobs() -> None:
    assert Driver.read(HERE.comment) == HERE
    assert Driver.read(elsewhere("7", "2").comment) == elsewhere("7", "2")


@pytest.mark.parametrize("comment", ["", "(null)", "mine", "dasktune/a/b/c/d/e", "x/h/1/2//0"])
def test_other_comments_name_none(comment: str) -> None:
    assert Driver.read(comment) is None


@pytest.mark.process
def test_a_process_of_this_host_is_gone_when_it_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = int(psutil.Process(process.pid).create_time())
    driver = replace(HERE, pid=process.pid, born=born)
    assert not driver.is_gone({}, HERE)
    process.communicate()
    assert driver.is_gone({}, HERE)


def test_is_gone_reused_process_id_is_another_process() -> None:
    assert replace(HERE, pid=os.getpid(), born=HERE.born - 3600).is_gone({}, HERE)


@pytest.mark.parametrize(
    ("driver", "is_gone"),
    [
        (elsewhere(), False),
        (elsewhere(job="7"), False),
        (elsewhere(job="8"), True),
        (elsewhere(job="9"), True),
    ],
)
def test_is_gone_on_another_host_is_known_only_of_a_job(driver: Driver, is_gone: bool) -> None:
    assert driver.is_gone(RUNNING, HERE) is is_gone


@pytest.mark.parametrize(("restarts", "is_gone"), [("0", True), ("1", False)])
def test_an_earlier_life_of_this_job_is_gone(restarts: str, is_gone: bool) -> None:
    here = replace(HERE, job="7", restarts="1")
    assert elsewhere("7", restarts).is_gone(RUNNING, here) is is_gone
