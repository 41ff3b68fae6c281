"""Stages as Dask sees them: one future for each attempt, until Dask is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from distributed import Client, Future
from distributed.client import ClosedClientError

from dasktune.graph.events import RunStage
from dasktune.worker.job import JobPlan
from dasktune.worker.plugin import prefix_of, run_stage

Claims = Callable[[str, Mapping[str, float]], dict[str, float] | None]
"""Returns the Dask resources that a stage with such needs occupies on a worker."""


class Submissions:
    """The futures of attempts on one connection to a cluster.

    Parameters
    ----------
    client
        Connected to it.
    plan
        The study's job.
    claims
        See `Claims`.
    """

    def __init__(self, client: Client, plan: JobPlan, claims: Claims) -> None:
        self._client = client
        self._plan = plan
        self._claims = claims
        self._futures: dict[str, Future[Any]] = {}

    def submit(self, order: RunStage, seed: int) -> str:
        """Send a stage to its worker; return the key of the state at its end.

        Parameters
        ----------
        order
            Which stage, and where.
        seed
            Of its training.
        """
        node = order.node
        chain = node.chain_at(order.start)
        spec = {
            "attempt": order.attempt,
            "start": order.start,
            "stop": order.stop,
            "saves": order.saves,
            "sequences": {name: one.to_json() for name, one in node.sequences.items()},
            "chain": (chain.base, chain.values.hex(), chain.length),
            "seed": seed,
        }
        before = None if order.after is None else self._futures.get(order.after)
        key = node.key_at(order.stop)
        self._futures[order.attempt] = self._client.submit(
            run_stage,
            self._plan.run,
            spec,
            before,
            key=(prefix_of(self._plan.run), key, order.start, order.stop, order.attempt),
            workers=[order.worker],
            resources=self._claims(order.worker, order.needs),
            priority=-order.order,
            retries=0,
            pure=False,
        )
        return key

    def done(self) -> Iterator[str]:
        """Yield the attempts that Dask is done with."""
        return (attempt for attempt, future in self._futures.items() if future.done())

    def take(self, attempt: str) -> Future[Any] | None:
        """Return the future of an attempt, which is forgotten here."""
        return self._futures.pop(attempt, None)

    def cancel(self, attempt: str) -> None:
        """Let Dask forget an attempt; its worker hears of it."""
        future = self._futures.pop(attempt, None)
        if future is not None and self._client.status == "running":
            with suppress(ClosedClientError):  # its scheduler may be gone at this moment
                future.cancel()

    def close(self) -> None:
        """Let Dask forget all."""
        for attempt in list(self._futures):
            self.cancel(attempt)
