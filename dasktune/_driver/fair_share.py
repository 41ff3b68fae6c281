"""The share of a run in the workers of a cluster where several studies run.

A thread claims workers from the scheduler, see `dasktune._cluster.arbiter`, and puts the answer
among the driver's messages when it has changed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from distributed import Client

from dasktune._cluster.arbiter import CLAIM, LEAVE, add_arbiter
from dasktune._driver.parts import Following, Part
from dasktune._driver.shared_stages import NoSharing, SharedStages
from dasktune._driver.worker_demand import WorkerDemand
from dasktune._engine.timeouts import (
    CLAIM_SECONDS,
    SCHEDULER_ANSWER_SECONDS,
    UNANSWERED_SECONDS,
)
from dasktune.graph.events import Granted, WorkerJoined
from dasktune.graph.packing import stand_ins
from dasktune.graph.view import RunView

logger = logging.getLogger(__name__)


class DemandSource(Protocol):
    """The demand of a run for workers."""

    def at(self, now: float) -> WorkerDemand:
        """Return the demand at a time of the run, in seconds."""


class FairShare(Part):
    """Claims workers for a run; for `weight` see `dasktune.graph.fair_shares.Claim`.

    `put` takes a `Granted` from a thread when other workers may be used than before.
    """

    def __init__(
        self,
        view: RunView,
        demand: DemandSource,
        *,
        run: str,
        weight: float,
        put: Callable[[Granted], None],
    ) -> None:
        self.sharing: SharedStages | NoSharing = NoSharing()
        """The stages that the run waits for because other drivers train them."""
        self._view = view
        self._demand = demand
        self._run = run
        self._weight = weight
        self._put = put
        self._client: Client | None = None
        self._claim: dict[str, object] = {}
        self._given_back: frozenset[str] = frozenset()
        self._granted: frozenset[str] | None = None
        self._due = 0.0
        self._now = 0.0
        self._unanswered: float | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def use(self, client: Client, joined: Iterable[WorkerJoined]) -> None:
        """Claim from the scheduler of this client from now on; `granted` is its first answer.

        Until the first workers have joined, the run is granted none: one that joins may share its
        device with a worker of another study.
        """
        self._client, self._granted = client if add_arbiter(client) else None, None
        self._unanswered = None
        if self._client is None:
            return
        self._claim = {
            "workers": 1,
            "weight": self._weight,
            "busy": [],
            "usable": stand_ins(joined),
            "holder": "",
            "awaits": [],
        }
        self._ask_once()
        if self._thread is None:
            self._thread = threading.Thread(target=self._go_on, daemon=True)
            self._thread.start()

    @property
    def granted(self) -> Granted:
        """The last answer; all workers before the first."""
        return Granted(workers=self._granted)

    def turn(self, now: float) -> Iterable[Following]:
        """Set the claim: now and then, and at once if workers can be given back or are new."""
        self._now = now
        withheld = frozenset(self._view.withheld)
        given_back = frozenset(name for name in withheld if not self._view.is_busy(name))
        is_known = bool(self._claim.get("usable")) or not self._view.slots
        if now < self._due and given_back == self._given_back and is_known:
            return ()
        self._due, self._given_back = now + CLAIM_SECONDS, given_back
        needed = self._demand.at(now)
        self._claim = {
            "workers": needed.workers,
            "wanted": None if needed.wanted is None else [*needed.wanted],
            "weight": self._weight,
            "least": needed.least,
            # A device is given back once all its workers are done with their stages.
            "busy": [*self._view.busy_claims],
            # A device that workers share is granted as a whole, by the worker that stands for it.
            "usable": [*self._view.claimable],
            "holder": self.sharing.holder,
            "awaits": self.sharing.awaited(),
        }
        self._wake.set()
        return ()

    def close(self) -> None:
        """Give all workers back."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._ask(LEAVE, run=self._run)

    def _go_on(self) -> None:
        while self._wake.wait() and not self._is_closed:
            self._wake.clear()
            if self._ask_once():
                self._put(self.granted)

    def _ask_once(self) -> bool:
        """Claim; return whether other workers may be used than before."""
        client = self._client
        if client is None:
            return False
        answer = self._ask(CLAIM, run=self._run, client=client.id, **self._claim)
        if answer is None:
            return self._runs_out_of_patience()
        self._unanswered = None
        granted = None if answer["granted"] is None else frozenset(answer["granted"])
        if granted == self._granted:
            return False
        if (granted is None) != (self._granted is None):
            others = answer["runs"] - 1
            logger.info(
                "this run has all workers"
                if granted is None
                else f"this run shares the workers of the cluster with {others} more"
            )
        self._granted = granted
        return True

    def _runs_out_of_patience(self) -> bool:
        """Use all workers if no claim was answered for long; return whether that is new.

        The last answer may have granted none, and nobody would grant more: the run would never end.
        """
        if self._unanswered is None:
            self._unanswered = self._now
        silent_seconds = self._now - self._unanswered
        if self._granted is None or silent_seconds < UNANSWERED_SECONDS:
            return False
        logger.warning(
            "the scheduler has not answered for %.0f s how many workers this run may use: it uses "
            "all of them now, as if it were alone",
            silent_seconds,
        )
        self._granted = None
        return True

    def _ask(self, operation: str, **message: object) -> Mapping[str, Any] | None:
        """Return the scheduler's answer; None if it cannot be asked."""
        client = self._client
        if client is None or client.status != "running" or client.scheduler is None:
            return None
        try:
            answer = client.sync(
                getattr(client.scheduler, operation),
                callback_timeout=SCHEDULER_ANSWER_SECONDS,
                **message,
            )
        except Exception as error:  # noqa: BLE001 - the next claim may be answered
            logger.debug("the scheduler does not answer a claim: %s", error)
            return None
        return answer if isinstance(answer, Mapping) and "granted" in answer else None
