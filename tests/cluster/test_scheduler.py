"""Plugins of dasktune on the scheduler of a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from distributed import Client

from dasktune._cluster.arbiter import add_arbiter
from dasktune._driver.prometheus import serve

pytestmark = pytest.mark.cluster


def test_scheduler_is_asked_once_for_all_plugins(
    two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[Callable[..., Any]] = []
    with Client(two_threads.scheduler.address, set_as_default=False) as client:
        run_on_scheduler = client.run_on_scheduler

        def counted(function: Callable[..., Any]) -> Any:
            questions.append(function)
            return run_on_scheduler(function)

        monkeypatch.setattr(client, "run_on_scheduler", counted)
        assert add_arbiter(client)
        assert serve(client)
    assert len(questions) == 1
