"""What a driver tells its workers while their stages run; each message is answered at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent import futures

from distributed import Client

from dasktune.graph.events import SaveMissed
from dasktune.worker.messages import PredictionAnswer
from dasktune.worker.plugin import predicting

SETTLE_SECONDS = 5.0
"""How long workers may take to answer what is still on its way when a run ends."""


class Messages:
    """The messages of one run on one connection to a cluster; none is waited for.

    Parameters
    ----------
    client
        Connected to it.
    run
        Name of the run.
    put
        Takes what workers could not do.
    """

    def __init__(
        self, client: Client, run: str, put: Callable[[SaveMissed | PredictionAnswer], None]
    ) -> None:
        self._client = client
        self._run = run
        self._put = put
        self._sent: set[futures.Future[None]] = set()

    def control(
        self, worker: str, attempt: str, *, save_at: int | None = None, stop_at: int | None = None
    ) -> None:
        """Send a save-point, or a stop, to an attempt.

        `SaveMissed` follows if the attempt was at its save-point before.
        """

        def receive(answer: object) -> None:
            if save_at is not None and answer != "ok":
                self._put(SaveMissed(attempt=attempt, step=save_at))

        message = {"op": self._run, "attempt": attempt, "save_at": save_at}
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
        """Wait until workers have answered: who has left the run knows no message of it."""
        futures.wait(list(self._sent), SETTLE_SECONDS)

    def _send(
        self, worker: str, message: Mapping[str, object], receive: Callable[[object], None]
    ) -> None:
        """Send a message; its answer is heard in Dask's event loop."""
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
