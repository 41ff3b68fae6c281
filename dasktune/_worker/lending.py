"""Workers that train with another one: the processes that a worker borrows, and those it lends.

A worker without a stage can be lent to one that trains a trial on several devices. It starts a
process of `dasktune._worker.rank` in its own environment, on its own device, and passes orders and
answers between that process and the worker that trains. These messages go through a connection
of Dask's own between the two workers, with its addresses and its TLS.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress

from distributed import Status, Worker
from distributed.comm.core import Comm, connect
from distributed.protocol.serialize import to_serialize

from dasktune._engine.timeouts import INTERRUPT_AGAIN_SECONDS, LENT_LOOK_SECONDS
from dasktune._worker import rank as ranks
from dasktune._worker.peers import DivisionError, LenderLostError, OwnRank, ended

_LENT: set[_Loan] = set()
"""The processes that this one has lent, to whichever study."""


def lending(run: str) -> str:
    """Return the name of the handler that lends processes to a run."""
    return f"{run}:lend"


class WorkerLenders:
    """The lenders of a run, as one of its workers has them; see `dasktune._worker.peers.Lenders`.

    It is made in the worker's event loop.
    """

    def __init__(self, worker: Worker, run: str) -> None:
        self._worker = worker
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._borrowed: weakref.WeakSet[LentRank] = weakref.WeakSet()
        self._lock = threading.Lock()  # the thread that trains borrows while others look
        self._is_closed = False

    @property
    def host(self) -> str:
        """The address under which other workers reach this one."""
        return str(self._worker.ip)

    def borrow(self, rank: int, lender: str) -> LentRank:
        """Start the process of a rank on another worker; called outside of the event loop."""
        borrowed = LentRank(rank, lender, self._loop, self._worker, self._run)
        with self._lock:
            self._borrowed.add(borrowed)
        return borrowed

    def _all_borrowed(self) -> list[LentRank]:
        """Return the processes that others lend."""
        with self._lock:
            return list(self._borrowed)

    def lose(self, lender: str) -> None:
        """Handle the loss of a lender, to which a connection may still seem to be open."""
        for borrowed in self._all_borrowed():
            if borrowed.lender == lender:
                borrowed.lose()

    def give_back(self) -> None:
        """Wait no longer for the processes of lenders: nobody needs their results."""
        for borrowed in self._all_borrowed():
            borrowed.lose()

    def reclaim(self) -> None:
        """End the processes that this worker has lent."""
        for loan in list(_LENT):
            loan.recall()

    @property
    def is_busy(self) -> bool:
        """Whether a process that this worker has lent is training."""
        return any(loan.is_busy for loan in _LENT)

    async def lend(self, comm: Comm, rank: int) -> Status:
        """Lend a process of a rank until the connection ends; called by another worker.

        The memory of this worker's device must be free by then.
        """
        if not self._is_closed:
            await asyncio.to_thread(self.reclaim)
            await _Loan(OwnRank(rank)).serve(comm)
        comm.abort()
        return Status.dont_reply

    async def close(self, seconds: float) -> None:
        """Lend no more, and end the lent processes once they rest, or after so many seconds."""
        self._is_closed = True
        deadline = time.monotonic() + seconds
        while self.is_busy and time.monotonic() < deadline:
            await asyncio.sleep(LENT_LOOK_SECONDS)
        await asyncio.to_thread(self.reclaim)


class _Loan:
    """A process of this worker that trains with another worker."""

    def __init__(self, process: OwnRank) -> None:
        self.is_busy = True
        """Whether it may be training."""
        self._process = process
        self._is_recalled = False

    def recall(self) -> None:
        """End the process without a word: the borrower takes this worker for lost."""
        self._is_recalled = True
        self._process.kill()
        self._process.join()

    async def serve(self, comm: Comm) -> None:
        """Pass on orders and answers until the process or the connection ends."""
        _LENT.add(self)
        orders = asyncio.create_task(self._pass_orders(comm))
        try:
            await self._pass_answers(comm)
            code = await asyncio.to_thread(self._process.code)
            if not self._is_recalled:
                await comm.write({"ended": code})
                await orders  # the borrower closes the connection once it has read that
        except OSError:
            pass  # the borrower is gone
        finally:
            orders.cancel()
            _LENT.discard(self)
            await asyncio.to_thread(self._process.close)
            await asyncio.to_thread(self._process.join)

    async def _pass_orders(self, comm: Comm) -> None:
        with suppress(OSError):
            while True:
                message = await comm.read()
                self.is_busy = "order" in message
                if self.is_busy:
                    with suppress(OSError):  # the process is gone, which `serve` tells
                        await asyncio.to_thread(self._process.send_bytes, message["order"])
        self._process.kill()

    async def _pass_answers(self, comm: Comm) -> None:
        while True:
            try:
                answer = await asyncio.to_thread(self._process.recv_bytes)
            except (EOFError, OSError):
                self.is_busy = False
                return
            await comm.write({"answer": to_serialize(answer)})


class LentRank:
    """A process on another worker, `lender`; its methods are called outside of the event loop.

    `loop` is that of this `worker`.
    """

    gpu = 0  # a lender trains on the first device that it sees

    def __init__(
        self, rank: int, lender: str, loop: asyncio.AbstractEventLoop, worker: Worker, run: str
    ) -> None:
        self.rank = rank
        self.lender = lender
        self._loop = loop
        self._worker = worker
        self._run = run
        self._is_closed = False
        self._orders: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._next: list[bytes | None] = []
        """The answer that was polled and not read yet; None is the end."""
        self._has_ended = threading.Event()
        self._code: int | None = None
        self._talking = asyncio.run_coroutine_threadsafe(self._talk(), loop)

    def send_bytes(self, message: bytes, /) -> None:
        """Send an order."""
        if self._has_ended.is_set():
            raise BrokenPipeError(f"worker {self.lender} is gone")
        self._send({"order": to_serialize(message)})

    def recv_bytes(self) -> bytes:
        """Return the next answer."""
        answer = self._next.pop() if self._next else self._answers.get()
        if answer is None:
            self._next.append(None)
            raise EOFError
        return answer

    def poll(self, timeout: float = 0.0, /) -> bool:
        """Wait for an answer, or the end, for so many seconds; return whether there is one."""
        if not self._next:
            try:
                self._next.append(self._answers.get(timeout=max(timeout, 1e-6)))
            except queue.Empty:
                return False
        return True

    def death(self, seconds: float) -> DivisionError | None:
        """Return why the process ended; None if it lives after so many seconds."""
        if not self._has_ended.wait(seconds):
            return None
        if self._code is not None:
            return ended(self.rank, self._code)
        return LenderLostError(
            f"worker {self.lender}, which trained with this one, must stay, it is gone or has "
            "other work"
        )

    def rest(self) -> None:
        """Note that the process has nothing to do until the next order."""
        self._send({"rest": True})

    def close(self) -> None:
        """Close the connection: the lender ends the process."""
        self._is_closed = True
        with suppress(RuntimeError):  # the loop is closed, and every connection with it
            self._loop.call_soon_threadsafe(self._talking.cancel)

    def lose(self) -> None:
        """Wait no longer for the lender, which is gone."""
        self._end()
        self._talking.cancel()

    def _end(self) -> None:
        """Tell the thread that trains that nothing more comes, wherever it waits."""
        is_lost = self._code is None and not self._has_ended.is_set()
        self._has_ended.set()
        self._answers.put(None)
        if is_lost:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        """Make the collective operation fail that may wait for the lost process.

        A host that has vanished closes no connection, so the operation would fail only after
        minutes. It may also begin later: so this repeats until the run is closed.
        """
        if not self._is_closed:
            ranks.interrupt()
            self._loop.call_later(INTERRUPT_AGAIN_SECONDS, self._interrupt)

    def join(self) -> None:
        """Return at once: the lender waits for the process before it trains anything else."""

    def _send(self, message: Mapping[str, object]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._orders.put_nowait, message)

    async def _talk(self) -> None:
        """Send the orders and take the answers until the process or the lender is gone."""
        try:
            comm = await self._connect()
            sending = asyncio.create_task(self._send_orders(comm))
            try:
                await self._take_answers(comm)
            finally:
                sending.cancel()
                comm.abort()
        except OSError:
            pass  # the lender is gone
        finally:
            self._end()

    async def _connect(self) -> Comm:
        """Open a connection to the process, which the lender starts now."""
        comm: Comm = await connect(self.lender, **self._worker.connection_args)
        await comm.write({"op": lending(self._run), "rank": self.rank})
        return comm

    async def _send_orders(self, comm: Comm) -> None:
        with suppress(OSError):  # the end is met by who reads
            while True:
                await comm.write(await self._orders.get())

    async def _take_answers(self, comm: Comm) -> None:
        while True:
            message = await comm.read()
            if not isinstance(message, Mapping) or "answer" not in message:
                # None: the worker has no such handler, since it has left the run.
                self._code = message.get("ended") if isinstance(message, Mapping) else None
                return
            self._answers.put(message["answer"])
