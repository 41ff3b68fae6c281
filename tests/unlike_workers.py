"""Real Dask clusters on loopback whose workers are unlike.

A run waits for the first answer of all workers, however slow the machine is: else it would begin
with those of some kinds alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster, Worker

from tests.holding import PATIENCE


@contextmanager
def unlike_workers(*resources: Mapping[str, float]) -> Iterator[Client]:
    """Give a client of workers in this process, one for each set of Dask resources."""
    options = [{"nthreads": 1, "resources": dict(each)} for each in resources]
    with _client(Worker, options) as client:
        yield client


@contextmanager
def unlike_processes(*environments: Mapping[str, str]) -> Iterator[Client]:
    """Give a client of workers in processes of their own, one for each set of variables."""
    options = [{"nthreads": 1, "env": dict(each)} for each in environments]
    with _client(Nanny, options) as client:
        yield client


@contextmanager
def _client(kind: type, options: list[dict[str, Any]]) -> Iterator[Client]:
    common = {"host": "127.0.0.1", "memory_limit": 0, "dashboard_address": "127.0.0.1:0"}
    with (
        pytest.MonkeyPatch.context() as patch,
        SpecCluster(
            scheduler={
                "cls": Scheduler,
                "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
            },
            workers={
                number: {"cls": kind, "options": {**common, **each}}
                for number, each in enumerate(options)
            },
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        patch.setattr("dasktune._cluster.workers.PROBE_SECONDS", PATIENCE)
        yield client
