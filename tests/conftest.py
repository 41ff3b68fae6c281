"""The tiers of the tests, and the servers and clusters that they share.

Each test is in one tier, which follows from its markers and fixtures: `tier_of`. A test says
what it needs beyond Python with a marker of `PARTS`, and the packages of the tier
``integrations`` with the marker ``framework``. Where a part is missing, the test is skipped, and
the last lines of the run name every skipped test with its reason. With ``CI=true`` a skip of any
kind is a failure, except for want of hardware that no installation brings.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed.comm import core
from tornado.ioloop import IOLoop

from dasktune._cluster.fork_server import SWITCH as FORK_SWITCH
from dasktune._cluster.local import local_client
from dasktune._driver.retention.kept_ends import SWITCH as OMIT_SWITCH
from dasktune.storage import checkpoints
from dasktune.trainer.check_switch import SWITCH
from tests import services, slurm_server
from tests.effort import register_profiles
from tests.forked import fork_workers
from tests.in_process import client_of_threads

register_profiles()

fork_workers()

# Where a test sets the clock back, Dask's clients of other tests would send nothing for as long.
IOLoop.time = lambda _, now=time.time: now()  # type: ignore[method-assign]

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory; the tests write less than a quarter of a gigabyte."""

# Every commit of a database waits for the disk, which slows thousands of tests and proves nothing.
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Thousands of toy trainers need no check; tests of the check itself turn it on.
os.environ[SWITCH] = "off"

# Toy trainers train faster than they save; tests that look into their stores need all states.
os.environ[OMIT_SWITCH] = "off"

# Tests fork their processes from a server of their own (`tests.forked`).
os.environ[FORK_SWITCH] = "off"

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def _no_browser() -> str:
    if not shutil.which("chromium"):
        return "needs Chromium (Debian package: chromium)"
    if not importlib.util.find_spec("playwright"):
        return "needs playwright"
    return ""


def _no_gpu() -> str:
    if not importlib.util.find_spec("torch"):
        return "needs torch and a GPU"
    import torch

    return "" if torch.cuda.is_available() else "needs a GPU that torch can use"


def _no_postgresql() -> str:
    if services.postgresql_programs() is None:
        return "needs a PostgreSQL server (Debian package: postgresql)"
    if not importlib.util.find_spec("psycopg"):
        return "needs psycopg"
    return ""


def _no_s3() -> str:
    needed = ("boto3", "flask", "moto", "s3fs")
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    return f"needs {', '.join(missing)}" if missing else ""


def _no_ceph() -> str:
    if missing := services.missing_programs():
        packages = "Debian packages: radosgw ceph-mon ceph-osd ceph-common"
        return f"needs {', '.join(missing)} ({packages})"
    return _no_s3()


def _no_slurm() -> str:
    if missing := slurm_server.missing_programs():
        return f"needs {', '.join(missing)} (Debian packages: slurm-wlm munge)"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to make the device files of pretended GPUs"
    return "" if importlib.util.find_spec("dask_jobqueue") else "needs dask-jobqueue"


PARTS: dict[str, Callable[[], str]] = {
    "browser": _no_browser,
    "ceph": _no_ceph,
    "gpu": _no_gpu,
    "postgresql": _no_postgresql,
    "s3": _no_s3,
    "slurm": _no_slurm,
}
"""By marker: says what is missing, the empty string if nothing is."""

HARDWARE = "gpu"

TIERS = frozenset({"fast", "processes", "services", "integrations"})

SERVICES = frozenset({"browser", "ceph", "postgresql", "slurm"})
"""Markers of tests that need a program which is not written in Python."""

FRAMEWORK = "framework"
"""Marker of tests that need packages of frameworks, which it names."""

PROCESSES = frozenset({"cluster", "process", "s3", "slow"})
"""Markers of tests that start processes or servers, or take more than a few seconds."""


