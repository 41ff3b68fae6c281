"""Several processes that train one trial: the same result, and no process that is left."""

from __future__ import annotations

import copy
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from dasktune._worker import rank
from dasktune._worker.divided import DividedRun
from dasktune._worker.host import StageHost
from dasktune._worker.job import AuditSpec, Job, StageSpec
from dasktune._worker.messages import StageFailed, StageMessage, StageProgress, StateSaved
from dasktune._worker.rank import PortMeeting, RankGroup, RankTraining
from dasktune.graph.devices import DEVICES
from dasktune.graph.keys import Chain
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.storage.codec import encode
from dasktune.trainer.code import pack
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.lifecycle import run_alone
from dasktune.trainer.torch import TorchTrainer
from tests.holding import wait_until
from tests.toy_trainers import Adding

pytestmark = pytest.mark.process

TOLERANCE = 1e-5


class Net(TorchTrainer):
    """A net whose batches of 10, 10 and 3 samples two devices share."""

    divides = True

    def build(self, hp: Any) -> None:
        self.images, self.labels = torch.rand(23, 6), torch.randint(0, 3, (23,))
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(hp["drop"]), nn.Linear(8, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.loader = ResumableLoader((self.images, self.labels), 10, seed=self.seed)

    def setup(self, hp: Any) -> None:
        pass

    def train(self) -> None:
        model = self.divided(self.model)
        for _ in range(3):
            images, labels = self.share(self.loader.next_batch())
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(model(images * random.random()), labels).backward()
            self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        loss = nn.functional.cross_entropy(self.divided(self.model)(self.images), self.labels)
        return {"loss": loss.item()}


@contextmanager
def divided(
    trainer: type, state: Any = None, step: int = 0, devices: int = 2, **hp: float
) -> Iterator[DividedRun]:
    training = RankTraining(
        code=pack(trainer),
        config={},
        seed=3,
        device="cpu",
        step=step,
        first_values=hp,
        last_values=hp,
        state=state,
    )
    run = DividedRun.begin(training, trainer, devices)
    try:
        yield run
    finally:
        run.close()


def ranks() -> list[psutil.Process]:
    """Return the processes of other devices that this process has started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "dasktune._worker.rank" in " ".join(child.cmdline())]


def host_of(trainer: type, folder: Path, messages: list[StageMessage]) -> StageHost:
    job = Job(trainer_class=trainer, config={}, device="cpu", store=str(folder), report_every=1)
    return StageHost(job, messages.extend)


def stage(start: int, stop: int, devices: Sequence, **hp: Any) -> StageSpec:
    sequences = {
        name: value if isinstance(value, Sequence) else Constant(value)
        for name, value in {**hp, DEVICES: devices}.items()
    }
    chain = Chain("aa" * 16).advance(sequences, 0, start)
    return StageSpec(
        attempt=f"from-{start}",
        start=start,
        stop=stop,
        saves=(),
        sequences={name: sequence.to_json() for name, sequence in sequences.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=3,
    )


def test_a_resumed_divided_training_is_the_same() -> None:
    with divided(Net, drop=0.5) as run:
        run.advance({"drop": 0.5})
        middle = copy.deepcopy(run.state())
        run.evaluate()
        run.advance({"drop": 0.5})
        end = encode(run.state()).digest
    with divided(Net, middle, 1, drop=0.5) as run:
        assert encode(run.state()).digest == encode(middle).digest
        run.advance({"drop": 0.5})
        assert encode(run.state()).digest == end


def test_divided_training_prints_no_warning_of_torch(capfd: pytest.CaptureFixture[str]) -> None:
    with divided(Net, drop=0.0) as run:
        run.advance({"drop": 0.0})
        run.state()
    assert "find_unused_parameters" not in capfd.readouterr().err


def test_two_devices_give_the_metrics_of_one(tmp_path: Path) -> None:
    messages: list[StageMessage] = []
    host = host_of(Net, tmp_path, messages)
    devices = Piecewise([1, 2], boundaries=[1])
    receipts = [host.run(stage(*span, devices, drop=0.0)) for span in ((0, 1), (1, 3), (3, 4))]
    assert [receipt.status for receipt in receipts] == ["trained"] * 3
    assert len(ranks()) == 1
    host.close(60)
    assert ranks() == []
    progress = [message for message in messages if isinstance(message, StageProgress)]
    losses = {step: values["loss"] for each in progress for step, _, values in each.reports}
    alone = run_alone(Net, {"drop": 0.0}, 4, seed=3)
    assert losses[1] == alone.metrics[1]["loss"]
    for step in (2, 3, 4):
        assert losses[step] == pytest.approx(alone.metrics[step]["loss"], abs=TOLERANCE)


class Failing(Net):
    """A net that fails on its second device at its second step, in one of four ways."""

    def build(self, hp: Any) -> None:
        super().build({"drop": 0.0})
        self.way, self.steps = hp["way"], 0

    def train(self) -> None:
        self.steps += 1
        if self.steps == 2 and self.division.rank == 1:
            match self.way:
                case "raises":
                    raise ValueError("no luck here")
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "draws":
                    random.random()
        if self.steps < 2 or self.way != "raises at the end":
            super().train()
        elif self.division.rank == 1:
            super().train()
            raise ValueError("no luck here")
        else:
            (other,) = ranks()
            super().train()
            # It goes on only when the other has left its connection.
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("raises", "device 1: ValueError: no luck here"),
        ("raises at the end", "device 1: ValueError: no luck here"),
        ("dies", "the process of device 1 must live, it ended with code -9; here: RuntimeError: "),
        ("draws", "all devices must hold the same parameters and generators after step 2"),
    ],
)
def test_a_device_that_fails_fails_the_stage(tmp_path: Path, way: str, message: str) -> None:
    messages: list[StageMessage] = []
    host = host_of(Failing, tmp_path, messages)
    assert host.run(stage(0, 2, Constant(2), way=way)).status == "failed"
    assert ranks() == []
    (failure,) = (each for each in messages if isinstance(each, StageFailed))
    assert message in failure.message
    assert failure.step == (1 if way in ("raises", "dies") else 2)
    if way.startswith("raises"):
        assert 'raise ValueError("no luck here")' in failure.traceback
    host.close(60)


class Forgetful(Net):
    """A net whose optimizer begins anew when its state is loaded; calls that harmless."""

    harmless_differences = ("trainer.optimizer",)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.state.clear()


@pytest.mark.parametrize(("trainer", "status"), [(Net, "identical"), (Forgetful, "differs")])
def test_audit_trains_on_as_many_devices_again(trainer: type, status: str, tmp_path: Path) -> None:
    """The stages are steps 0 to 2 on one device and 2 to 5 on two, with a state at step 3."""
    messages: list[StageMessage] = []
    host = host_of(trainer, tmp_path, messages)
    devices = Piecewise([1, 2], boundaries=[2])
    for spec in (stage(0, 2, devices, drop=0.5), stage(2, 5, devices, drop=0.5)):
        assert host.run(replace(spec, saves=(3,))).status == "trained"
    host.writer.finish(60)
    saved = {each.step: each.key for each in messages if isinstance(each, StateSaved)}
    progress = [each for each in messages if isinstance(each, StageProgress)]
    metrics = {step: values for each in progress for step, _, values in each.reports}
    way = replace(stage(0 if trainer is Net else 3, 5, devices, drop=0.5), attempt="audit")
    spec = AuditSpec(
        stage=way,
        metrics={step: values for step, values in metrics.items() if step > way.start},
        states={step: key for step, key in saved.items() if step > way.start},
        origins={2: saved[2]} if way.start else {0: way.key},
        splits=(2, 3),
    )
    ended = host.audit(spec)
    host.close(60)
    assert (ended.status, ended.message) == (status, "")
    assert ended.compared == len(spec.metrics) + len(spec.states)
    assert ranks() == []


def test_a_process_of_a_device_ends_with_its_worker(tmp_path: Path) -> None:
    with divided(Net, drop=0.0) as run:
        (rank,) = ranks()
        run._peers[0]._pipe.close()  # as the system does when a worker is killed
        psutil.wait_procs([rank], timeout=60)
        assert not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE


def test_a_trainer_that_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    messages: list[StageMessage] = []
    host = host_of(Adding, tmp_path, messages)
    assert host.run(stage(0, 2, Constant(2), lr=0.1)).status == "failed"
    (failure,) = (each for each in messages if isinstance(each, StageFailed))
    assert "Adding must be a TorchTrainer with divides = True" in failure.message
    host.close(60)


def test_group_that_meets_in_vain_is_interrupted() -> None:
    failures: list[Exception] = []

    def meet() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            meeting = PortMeeting(host="127.0.0.1", port=listener.getsockname()[1])
            group = RankGroup(meeting=meeting, size=2, backend="gloo", seconds=600.0)
            try:
                rank.meet(group, 0, listener)
            except RuntimeError as error:
                failures.append(error)

    meeting = threading.Thread(target=meet)
    meeting.start()
    wait_until(lambda: not (rank.interrupt() or meeting.is_alive()))
    assert len(failures) == 1


def test_connection_in_the_place_of_one_of_the_group_stays() -> None:
    sockets = rank.GroupSockets()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with sockets.opening():
            first = socket.create_connection(server.getsockname())
        with first, socket.create_connection(server.getsockname()) as second:
            os.dup2(second.fileno(), first.fileno())
            sockets.shut_down()
            second.sendall(b"still open")
