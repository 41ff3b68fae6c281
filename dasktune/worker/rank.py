"""A process that trains with the worker's own: one of the ranks above 0 of a divided training.

``python -c "from dasktune.worker.rank import main; main(FD)"`` takes orders from the pipe FD until
the worker closes it, or is gone. It makes each call of the trainer that the worker makes, so that
the collective operations of all processes meet. It answers nothing but `Ready`, `Digest` and
`RankFailed`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, assert_never

from dasktune.engine.timeouts import PARENT_LOOK_SECONDS
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.isolation import give_own_generator
from dasktune.types import Step, Value

# ------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The processes that train together.

    Parameters
    ----------
    meeting
        A file through which they find each other.
    size
        Number of processes.
    backend
        How they talk: ``gloo`` or ``nccl``.
    seconds
        Longest wait of one for another.
    """

    meeting: str
    size: int
    backend: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraining:
    """The training that all processes begin: from step 0 if there is no state.

    Parameters
    ----------
    code
        The trainer.
    config, seed, device
        What it is built with; each process has a device of its own.
    step, first_values, last_values, state
        See `dasktune.trainer.lifecycle.TrainerRun.resume`.
    """

    code: TrainerCode
    config: Mapping[str, object]
    seed: int
    device: str
    step: Step
    first_values: Mapping[str, Value]
    last_values: Mapping[str, Value]
    state: Mapping[str, object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRank:
    """Order: build the trainer as the process of this rank."""

    rank: int
    group: RankGroup
    training: RankTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Order: train one step with these values."""

    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Order: answer with a `Digest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Answer: the trainer's code is open, and the others can be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Answer: the digest of what all processes have in common."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailed:
    """Answer: the trainer raised, and this process ends.

    Parameters
    ----------
    message, traceback
        The exception.
    at
        When (`time.monotonic`, which all processes of a host have in common).
    """

    message: str
    traceback: str
    at: float


Order = BeginRank | Advance | Compare
Answer = Ready | Digest | RankFailed


def send(pipe: Connection, message: Order | Answer) -> None:
    """Send a message between two processes of this host, which trust each other."""
    pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(pipe: Connection) -> Any:
    """Return the next message.

    Raises
    ------
    EOFError
        If the other process is gone.
    """
    return pickle.loads(pipe.recv_bytes())


# -------------------------------------------------------------------------------- process


def meet(group: RankGroup, rank: int) -> None:
    """Begin to talk with the other processes of a group; they all must do this together."""
    from datetime import timedelta

    from torch import distributed

    # Of one host: nothing listens where others could reach it.
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, loopback)
    limit = timedelta(seconds=group.seconds)
    store = distributed.FileStore(  # type: ignore[attr-defined]
        group.meeting, group.size
    )
    store.set_timeout(limit)
    distributed.init_process_group(
        group.backend, store=store, rank=rank, world_size=group.size, timeout=limit
    )


def begin(order: BeginRank, trainer_class: type) -> Any:
    """Return the run of one process of a divided training."""
    from dasktune.trainer.division import DividedTraining
    from dasktune.trainer.lifecycle import TrainerRun

    training = order.training
    division = DividedTraining(order.rank, order.group.size, training.seed)
    common: dict[str, Any] = {
        "config": training.config,
        "seed": training.seed,
        "device": training.device,
        "division": division,
    }
    if training.state is None:
        return TrainerRun.start(trainer_class, training.first_values, **common)
    return TrainerRun.resume(
        trainer_class,
        step=training.step,
        first_values=training.first_values,
        last_values=training.last_values,
        state=training.state,
        **common,
    )


def advance(run: Any, values: Mapping[str, Value]) -> None:
    """Train one step of one process."""
    with run.trainer.division.training(run.step):
        run.advance(values)


def main(descriptor: int) -> None:
    """Carry out the orders of a pipe until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # They are meant for the worker, which saves what runs: until then it needs this process.
        signal.signal(number, signal.SIG_IGN)
    pipe = Connection(descriptor)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, orders, os.getppid()), daemon=True).start()
    try:
        _carry_out(pipe, orders)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        from dasktune.worker.errors_in_words import in_words

        send(pipe, RankFailed(**in_words(error), at=time.monotonic()))
        # At once: the others wait for this process in a collective operation.
        os._exit(1)


def _read(pipe: Connection, orders: queue.SimpleQueue[Order], parent: int) -> None:
    """Take orders from the pipe; end this process with the worker, also in mid-step."""
    try:
        while os.getppid() == parent:
            if pipe.poll(PARENT_LOOK_SECONDS):
                orders.put(receive(pipe))
    except (EOFError, OSError):
        pass
    os._exit(0)


def _carry_out(pipe: Connection, orders: queue.SimpleQueue[Order]) -> None:
    run: Any = None
    while True:
        order = orders.get()
        match order:
            case BeginRank():
                trainer_class = unpack(order.training.code)
                _take_device(order.training.device)
                send(pipe, Ready())
                meet(order.group, order.rank)
                give_own_generator()
                run = begin(order, trainer_class)
            case Advance():
                advance(run, order.values)
            case Compare():
                send(pipe, Digest(digest=run.trainer.common_digest()))
            case _:
                assert_never(order)


def _take_device(device: str) -> None:
    """Make a GPU the one of this process: libraries ask for the current one."""
    if device != "cpu":
        import torch

        torch.cuda.set_device(device)
