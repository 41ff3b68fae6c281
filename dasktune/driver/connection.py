"""A cluster as a run uses it: a client, its workers and the stages sent to them.

When the scheduler is lost, the run waits for it and connects anew: Dask's own reconnection
forgets plugins and subscriptions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from distributed import Client, Future, KilledWorker

from dasktune.cluster.workers import Workers, client_hushed, connect_again, pool_of
from dasktune.driver.messages import Messages
from dasktune.driver.submissions import Submissions
from dasktune.engine.timeouts import Timeouts
from dasktune.errors import ClusterError, InternalError
from dasktune.graph.events import RunStage, SaveMissed, WorkerJoined, WorkerLost
from dasktune.worker.job import JobPlan
from dasktune.worker.messages import (
    MessageError,
    StageEnded,
    WorkerMessage,
    from_wire,
    receipt_from_wire,
)

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""How long a client may take to be closed whose scheduler is gone."""

RESULT_SECONDS = 5.0
"""How long the receipt of a stage may take whose worker has said nothing of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFinished:
    """Dask is done with an attempt."""

    attempt: str


ClusterMessage = WorkerMessage | WorkerJoined | WorkerLost | SaveMissed | AttemptFinished
"""What is heard of a cluster while a study runs there."""


class Connection:
    """The cluster that a run uses.

    Parameters
    ----------
    client
        Connected to it.
    plan
        What workers need to know.
    put
        Takes what happens; called from any thread.
    gives_up
        Whether a scheduler or worker that is not there need not be waited for any more; asked
        again and again while it is.
    timeouts
        How long it is waited for.

    Attributes
    ----------
    client, workers, submissions, messages
        Those of the scheduler that is there now.
    pool
        Starts and ends the workers; None if they just are there.
    """

    def __init__(
        self,
        client: Client,
        plan: JobPlan,
        put: Callable[[ClusterMessage], None],
        gives_up: Callable[[], bool],
        timeouts: Timeouts,
    ) -> None:
        self._plan = plan
        self._put = put
        self._gives_up = gives_up
        self._timeouts = timeouts
        self._made = ExitStack()
        self.pool = pool_of(client)
        self._use(client)

    def _use(self, client: Client) -> None:
        if client.scheduler is None:
            raise ClusterError(f"the client must be connected, it is {client.status}")
        self.client = client
        self._address = str(client.scheduler.address)
        self.workers = Workers(client, self._plan, self._put, self._gives_up, self._timeouts)
        self.submissions = Submissions(client, self._plan, self.workers.claims)
        self.messages = Messages(client, self._plan.run, self._put)

    @property
    def is_open(self) -> bool:
        """Whether the scheduler can be spoken to, as far as is known."""
        return self.client.status == "running"

    def is_there(self) -> bool:
        """Look around now and then; return whether the scheduler is the one that it was."""
        return self.is_open and self.workers.look_around()

    def open(self, patience: float | None = None) -> list[WorkerJoined]:
        """Get the workers ready; see `Workers.open`. A scheduler that is lost then is waited for.

        Raises
        ------
        ClusterError
            If they cannot be used, or the scheduler stays away.
        """
        deadline = time.monotonic() + self._timeouts.scheduler_seconds
        while True:
            try:
                return self.workers.open(self._on_event, patience)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"the workers cannot be made ready: {error}") from error
                if not self.renew():
                    return []

    def renew(self) -> bool:
        """Wait for a scheduler that was lost, and connect anew; nothing is open then.

        Returns
        -------
        bool
            Whether it is there; else nobody waits any more.

        Raises
        ------
        ClusterError
            If it stays away.
        """
        patience = self._timeouts.scheduler_seconds
        logger.warning(
            "the connection to scheduler %s was lost; it is waited for %.0f s. Its workers end "
            "with it: they must be started again, too",
            self._address,
            patience,
        )
        with client_hushed():
            client = self._wait(patience)
        if client is None:
            return False
        self._made.callback(client.close, timeout=CLOSE_SECONDS)
        self._use(client)
        logger.warning("scheduler %s is there again", self._address)
        return True

    def _wait(self, patience: float) -> Client | None:
        security = self.client.security
        self.close_stages()
        self.client.close(timeout=CLOSE_SECONDS)
        deadline = time.monotonic() + patience
        while (client := connect_again(self._address, security, self.pool)) is None:
            if self._gives_up():
                return None
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"scheduler {self._address} must be there, it is gone since {patience:.0f} s; "
                    "run this again when it is: it goes on where it was"
                )
        return client

    def hear_of_futures(self) -> None:
        """Put down what Dask is done with; a callback for each costs a thread hop and more."""
        for attempt in self.submissions.done():
            self._put(AttemptFinished(attempt=attempt))

    def receipt_of(self, order: RunStage) -> StageEnded | None:
        """Return what Dask says of an attempt that it is done with; None if its worker is gone.

        Normally the attempt's own messages came before. The attempt is forgotten here.
        """
        future = self.submissions.take(order.attempt)
        if future is None or future.status == "finished":
            return _lost(order) if future is None else _result_of(future, order)
        if future.status != "error":
            logger.warning("attempt %s ended with status %r", order.attempt, future.status)
            return _lost(order)
        error = future.exception()
        if isinstance(error, KilledWorker):
            return None
        raise InternalError(f"attempt {order.attempt} failed in Dask: {error!r}")

    def close_stages(self) -> None:
        """Let go of all stages and workers."""
        self.submissions.close()
        if self.is_open:
            self.messages.settle()
        self.workers.close()

    def close(self) -> None:
        """Let go of all stages and workers, and close clients that were made here."""
        try:
            self.close_stages()
        finally:
            self._made.close()

    def _on_event(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Pass on a message of a worker; runs in Dask's event loop.

        A malformed message is refused here: no part of the driver ever sees one. What it was
        to tell is found in the store, as if the message had been lost.
        """
        content = event[1]
        if not isinstance(content, Mapping) or content.get("run") != self._plan.run:
            return
        try:
            self._put(from_wire(content.get("message")))
        except MessageError as error:
            logger.warning("a message on the topic of this run is refused: %s", error)


def _result_of(future: Future[Any], order: RunStage) -> StageEnded:
    try:
        return receipt_from_wire(future.result(timeout=RESULT_SECONDS))
    except (OSError, TimeoutError, CancelledError, KilledWorker):
        return _lost(order)  # it lay on its worker, which is gone
    except MessageError as error:
        logger.warning("the receipt of attempt %s is refused: %s", order.attempt, error)
        return _lost(order)


def _lost(order: RunStage) -> StageEnded:
    return StageEnded(attempt=order.attempt, step=order.start, status="lost", at=time.time())
