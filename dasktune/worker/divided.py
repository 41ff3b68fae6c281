"""A training that several devices of one worker share: this process, and one for each other device.

This process is rank 0: it evaluates, and its state is saved. The others make the same calls. They
end with the run, with this process, and at the first failure of any of them.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Any

from dasktune.engine.timeouts import RANK_END_SECONDS, RANK_SECONDS, RANK_START_SECONDS
from dasktune.errors import TrainerError
from dasktune.trainer.base import division_problem
from dasktune.trainer.code import TrainerCode, pack
from dasktune.trainer.generators import is_cuda
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.types import Step, Value
from dasktune.worker import rank as ranks
from dasktune.worker.rank import (
    Advance,
    BeginRank,
    Compare,
    Digest,
    RankFailed,
    RankGroup,
    RankTraining,
)

_MAIN = "import sys; sys.path[:] = {path!r}; from dasktune.worker.rank import main; main({pipe})"

_OPEN: weakref.WeakSet[DividedRun] = weakref.WeakSet()
"""The runs of this process: torch knows one group of processes at a time."""


class DivisionError(TrainerError):
    """Several devices could not train a trial together."""


@dataclass(frozen=True, slots=True)
class _Peer:
    """Another process of the group."""

    rank: int
    process: subprocess.Popen[bytes]
    pipe: Connection


class DividedRun:
    """A `TrainerRun` on several devices, with the same methods.

    Made by `begin`. After an exception it is closed.
    """

    def __init__(self, training: RankTraining, trainer_class: type, group: RankGroup) -> None:
        self._peers = [
            _start(BeginRank(rank=rank, group=group, training=_on_device(training, rank)))
            for rank in range(1, group.size)
        ]
        # Also if nobody closes it: no process outlives its run, or this process.
        self.close = weakref.finalize(self, _end, self._peers, Path(group.meeting).parent)
        with self._failing_together():
            for peer in self._peers:
                self._hear(peer, RANK_START_SECONDS)
            ranks.meet(group, 0)
            order = BeginRank(rank=0, group=group, training=training)
            self._run = ranks.begin(order, trainer_class)

    @classmethod
    def begin(cls, training: RankTraining, trainer_class: type, devices: int) -> DividedRun:
        """Return a run of so many devices; from step 0 if the training has no state.

        Raises
        ------
        TrainerError
            If the trainer cannot be divided, or there are not so many devices.
        """
        while _OPEN:
            _OPEN.pop().close()
        folder = tempfile.mkdtemp(prefix="dasktune-ranks-")
        group = RankGroup(
            meeting=str(Path(folder, "meeting")),
            size=devices,
            backend=_backend(training.device, trainer_class, devices),
            seconds=RANK_SECONDS,
        )
        run = cls(training, trainer_class, group)
        _OPEN.add(run)
        return run

    @property
    def step(self) -> Step:
        """Number of steps trained since the start of the lineage."""
        return int(self._run.step)

    @property
    def trainer(self) -> Any:
        """The user's object in this process."""
        return self._run.trainer

    def advance(self, values: Mapping[str, Value]) -> None:
        """Train one step on all devices."""
        with self._failing_together():
            for peer in self._peers:
                ranks.send(peer.pipe, Advance(values=dict(values)))
            ranks.advance(self._run, values)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the model, which are measured in this process."""
        with self._failing_together():
            return dict(self._run.evaluate())

    def state(self) -> dict[str, Any]:
        """Return the state, which all devices go on from alike.

        Raises
        ------
        TrainerError
            If the processes hold unlike parameters or generators: a training that is resumed from
            this state would not be the one that went on.
        """
        with self._failing_together():
            for peer in self._peers:
                ranks.send(peer.pipe, Compare())
            own = self.trainer.common_digest()
            for peer in self._peers:
                answer = self._hear(peer, RANK_SECONDS)
                if not isinstance(answer, Digest) or answer.digest != own:
                    raise DivisionError(
                        "all devices must hold the same parameters and generators after step "
                        f"{self.step}, device {peer.rank} holds others: in train(), call modules "
                        "through divided(), and draw random numbers alike on all devices"
                    )
            return dict(self._run.state())

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Close the run at an exception; raise that of another process if it came first."""
        try:
            yield
        except (RuntimeError, ConnectionError, EOFError) as error:
            # An operation of several processes has failed, or an order was not taken, perhaps
            # since one of them is gone.
            failure = self._first_failure()
            self.close()
            raise failure or error from (None if failure is None else failure.__cause__)
        except BaseException:
            self.close()
            raise

    def _first_failure(self) -> DivisionError | None:
        """Return the exception of the process that failed first; None if all others go on."""
        failures: list[tuple[float, _Peer, RankFailed]] = []
        for peer in self._peers:
            with contextlib.suppress(EOFError, OSError):
                while peer.pipe.poll():
                    answer = ranks.receive(peer.pipe)
                    if isinstance(answer, RankFailed):
                        failures.append((answer.at, peer, answer))
        if failures:
            _, peer, answer = min(failures, key=itemgetter(0))
            return _failure(peer, answer)
        return next((_ended(peer) for peer in self._peers if not _lives(peer)), None)

    def _hear(self, peer: _Peer, seconds: float) -> Any:
        """Return the next answer of another process."""
        try:
            if not peer.pipe.poll(seconds):
                raise DivisionError(
                    f"the process of device {peer.rank} must answer within {seconds:g} s"
                )
            answer = ranks.receive(peer.pipe)
        except (EOFError, OSError):
            raise _ended(peer) from None
        if isinstance(answer, RankFailed):
            raise _failure(peer, answer)
        return answer


