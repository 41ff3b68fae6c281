"""Real clusters of processes, shared by the tests that run studies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from dasktune.cluster.local import local_client


@pytest.fixture(scope="session")
def one_worker() -> Iterator[Client]:
    with local_client(1) as client:
        yield client


@pytest.fixture(scope="session")
def four_workers() -> Iterator[Client]:
    with local_client(4) as client:
        yield client
