"""Clusters of Dask whose workers are threads of the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client, LocalCluster

from dasktune.trainer.isolation import give_own_generator


@contextmanager
def client_of_threads(workers: int, **options: Any) -> Iterator[Client]:
    """Give a client of workers that train in one thread each.

    What Dask's threads draw at random meanwhile does not move the generators of the tests.
    """
    give_own_generator()
    with (
        LocalCluster(
            processes=False,
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            protocol="tcp://",
            dashboard_address="127.0.0.1:0",
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