class _OtherProcessError(Exception):
    """The traceback of another process, to stand above that of this one."""


def _failure(peer: _Peer, answer: RankFailed) -> DivisionError:
    failure = DivisionError(f"device {peer.rank}: {answer.message}", answer.traceback)
    failure.__cause__ = _OtherProcessError(f"on device {peer.rank}:\n{answer.traceback}")
    return failure


def _ended(peer: _Peer) -> DivisionError:
    code = peer.process.wait()
    return DivisionError(f"the process of device {peer.rank} must live, it ended with code {code}")


def _lives(peer: _Peer) -> bool:
    """Whether a process runs; one that has just died closes its connections a little earlier."""
    try:
        peer.process.wait(RANK_END_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _start(order: BeginRank) -> _Peer:
    """Start a process, and tell it what to train."""
    # A new program: a fork could not use CUDA, and Dask's workers may not start multiprocessing's.
    here, there = Pipe()
    program = _MAIN.format(path=sys.path, pipe=there.fileno())
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL
        )
    finally:
        there.close()
    peer = _Peer(order.rank, process, here)
    with contextlib.suppress(OSError):  # it is gone, which is heard of next
        ranks.send(here, order)
    return peer


def _end(peers: list[_Peer], folder: Path) -> None:
    """End the other processes, and this one's part in the group."""
    for peer in peers:
        peer.process.kill()
        peer.pipe.close()
    for peer in peers:
        peer.process.wait()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    shutil.rmtree(folder, ignore_errors=True)


def _on_device(training: RankTraining, rank: int) -> RankTraining:
    return replace(training, device=f"cuda:{rank}") if is_cuda(training.device) else training


def _backend(device: str, trainer_class: type, devices: int) -> str:
    """Return how the processes talk to each other."""
    if problem := division_problem(trainer_class):
        raise DivisionError(problem)
    from torch import cuda, distributed

    if not distributed.is_available():
        raise DivisionError("torch must have torch.distributed to train on several devices")
    if distributed.is_initialized():
        raise DivisionError("torch.distributed must not be in use by others in this process")
    if not is_cuda(device):
        return "gloo"
    if cuda.device_count() < devices:
        raise DivisionError(f"{devices} GPUs must be visible here, got {cuda.device_count()}")
    return "nccl"


def code_of(trainer_class: type, code: TrainerCode | None) -> TrainerCode:
    """Return the code of a trainer for another process."""
    return pack(trainer_class) if code is None else code


AnyRun = TrainerRun | DividedRun
"""A trainer in training, on one device or on several."""
