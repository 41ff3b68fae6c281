"""A process that trains with the worker's own: one of the ranks above 0 of a divided training.

``python -c "from dasktune._worker.rank import main; main(FD)"`` takes orders from the pipe FD until
the worker closes it, or is gone. It makes each call of the trainer that the first process makes, so
that the collective operations of all processes meet. It answers nothing but `Ready`, `Digest` and
`RankFailed`.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol, assert_never

from dasktune._engine.timeouts import PARENT_LOOK_SECONDS
from dasktune.trainer.code import TrainerCode, unpack
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.proof.remedies import Proving
from dasktune.types import Step, Value

# ------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeeting:
    """A file through which the processes of one host find each other."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMeeting:
    """An address at which the first process listens, so that those of all hosts find each other."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """The processes that train together."""

    meeting: FileMeeting | PortMeeting
    """Where they find each other."""
    size: int
    """Number of processes."""
    backend: str
    """How they talk: ``gloo`` or ``nccl``."""
    seconds: float
    """Longest wait of one for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraining:
    """The training that all processes begin: from step 0 if there is no state."""

    code: TrainerCode
    """The trainer."""
    config: Mapping[str, object]
    seed: int
    device: str
    """What it is built with; each process has a device of its own."""
    step: Step
    first_values: Mapping[str, Value]
    last_values: Mapping[str, Value]
    state: Mapping[str, object] | None
    """See `dasktune.trainer.lifecycle.TrainerRun.resume`."""
    proving: Proving | None = None
    """As there, for the first process."""


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
    """Answer: the trainer raised, and this process ends."""

    message: str
    traceback: str
    """The exception."""
    at: float
    """When (epoch seconds: hosts have no other clock in common)."""


Order = BeginRank | Advance | Compare
Answer = Ready | Digest | RankFailed


class Wire(Protocol):
    """A connection between two processes that trust each other."""

    def send_bytes(self, message: bytes, /) -> None:
        """Send a message."""

    def recv_bytes(self) -> bytes:
        """Return the next message; `EOFError` if the other process is gone."""


def send(wire: Wire, message: Order | Answer) -> None:
    """Send a message."""
    wire.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(wire: Wire) -> Any:
    """Return the next message; raise an `EOFError` if the other process is gone."""
    return pickle.loads(wire.recv_bytes())


# -------------------------------------------------------------------------------- process


CHOSEN: dict[str, str] = {}
"""The variables with the interface of a group that were set here, and not by the user."""


class GroupSockets:
    """The connections of this process's group: those that were opened since it began to meet.

    Another thread may have opened one at the same time, which is then closed, too, if a process
    of the group is lost.
    """

    def __init__(self) -> None:
        self._before: Mapping[int, int] = {}
        self._opened: Mapping[int, int] | None = {}
        """The inode of each by its descriptor; None while the group meets."""

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Take the connections that are opened in this block for those of the group."""
        self._before, self._opened = _open_sockets(), None
        try:
            yield
        finally:
            self._opened = self._new()

    def shut_down(self) -> None:
        """Make each send and receive on these connections fail; from any thread."""
        opened, now = self._opened, _open_sockets()
        for descriptor, inode in (self._new() if opened is None else opened).items():
            if now.get(descriptor) != inode:
                continue
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    # This fails for a socket that listens: gloo needs it open.
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)

    def _new(self) -> Mapping[int, int]:
        known = self._before.values()
        return {each: inode for each, inode in _open_sockets().items() if inode not in known}


_SOCKETS = GroupSockets()


def meet(group: RankGroup, rank: int, listener: socket.socket | None = None) -> None:
    """Begin to talk with the other processes of a group; they all must do this together.

    `listener` listens, in the first process of a `PortMeeting`, at the place of the meeting.
    """
    with _SOCKETS.opening():
        _meet(group, rank, listener)


def interrupt() -> None:
    """Make this process's collective operation and all later ones fail; from any thread.

    Torch cannot do this for gloo, so this shuts down the connections of the group. If the group is
    still meeting, the meeting fails.
    """
    _SOCKETS.shut_down()


def _meet(group: RankGroup, rank: int, listener: socket.socket | None) -> None:
    from torch import distributed

    limit = timedelta(seconds=group.seconds)
    store: Any
    match group.meeting:
        case FileMeeting(path=path):
            # Of one host: nothing listens where others could reach it.
            _listen_on("lo0" if sys.platform == "darwin" else "lo")
            store = distributed.FileStore(path, group.size)  # type: ignore[attr-defined]
            store.set_timeout(limit)
        case PortMeeting(host=host, port=port):
            _listen_on(_interface_to(host, port))
            store = distributed.TCPStore(  # type: ignore[attr-defined]
                host,
                port,
                group.size,
                listener is not None,
                limit,
                wait_for_workers=False,
                # A socket of torch's own would listen on all interfaces.
                master_listen_fd=None if listener is None else listener.detach(),
                use_libuv=False,  # with it, older versions of torch take no socket
            )
        case _:
            assert_never(group.meeting)
    distributed.init_process_group(
        group.backend, store=store, rank=rank, world_size=group.size, timeout=limit
    )


def _open_sockets() -> dict[int, int]:
    """Return the inode of each socket of this process by its descriptor."""
    inodes = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                inodes[int(name)] = status.st_ino
    return inodes


def _listen_on(interface: str | None) -> None:
    """Choose the interface of the next group, unless the user has chosen one."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if os.environ.get(name) != CHOSEN.pop(name, None):
            continue
        os.environ.pop(name, None)
        if interface is not None:
            os.environ[name] = CHOSEN[name] = interface


def _interface_to(host: str, port: int) -> str | None:
    """Return the interface of this host by which it reaches an address; None if that is unknown."""
    import psutil

    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # this sends nothing
        own = probe.getsockname()[0]
    known = psutil.net_if_addrs().items()
    return next((name for name, each in known if own in {entry.address for entry in each}), None)


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
        "proving": training.proving,
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # They are meant for the worker, which saves what runs: until then it needs this process.
        signal.signal(number, signal.SIG_IGN)
    pipe = Connection(descriptor)
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, orders, os.getppid()), daemon=True).start()
    try:
        _carry_out(pipe, orders)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        from dasktune._worker.errors_in_words import in_words

        send(pipe, RankFailed(**in_words(error), at=time.time()))
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
