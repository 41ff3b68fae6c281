"""A cluster as a run uses it: a client, its workers and the stages sent to them.

When the scheduler is lost, the run waits for it and connects anew: Dask's own reconnection
forgets plugins and subscriptions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent import futures
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from typing import Any

from dask.base import annotate
from distributed import Client, Future, KilledWorker
from distributed import client as of_clients

from dasktune._cluster.pools import elastic_of
from dasktune._cluster.workers import Workers, client_hushed, connect_again
from dasktune._driver.inbox import AttemptFinished
from dasktune._driver.waiting import trials_of
from dasktune._engine.timeouts import (
    CANCELLED_SECONDS,
    CLIENT_CLOSE_SECONDS,
    RECEIPT_SECONDS,
    RESULT_SECONDS,
    SETTLE_SECONDS,
    Timeouts,
)
from dasktune._worker.job import AuditSpec, JobPlan, StageSpec
from dasktune._worker.messages import (
    MessageError,
    PredictionAnswer,
    StageEnded,
    WorkerMessage,
    from_wire,
    receipt_from_wire,
    unpacked,
)
from dasktune._worker.plugin import (
    audit_prefix_of,
    predicting,
    prefix_of,
    run_audit,
    run_stage,
)
from dasktune.errors import ClusterError, InternalError
from dasktune.graph.events import Granted, RunStage, SaveMissed, WorkerJoined, WorkerLost
from dasktune.graph.view import AttemptView
from dasktune.logs import trials_text

logger = logging.getLogger(__name__)

# Before Dask 2025.4 a closed client raised a plain `Exception`.
ClosedClientError: type[Exception] = getattr(of_clients, "ClosedClientError", Exception)

ClusterMessage = WorkerMessage | WorkerJoined | WorkerLost | SaveMissed | AttemptFinished | Granted
"""What is heard of a cluster while a study runs there."""


class Submissions:
    """The futures of attempts on one connection to a cluster."""

    def __init__(self, client: Client, plan: JobPlan, workers: Workers) -> None:
        self._client = client
        self._plan = plan
        self._workers = workers
        self._futures: dict[str, Future[Any]] = {}
        self._silent: dict[str, float] = {}
        """Since when Dask is done with each attempt whose last message has not arrived."""

    def submit(
        self,
        order: RunStage,
        seed: int,
        omits: tuple[str, float, float] | None = None,
        *,
        files_known: int = 1,
    ) -> str:
        """Send a stage to its worker; return the key of the state at its end.

        For `omits` and `files_known` see `StageSpec`.
        """
        node = order.node
        chain = node.chain_at(order.start)
        spec = StageSpec(
            attempt=order.attempt,
            start=order.start,
            stop=order.stop,
            saves=order.saves,
            sequences={name: sequence.to_json() for name, sequence in node.sequences.items()},
            chain=(chain.base, chain.values.hex(), chain.length),
            seed=seed,
            is_alone=node.is_alone,
            lenders=order.lenders,
            omits=omits,
            files_known=files_known,
        )
        before = None if order.after is None else self._futures.get(order.after)
        key, trials = node.key_at(order.stop), trials_of(node)
        name = (prefix_of(self._plan.run), trials_text(trials), key, order.start, order.stop)
        # Dask's dashboard shows the key, and its plugins see annotations.
        with annotate(trials=trials):
            self._futures[order.attempt] = self._client.submit(
                run_stage,
                self._plan.run,
                spec.pack(),
                before,
                key=(*name, order.attempt),
                workers=[order.worker],
                resources=self._workers.claims(order.worker, order.needs),
                priority=-order.order,
                retries=0,
                pure=False,
            )
        return key

    def audit(
        self, worker: str, spec: AuditSpec, needs: Mapping[str, float]
    ) -> Future[dict[str, Any]]:
        """Send an audit to a worker, which begins it before its next stage."""
        return self._client.submit(
            run_audit,
            self._plan.run,
            spec.to_wire(),
            key=(audit_prefix_of(self._plan.run), spec.stage.attempt),
            workers=[worker],
            resources=self._workers.claims(worker, needs),
            priority=1,
            retries=0,
            pure=False,
        )

    def done(self, open_attempts: Mapping[str, AttemptView], now: float) -> Iterator[str]:
        """Yield the attempts that Dask is done with.

        If somebody else has cancelled one that trains, its worker saves its state and says so, or
        is gone. The driver waits for that: if it took the attempt for lost before, the steps would
        be trained again. One that has not begun is cancelled with the stage before it. The last
        messages of one that has finished may come after Dask's word.
        """
        for attempt, future in self._futures.items():
            if not future.done():
                continue
            patience, known = 0.0, open_attempts.get(attempt)
            if known is not None and not known.ended:
                if future.cancelled() and known.begun:
                    patience = CANCELLED_SECONDS
                elif future.status == "finished":
                    patience = RECEIPT_SECONDS
            if now - self._silent.setdefault(attempt, now) >= patience:
                yield attempt

    def take(self, attempt: str) -> Future[Any] | None:
        """Return the future of an attempt, which is forgotten here."""
        self._silent.pop(attempt, None)
        return self._futures.pop(attempt, None)

    def cancel(self, attempt: str) -> None:
        """Cancel an attempt in Dask, which tells its worker."""
        future = self.take(attempt)
        if future is not None and self._client.status == "running":
            with suppress(ClosedClientError):  # its scheduler may be gone at this moment
                future.cancel()

    def close(self) -> None:
        """Cancel all attempts in Dask."""
        for attempt in list(self._futures):
            self.cancel(attempt)


class Messages:
    """The messages of one run on one connection to a cluster; it waits for no answer.

    `put` takes what workers could not do.
    """

    def __init__(
        self, client: Client, run: str, put: Callable[[SaveMissed | PredictionAnswer], None]
    ) -> None:
        self._client = client
        self._run = run
        self._put = put
        self._sent: set[futures.Future[None]] = set()

    def control(
        self,
        worker: str,
        attempt: str,
        *,
        save_at: int | None = None,
        stop_at: int | None = None,
        lost: str = "",
    ) -> None:
        """Send a save-point, or a stop, to an attempt; with a stop, the lender that is lost.

        `SaveMissed` follows if the attempt was at its save-point before.
        """

        def receive(answer: object) -> None:
            if save_at is not None and answer != "ok":
                self._put(SaveMissed(attempt=attempt, step=save_at))

        message = {"op": self._run, "attempt": attempt, "save_at": save_at, "lost": lost}
        message["stop_at"] = -1 if stop_at is None else stop_at
        self._send(worker, message, receive)

    def predict(self, worker: str, number: int, question: bytes) -> None:
        """Send a question to a worker, which says its answer later, as all that it says.

        A `PredictionAnswer` without an answer follows if the worker does not take it.
        """

        def receive(answer: object) -> None:
            if answer != "ok":
                self._put(PredictionAnswer(worker=worker, number=number, answer=None))

        message = {"op": predicting(self._run), "number": number, "question": question}
        self._send(worker, message, receive)

    def settle(self) -> None:
        """Wait until workers have answered: after they leave the run they know no such message."""
        futures.wait(list(self._sent), SETTLE_SECONDS)

    def _send(
        self, worker: str, message: Mapping[str, object], receive: Callable[[object], None]
    ) -> None:
        """Send a message; its answer is received in Dask's event loop."""
        scheduler, loop = self._client.scheduler, self._client.loop
        if scheduler is None or loop is None:
            return  # the client is closed: whatever runs, or is asked, is lost

        async def send() -> None:
            try:
                answers = await scheduler.broadcast(
                    msg=message, workers=[worker], on_error="return"
                )
            except OSError:
                answers = {}  # the scheduler is gone
            receive(answers.get(worker))

        sent = asyncio.run_coroutine_threadsafe(send(), loop.asyncio_loop)  # type: ignore[attr-defined]
        self._sent.add(sent)
        sent.add_done_callback(self._sent.discard)


