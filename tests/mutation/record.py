"""A plugin of pytest that records which test executes which line, under coverage.

A test that fails, or is skipped, is not recorded: it cannot catch a mutant.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_seconds: dict[str, float] = {}
_passed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name the test to coverage, and measure its time with that of its fixtures."""
    from coverage import Coverage  # only where lines are recorded

    coverage = Coverage.current()
    if coverage is not None:
        coverage.switch_context(item.nodeid)
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = time.perf_counter() - began


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that has passed."""
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the seconds of the tests that have passed."""
    passed = {test: seconds for test, seconds in _seconds.items() if test in _passed}
    Path(os.environ["SECONDS_OF_TESTS"]).write_text(json.dumps(passed))