def tier_of(markers: Collection[str], fixtures: Collection[str]) -> str:
    """Return the tier of a test with these markers and fixtures."""
    if not SERVICES.isdisjoint(markers):
        return "services"
    if FRAMEWORK in markers:
        return "integrations"
    if wrong := SERVICES.intersection(fixtures):
        raise pytest.UsageError(f"a test with the fixture {min(wrong)} must have its marker")
    shares_processes = not {"one_worker", "four_workers"}.isdisjoint(fixtures)
    if shares_processes or not PROCESSES.isdisjoint(markers):
        return "processes"
    return "fast"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from reading thousands of tests and libraries again and again.

    What the collection of the tests makes lives to the end of the run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier."""
    for item in items:
        markers = {mark.name for mark in item.iter_markers()}
        if by_hand := markers & TIERS:
            raise pytest.UsageError(f"{item.nodeid} must not name its tier, got {min(by_hand)}")
        item.add_marker(tier_of(markers, getattr(item, "fixturenames", ())))


_started: list[str] = []
"""The processes of Python that the test which runs has started, by their arguments or names."""

_start = BaseProcess.start


def _note_interpreter(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and arguments[0] == sys.executable:
        _started.append(" ".join(map(str, arguments[1])))


def _note_and_start(process: BaseProcess) -> None:
    # A cluster that tests share may start a worker anew at any time, in Dask's own thread.
    if threading.current_thread() is threading.main_thread():
        _started.append(process.name)
    _start(process)


sys.addaudithook(_note_interpreter)
BaseProcess.start = _note_and_start  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test of the fast tier that starts Python in another process."""
    _started.clear()
    yield
    if _started and item.get_closest_marker("fast"):
        pytest.fail(f"a test that starts {_started[0][:200]!r} must be marked process")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser; for tests marked ``browser``."""
    return shutil.which("chromium") or ""


@pytest.fixture(scope="module")
def two_threads() -> Iterator[Client]:
    """Return a client of two workers in this process: for trainers that need none of their own."""
    with client_of_threads(2) as client:
        yield client


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Client]:
    """Return a client of one worker in this process, which trains in one thread."""
    with client_of_threads(1) as client:
        yield client


@pytest.fixture
def files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store small states as large ones, and as earlier versions: not in their commits."""
    monkeypatch.setattr(checkpoints, "SMALL_NBYTES", -1)


@pytest.fixture
def dask_draws_globally(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Dask draw from the global generator, as it does in a process without `two_threads`."""
    monkeypatch.setattr(core, "random", random)


@pytest.fixture(scope="session")
def one_worker() -> Iterator[Client]:
    with local_client(1) as client:
        yield client


@pytest.fixture(scope="session")
def four_workers() -> Iterator[Client]:
    with local_client(4) as client:
        yield client


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the URL of a database on a server of its own; for tests marked ``postgresql``."""
    with services.postgresql() as server:
        yield server.url


@pytest.fixture(scope="session")
def moto() -> Iterator[services.S3Server]:
    """Return an S3 server written in Python; for tests marked ``s3``."""
    with services.moto() as server:
        yield server


@pytest.fixture(scope="session")
def ceph() -> Iterator[services.S3Server]:
    """Return the S3 gateway of a real Ceph cluster; for tests marked ``ceph``."""
    with services.ceph() as server:
        yield server


@pytest.fixture
def slurm() -> Iterator[slurm_server.Slurm]:
    """Return a SLURM of two nodes with two pretended GPUs each; for tests marked ``slurm``.

    Each test has one of its own, for a second: jobs and nodes of an earlier one, and a node that
    SLURM takes out of service, are not there.
    """
    with slurm_server.slurm() as server:
        yield server


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose part is missing."""
    for marker, missing in PARTS.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            pytest.skip(reason)
    for mark in item.iter_markers(FRAMEWORK):
        if missing := [name for name in mark.args if not importlib.util.find_spec(name)]:
            pytest.skip(f"needs {', '.join(missing)} (make test-integrations)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped test into a failed one in CI; an expected failure is no skip."""
    report = yield
    if not hasattr(report, "wasxfail") and not item.get_closest_marker(HARDWARE):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a skipped module into a failed one in CI."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"left out, which is a failure in CI: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where).removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were left out, and why."""
    if skipped := terminalreporter.stats.get("skipped"):
        terminalreporter.section("tests left out")
        for report in skipped:
            terminalreporter.write_line(f"{report.nodeid}: {_reason(report)}")
