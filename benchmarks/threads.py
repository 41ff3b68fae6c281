"""Dask workers that are threads of this process: they start at once, and one process does all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, LocalCluster


@contextmanager
def client_of_threads(workers: int) -> Iterator[Client]:
    """Give a client of so many workers, which have one thread each."""
    with (
        LocalCluster(
            processes=False,
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
