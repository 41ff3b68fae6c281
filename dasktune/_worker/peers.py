"""The processes that train with this one, as this one has them.

A peer is a connection to a process of `dasktune._worker.rank`, however that was started: here, or
on another worker (`dasktune._worker.lending`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

from dasktune._engine.timeouts import RANK_END_SECONDS
from dasktune._worker.rank import CHOSEN, Wire
from dasktune.errors import TrainerError

_MAIN = "import sys; sys.path[:] = {path!r}; from dasktune._worker.rank import main; main({pipe})"


class DivisionError(TrainerError):
    """Several devices could not train a trial together."""


class LenderLostError(DivisionError):
    """A worker that trained with this one is gone, or needs its device: no trial is to blame."""


class Peer(Wire, Protocol):
    """Another process of a divided training.

    Attributes
    ----------
    rank
        Its number, from 1.
    gpu
        Index of its GPU among those that it sees.
    """

    rank: int
    gpu: int

    def poll(self, timeout: float = 0.0, /) -> bool:
        """Wait for an answer, or the end, for so many seconds; return whether there is one."""

    def death(self, seconds: float) -> DivisionError | None:
        """Return why the process ended; None if it lives after so many seconds."""

    def rest(self) -> None:
        """Note that the process has nothing to do until the next order."""

    def close(self) -> None:
        """End the process, or begin to."""

    def join(self) -> None:
        """Wait until a closed process has ended, if it is one of this host."""


class Lenders(Protocol):
    """The other workers, as one that trains with them has them, and as one that is lent."""

    @property
    def host(self) -> str:
        """The address under which other workers reach this one."""

    def borrow(self, rank: int, lender: str) -> Peer:
        """Start the process of a rank on the worker of this address."""

    def give_back(self) -> None:
        """Wait no longer for the processes of lenders: nobody needs their results."""

    def reclaim(self) -> None:
        """End the processes that this worker has lent: it needs its device."""


class OwnRank:
    """A process that this one has started."""

    def __init__(self, rank: int) -> None:
        self.rank = self.gpu = rank
        # A new program: a fork could not use CUDA, and Dask's workers may not start
        # multiprocessing's.
        here, there = Pipe()
        program = _MAIN.format(path=sys.path, pipe=there.fileno())
        # It chooses its interface itself; the one that was chosen here is not the user's choice.
        environment = {k: value for k, value in os.environ.items() if CHOSEN.get(k) != value}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        finally:
            there.close()
        self._pipe: Connection = here

    def send_bytes(self, message: bytes, /) -> None:
        """Send an order."""
        self._pipe.send_bytes(message)

    def recv_bytes(self) -> bytes:
        """Return the next answer."""
        return self._pipe.recv_bytes()

    def poll(self, timeout: float = 0.0, /) -> bool:
        """Wait for an answer, or the end, for so many seconds; return whether there is one."""
        return self._pipe.poll(timeout)

    def death(self, seconds: float) -> DivisionError | None:
        """Return why the process ended; None if it lives after so many seconds."""
        code = self.code(seconds)
        return None if code is None else ended(self.rank, code)

    def code(self, seconds: float = RANK_END_SECONDS) -> int | None:
        """Return the exit code.

        A process that has just died closes its connections a little before it can be waited for.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def rest(self) -> None:
        """Do nothing: it has a device of this worker."""

    def kill(self) -> None:
        """End the process; whoever reads its answers meets their end."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self.kill()
        self._pipe.close()

    def join(self) -> None:
        """Wait until it has ended."""
        self._process.wait()


def ended(rank: int, code: int) -> DivisionError:
    """Return the error of a process that ended by itself."""
    return DivisionError(f"the process of device {rank} must live, it ended with code {code}")
