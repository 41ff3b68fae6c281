"""A training that several devices share: this process, and one for each other device.

This process is rank 0: it evaluates, and its state is saved. The others make the same calls. They
end with the run, with this process, and at the first failure of any of them. They run on this
worker, or each on a worker that is lent to this one.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from dasktune._engine.timeouts import RANK_END_SECONDS, RANK_SECONDS, RANK_START_SECONDS
from dasktune._worker import rank as ranks
from dasktune._worker.peers import DivisionError, LenderLostError, Lenders, OwnRank, Peer
from dasktune._worker.rank import (
    Advance,
    BeginRank,
    Compare,
    Digest,
    FileMeeting,
    PortMeeting,
    RankFailed,
    RankGroup,
    RankTraining,
)
from dasktune.errors import InternalError, text_of
from dasktune.trainer.base import division_problem
from dasktune.trainer.code import TrainerCode, pack
from dasktune.trainer.generators import is_cuda
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof.proof import Witness
from dasktune.types import Step, Value

_OPEN: weakref.WeakSet[DividedRun] = weakref.WeakSet()
"""The runs of this process: torch knows one group of processes at a time."""


class DividedRun:
    """A `TrainerRun` on several devices, with the same methods.

    Made by `begin`. After an exception it is closed.
    """

    def __init__(
        self,
        training: RankTraining,
        trainer_class: type,
        group: RankGroup,
        peers: Iterator[Peer],
        listener: socket.socket | None = None,
    ) -> None:
        self._peers: list[Peer] = []
        # Also if nobody closes it: no process outlives its run, or this process.
        self.close = weakref.finalize(self, _end, self._peers, group.meeting)
        with self._failing_together():
            for peer in peers:
                self._peers.append(peer)
                order = BeginRank(rank=peer.rank, group=group, training=_on_device(training, peer))
                with contextlib.suppress(OSError):  # it is gone, which is heard of next
                    ranks.send(peer, order)
            for peer in self._peers:
                self._hear(peer, RANK_START_SECONDS)
            if death := next(self._deaths(0), None):  # it would be waited for
                raise death
            ranks.meet(group, 0, listener)
            order = BeginRank(rank=0, group=group, training=training)
            self._run = ranks.begin(order, trainer_class)

    @classmethod
    def begin(
        cls,
        training: RankTraining,
        trainer_class: type,
        devices: int,
        lenders: Sequence[str] = (),
        workers: Lenders | None = None,
    ) -> DividedRun:
        """Return a run of so many devices; from step 0 if the training has no state.

        `lenders` are the workers with the other devices by rank; empty if this worker has all of
        them. Raises a `TrainerError` if the trainer cannot be divided, or there are not so many
        devices.
        """
        while _OPEN:
            _OPEN.pop().close()
        backend = _backend(training.device, trainer_class, 1 if lenders else devices)
        if not lenders:
            folder = tempfile.mkdtemp(prefix="dasktune-ranks-")
            group = RankGroup(
                meeting=FileMeeting(path=str(Path(folder, "meeting"))),
                size=devices,
                backend=backend,
                seconds=RANK_SECONDS,
            )
            run = cls(training, trainer_class, group, map(OwnRank, range(1, devices)))
        elif workers is None or devices != len(lenders) + 1:
            raise InternalError(f"{devices} devices must have a worker each, got {lenders}")
        else:
            family = socket.AF_INET6 if ":" in workers.host else socket.AF_INET
            with socket.create_server((workers.host, 0), family=family) as listener:
                group = RankGroup(
                    meeting=PortMeeting(host=workers.host, port=listener.getsockname()[1]),
                    size=devices,
                    backend=backend,
                    seconds=RANK_SECONDS,
                )
                peers = map(workers.borrow, range(1, devices), lenders)
                run = cls(training, trainer_class, group, peers, listener)
        _OPEN.add(run)
        return run

    @property
    def devices(self) -> int:
        """Number of devices that train."""
        return 1 + len(self._peers)

    @property
    def is_whole(self) -> bool:
        """Whether all processes live, as far as is known."""
        return self.close.alive and all(peer.death(0) is None for peer in self._peers)

    def rest(self) -> None:
        """Note that nothing is trained until further notice, though the processes stay."""
        for peer in self._peers:
            peer.rest()

    @property
    def step(self) -> Step:
        """Number of steps trained since the trainer was built or loaded."""
        return int(self._run.step)

    @property
    def trainer(self) -> Any:
        """The user's object in this process."""
        return self._run.trainer

    def advance(self, values: Mapping[str, Value]) -> None:
        """Train one step on all devices."""
        with self._failing_together():
            for peer in self._peers:
                ranks.send(peer, Advance(values=dict(values)))
            ranks.advance(self._run, values)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the model, which are measured in this process."""
        with self._failing_together():
            return dict(self._run.evaluate())

    def state(self) -> dict[str, Any]:
        """Return the state, which all devices go on from alike.

        Raises a `TrainerError` if the processes hold unlike parameters or generators: a training
        that is resumed from this state would not be the one that went on.
        """
        with self._failing_together():
            for peer in self._peers:
                ranks.send(peer, Compare())
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

    def proof(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the proof of a state in this process; see `TrainerRun.proof`."""
        return dict(self._run.proof(state))

    @property
    def witness(self) -> Witness | None:
        """The witness of the trainer in this process."""
        witness: Witness | None = self._run.witness
        return witness

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
            if type(failure) is DivisionError and failure.__cause__ is None:
                # The other one ended without a word; what failed here may say why.
                failure = DivisionError(
                    f"{failure}; here: {type(error).__name__}: {text_of(error)}"
                )
            raise failure or error from (None if failure is None else failure.__cause__)
        except DivisionError as error:
            # What the others tell follows from the loss of a lender.
            failure = self._lost_lender() or error
            self.close()
            raise failure from failure.__cause__
        except BaseException:
            self.close()
            raise

    def _first_failure(self) -> DivisionError | None:
        """Return why the group has failed: the exception that came first, or a process that ended.

        None if all others go on. A lost lender comes before all: what the others raise follows
        from that.
        """
        failures: list[tuple[float, Peer, RankFailed]] = []
        for peer in self._peers:
            with contextlib.suppress(EOFError, OSError):
                while peer.poll():
                    answer = ranks.receive(peer)
                    if isinstance(answer, RankFailed):
                        failures.append((answer.at, peer, answer))
        if lost := self._lost_lender():
            return lost
        if failures:
            _, peer, answer = min(failures, key=itemgetter(0))
            return _failure(peer, answer)
        return next(self._deaths(0), None)

    def _lost_lender(self) -> DivisionError | None:
        deaths = self._deaths(RANK_END_SECONDS)
        return next((death for death in deaths if isinstance(death, LenderLostError)), None)

    def _deaths(self, seconds: float) -> Iterator[DivisionError]:
        """Yield why processes have ended that end within so many seconds."""
        for peer in self._peers:
            if death := peer.death(seconds):
                yield death

    def _hear(self, peer: Peer, seconds: float) -> Any:
        """Return the next answer of another process."""
        try:
            if not peer.poll(seconds):
                raise DivisionError(
                    f"the process of device {peer.rank} must answer within {seconds:g} s"
                )
            answer = ranks.receive(peer)
        except (EOFError, OSError) as error:
            raise peer.death(RANK_SECONDS) or error from None
        if isinstance(answer, RankFailed):
            raise _failure(peer, answer)
        return answer


class _OtherProcessError(Exception):
    """The traceback of another process, to stand above that of this one."""


def _failure(peer: Peer, answer: RankFailed) -> DivisionError:
    failure = DivisionError(f"device {peer.rank}: {answer.message}", answer.traceback)
    failure.__cause__ = _OtherProcessError(f"on device {peer.rank}:\n{answer.traceback}")
    return failure


def _end(peers: list[Peer], meeting: FileMeeting | PortMeeting) -> None:
    """End the other processes, and this one's part in the group."""
    for peer in peers:
        peer.close()
    for peer in peers:
        peer.join()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    if isinstance(meeting, FileMeeting):
        shutil.rmtree(Path(meeting.path).parent, ignore_errors=True)


def _on_device(training: RankTraining, peer: Peer) -> RankTraining:
    device = f"cuda:{peer.gpu}" if is_cuda(training.device) else training.device
    return replace(training, device=device, proving=None)


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