class Connection:
    """The cluster that a run uses; `put` takes what happens there, from any thread.

    `client`, `workers`, `submissions` and `messages` are those of the scheduler that is there now.
    `elastic` is the cluster, if it starts and ends its workers itself; else None.
    """

    def __init__(
        self,
        client: Client,
        plan: JobPlan,
        put: Callable[[ClusterMessage], None],
        timeouts: Timeouts,
    ) -> None:
        self._plan = plan
        self._put = put
        self._timeouts = timeouts
        self._made = ExitStack()
        self.elastic = elastic_of(client)
        self._use(client)

    def _use(self, client: Client) -> None:
        if client.scheduler is None:
            raise ClusterError(f"the client must be connected, it is {client.status}")
        self.client = client
        self._address = str(client.scheduler.address)
        self.workers = Workers(client, self._plan, self._put, self._timeouts)
        self.submissions = Submissions(client, self._plan, self.workers)
        self.messages = Messages(client, self._plan.run, self._put)

    @property
    def is_open(self) -> bool:
        """Whether the scheduler can be spoken to, as far as is known."""
        return self.client.status == "running"

    def is_there(self) -> bool:
        """Look around now and then; return whether the scheduler is the one that it was."""
        return self.is_open and self.workers.look_around()

    def open(self, patience: float | None = None) -> Generator[None, None, list[WorkerJoined]]:
        """Get the workers ready; see `Workers.open`. A scheduler that is lost then is waited for.

        Raises a `ClusterError` if they cannot be used, or the scheduler stays away.
        """
        deadline = time.monotonic() + self._timeouts.scheduler_seconds
        while True:
            try:
                return (yield from self.workers.open(self._on_event, patience))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"the workers cannot be made ready: {error}") from error
                yield from self.renew()

    def renew(self) -> Generator[None, None, bool]:
        """Wait for a scheduler that was lost, and connect anew; nothing is open then.

        Yields after each attempt in vain: a caller that closes the generator waits no longer.
        Returns True, to tell the end from a wait that was broken off. Raises a `ClusterError` if
        the scheduler stays away.
        """
        patience = self._timeouts.scheduler_seconds
        logger.warning(
            "the connection to scheduler %s was lost; it is waited for %.0f s. Its workers end "
            "with it: they must be started again, too",
            self._address,
            patience,
        )
        with client_hushed():
            security = self.client.security
            self.close_stages()
            self.client.close(timeout=CLIENT_CLOSE_SECONDS)
            deadline = time.monotonic() + patience
            while (client := connect_again(self._address, security, self.elastic)) is None:
                yield
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"scheduler {self._address} must be there, it is gone since "
                        f"{patience:.0f} s; run this again when it is: it goes on where it was"
                    )
        self._made.callback(client.close, timeout=CLIENT_CLOSE_SECONDS)
        self._use(client)
        logger.warning("scheduler %s is there again", self._address)
        return True

    @property
    def resting(self) -> Collection[str]:
        """The workers that Dask has paused and that execute nothing."""
        return self.workers.resting

    def audit(
        self, worker: str, spec: AuditSpec, needs: Mapping[str, float]
    ) -> Future[dict[str, Any]]:
        """Send an audit to a worker; return its receipt, as a future."""
        return self.submissions.audit(worker, spec, needs)

    def check_futures(self, open_attempts: Mapping[str, AttemptView], now: float) -> None:
        """Report the attempts that Dask is done with; callbacks would cost a thread hop each."""
        for attempt in self.submissions.done(open_attempts, now):
            self._put(AttemptFinished(attempt=attempt))

    def receipt_of(self, order: RunStage) -> StageEnded | None:
        """Return the receipt of an attempt that Dask is done with; None if its worker is gone.

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
        """Cancel all stages, and leave all workers."""
        self.submissions.close()
        if self.is_open:
            self.messages.settle()
        self.workers.close()

    def close(self) -> None:
        """Cancel all stages, leave all workers, and close the clients that were made here."""
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
            self._put(from_wire(unpacked(content.get("message"))))
        except MessageError as error:
            logger.warning("a message on the topic of this run is refused: %s", error)


def _result_of(future: Future[Any], order: RunStage) -> StageEnded:
    try:
        return receipt_from_wire(unpacked(future.result(timeout=RESULT_SECONDS)))
    except (OSError, TimeoutError, CancelledError, KilledWorker):
        return _lost(order)  # it lay on its worker, which is gone
    except MessageError as error:
        logger.warning("the receipt of attempt %s is refused: %s", order.attempt, error)
        return _lost(order)


def _lost(order: RunStage) -> StageEnded:
    return StageEnded(attempt=order.attempt, step=order.start, status="lost", at=time.time())
