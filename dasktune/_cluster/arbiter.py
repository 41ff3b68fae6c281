"""Shares the workers of a cluster between the studies that run there, on its scheduler.

All drivers of a cluster are connected to its scheduler, and it knows when one of them is gone. So
the workers are granted there: each driver claims, every second, as many as it can use. Schedulers
import this module, so it is light.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin

from dasktune._cluster.scheduler import add_plugin
from dasktune._engine.timeouts import SCHEDULER_ANSWER_SECONDS, SILENT_SECONDS
from dasktune.errors import ConfigurationError
from dasktune.graph.fair_shares import AwaitedStage, Claim, StudyShares

NAME = "dasktune-arbiter"
CLAIM = "dasktune_claim"
LEAVE = "dasktune_leave"


class ArbiterPlugin(SchedulerPlugin):
    """Lends the workers of its scheduler to the runs of studies.

    A run that claims nothing keeps its workers for `silent_seconds`.
    """

    name = NAME
    idempotent = True

    def __init__(
        self, shares: StudyShares | None = None, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self.shares = shares or StudyShares()
        self._silent_seconds = silent_seconds

    async def start(self, scheduler: Scheduler) -> None:
        """Begin to grant workers."""
        self._scheduler = scheduler
        self._clients: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._runs: dict[str, str] = {}
        """The runs by the name under which they hold leases."""
        scheduler.handlers[CLAIM] = self.claim
        scheduler.handlers[LEAVE] = self.leave
        for worker in scheduler.workers:
            self.add_worker(scheduler, worker)

    async def close(self) -> None:
        """Answer no more."""
        for name in (CLAIM, LEAVE):
            self._scheduler.handlers.pop(name, None)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Lend a worker that is new."""
        self.shares.join(worker, time.monotonic())

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Lend a worker no more."""
        self.shares.lose(worker, time.monotonic())

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Take back the workers of a driver that is gone."""
        for run in [run for run, other in self._clients.items() if other == client]:
            self.leave(run)

    def claim(
        self,
        run: str,
        client: str,
        workers: int,
        weight: float,
        busy: Collection[str],
        usable: Collection[str] | None,
        holder: str = "",
        awaits: Collection[tuple[str, str]] = (),
        wanted: Collection[str] | None = None,
        least: int = 1,
    ) -> dict[str, object]:
        """Answer a run's claim: see `dasktune.graph.fair_shares.StudyShares.claim`.

        The run holds leases as `holder`, and awaits stages whose leases others hold: (holder, key).
        Its stages can use the `wanted` workers now, or all if that is None, and take `least`
        together at least. In the answer are ``granted``, the workers that the run may use, or
        None for all; and ``runs``, the number of runs. A malformed claim, as any client may send
        one, gets its ``problem`` instead.
        """
        try:
            claim = Claim(workers=workers, weight=weight, least=least)
        except ConfigurationError as error:
            return {"problem": str(error)}
        now = time.monotonic()
        if holder:
            self._runs[str(holder)] = str(run)
        self._clients[str(run)], self._heard[str(run)] = str(client), now
        for silent in [name for name, at in self._heard.items() if now - at > self._silent_seconds]:
            self.leave(silent)
        granted = self.shares.claim(
            str(run),
            claim,
            now,
            frozenset(map(str, busy)),
            None if usable is None else frozenset(map(str, usable)),
            frozenset(
                AwaitedStage(self._runs[str(other)], str(key))
                for other, key in awaits
                if str(other) in self._runs
            ),
            None if wanted is None else frozenset(map(str, wanted)),
        )
        runs = len(self._clients)
        return {"granted": None if runs == 1 else sorted(granted), "runs": runs}

    def leave(self, run: str) -> None:
        """Take back the workers of a run that has ended."""
        if self._clients.pop(run, None) is not None:
            del self._heard[run]
            self._runs = {name: other for name, other in self._runs.items() if other != run}
            self.shares.leave(run, time.monotonic())


def add_arbiter(client: Client) -> bool:
    """Have the scheduler of a client share its workers between studies; return whether it does."""
    return add_plugin(client, ArbiterPlugin, SCHEDULER_ANSWER_SECONDS)
