"""A trial that several workers of a Dask cluster train together: one worker, and its lenders."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from distributed import Client, Future, LocalCluster, Worker
from distributed.security import Security

from dasktune._worker.job import AuditSpec, JobPlan, StageSpec
from dasktune._worker.messages import (
    LeaveAnnounced,
    StageEnded,
    StageFailed,
    StageMessages,
    StateSaved,
    from_wire,
    receipt_from_wire,
    unpacked,
)
from dasktune._worker.plugin import (
    CLOSE_SECONDS,
    TOPIC,
    StagePlugin,
    audit_prefix_of,
    run_audit,
    run_stage,
)
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.trainer.code import pack
from tests.holding import PATIENCE, Gate, pass_gate, wait_until
from tests.worker.test_divided import Failing, Net, host_of, ranks, stage

pytestmark = pytest.mark.cluster

RUN = "lenders-1"


class Held(Net):
    """A net whose first device waits at a gate in its second step."""

    def build(self, hp: Any) -> None:
        super().build({"drop": 0.5})
        self.gate, self.steps = hp["gate"], 0

    def train(self) -> None:
        self.steps += 1
        if self.steps == 2 and self.division.rank == 0:
            pass_gate(self.gate)
        super().train()


class Arriving(Held):
    """A net whose first device leaves a file when it comes to the gate."""

    def train(self) -> None:
        if self.steps == 1 and self.division.rank == 0:
            Path(f"{self.gate}.reached").touch()
        super().train()


class Turning(Held):
    """A net whose learning rate may change."""

    def setup(self, hp: Any) -> None:
        self.optimizer.param_groups[0]["lr"] = hp["lr"]


class Gang:
    """A cluster whose workers are ready for the stages of one trainer."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.first, *self.lenders = client.scheduler_info(n_workers=-1)["workers"]
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        client.subscribe_topic(
            TOPIC, lambda event: self._take(from_wire(unpacked(event[1]["message"])))
        )

    def _take(self, message: Any) -> None:
        for part in message.messages if isinstance(message, StageMessages) else [message]:
            self._events.put(part)

    def next(self, kind: type) -> Any:
        """Return the next message of a kind."""
        while not isinstance(message := self._events.get(timeout=PATIENCE), kind):
            pass
        return message

    def begin(self, spec: StageSpec, worker: str = "") -> Future[Any]:
        return self.client.submit(
            run_stage, RUN, spec.pack(), workers=[worker or self.first], pure=False
        )

    def begin_audit(self, spec: StageSpec) -> Future[Any]:
        """Train steps again on the first worker and its lenders; there is nothing to compare."""
        audit = AuditSpec(stage=spec, metrics={}, states={})
        key = (audit_prefix_of(RUN), spec.attempt)
        wire = audit.to_wire()
        return self.client.submit(run_audit, RUN, wire, workers=[self.first], key=key, pure=False)

    def run(self, spec: StageSpec, worker: str = "") -> StageEnded:
        return receipt_from_wire(unpacked(self.begin(spec, worker).result(timeout=PATIENCE)))

    def order(self, **order: Any) -> object:
        """Give the first worker an order, as the driver does; return its answer."""
        message = {"op": RUN, **order}
        broadcast = self.client.scheduler.broadcast
        return self.client.sync(broadcast, msg=message, workers=[self.first])[self.first]

    def processes(self) -> dict[str, int]:
        """Return how many processes each worker lends."""
        return dict(self.client.run(lambda: len(ranks())))


@contextmanager
def gang_of(trainer: type, folder: Path, workers: int, **options: Any) -> Iterator[Gang]:
    plan = JobPlan(
        run=RUN,
        code=pack(trainer),
        config={},
        seed=3,
        store=str(folder),
        report_every=1,
        needs=Needs(),
        needs_process=True,
    )
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",
            env={CLOSE_SECONDS: str(PATIENCE)},
            **options,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(StagePlugin(plan))
        yield Gang(client)


def lent(
    start: int, stop: int, *lenders: str, devices: Sequence | None = None, **hp: Any
) -> StageSpec:
    spec = stage(start, stop, devices or Constant(len(lenders) + 1), **hp)
    return replace(spec, lenders=lenders, attempt=uuid4().hex)


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    """Suspend a worker and its processes, as if its host had vanished; kill them afterwards.

    Connections stay open, and nobody answers.
    """
    worker = psutil.Process(pid)
    processes = [*worker.children(recursive=True), worker]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def listening(dask_worker: Worker) -> set[str]:
    """Return the addresses at which a worker and its processes listen."""
    own = psutil.Process()
    return {
        connection.laddr.ip
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_workers_train_a_trial_as_one_does(tmp_path: Path) -> None:
    with gang_of(Net, tmp_path / "lent", 3) as gang:
        one, two = gang.lenders
        saved = []
        for spec in (lent(0, 2, one, drop=0.5), lent(2, 3, one, drop=0.5)):
            assert gang.run(spec).loaded_at == 0  # the second goes on from memory
            saved.append(gang.next(StateSaved).digest)
            assert gang.processes() == {gang.first: 0, one: 1, two: 0}
            assert set.union(*gang.client.run(listening).values()) == {"127.0.0.1"}
        # A lender that trains itself ends what it had lent.
        gang.run(stage(0, 1, Constant(1), drop=0.0), one)
        assert set(gang.processes().values()) == {0}
        gang.next(StateSaved)
        assert gang.run(lent(3, 4, one, drop=0.5)).loaded_at == 3
        saved.append(gang.next(StateSaved).digest)
        # So does one that trains with another one instead.
        devices = Piecewise([2, 3], boundaries=[4])
        spec = lent(4, 5, two, one, devices=devices, drop=0.5)
        assert gang.run(spec).status == "trained"
        assert gang.processes() == {gang.first: 0, one: 1, two: 1}
    messages: list[Any] = []
    host = host_of(Net, tmp_path / "own", messages)
    for span in ((0, 2), (2, 3), (3, 4)):
        host.run(stage(*span, Constant(2), drop=0.5))
    host.close(PATIENCE)
    own = [message.digest for message in messages if isinstance(message, StateSaved)]
    assert saved == own


def test_save_point_in_a_gang_is_as_a_planned_border(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    hp = {"gate": str(gate.path), "lr": 0.05}
    leaving = {**hp, "lr": Piecewise([0.05, 0.01], boundaries=[3])}
    with gang_of(Turning, tmp_path / "split", 2) as gang, gate:
        spec = lent(0, 4, *gang.lenders, **hp)
        receipt = gang.begin(replace(spec, saves=(1,)))
        split = [gang.next(StateSaved)]  # it is held in its second step
        assert gang.order(attempt=spec.attempt, save_at=3, stop_at=-1) == "ok"
        gate.open()
        assert receipt_from_wire(unpacked(receipt.result(timeout=PATIENCE))).status == "trained"
        split += [gang.next(StateSaved), gang.next(StateSaved)]
        gang.run(lent(3, 4, *gang.lenders, **leaving))
        split.append(gang.next(StateSaved))
    planned = []
    with gang_of(Turning, tmp_path / "planned", 2) as gang:
        for start, stop in ((0, 1), (1, 3), (3, 4)):
            gang.run(lent(start, stop, *gang.lenders, **hp))
            planned.append(gang.next(StateSaved))
        gang.run(lent(3, 4, *gang.lenders, **leaving))
        planned.append(gang.next(StateSaved))
    assert [each.step for each in split] == [1, 3, 4, 4]
    same = [(each.step, each.key, each.digest) for each in planned]
    assert [(each.step, each.key, each.digest) for each in split] == same
    assert len({each.digest for each in split}) == 4


def test_a_lender_that_dies_loses_the_attempt(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with gang_of(Held, tmp_path / "states", 3) as gang, gate:
        one, two = gang.lenders
        pids = gang.client.run(os.getpid)
        receipt = gang.begin(replace(lent(0, 3, one, two, gate=str(gate.path)), saves=(1,)))
        assert gang.next(StateSaved).step == 1
        (process,) = psutil.Process(pids[one]).children(recursive=True)
        os.kill(pids[one], signal.SIGKILL)
        psutil.wait_procs([process], timeout=PATIENCE)  # it ends with its worker
        assert not process.is_running()
        gate.open()
        ended = receipt_from_wire(unpacked(receipt.result(timeout=PATIENCE)))
        assert (ended.status, ended.step) == ("lost", 1)
        assert gang.next(StageEnded) == ended
        # The process of the other lender has raised: that is not what is told.
        devices = Piecewise([3, 2], boundaries=[1])
        again = lent(1, 3, two, devices=devices, gate=str(gate.path))
        assert gang.run(again).status == "trained"


def test_a_lender_that_hangs_is_given_up_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with gang_of(Held, tmp_path / "states", 3) as gang, gate:
        one, two = gang.lenders
        pids = gang.client.run(os.getpid)
        spec = replace(lent(0, 3, one, two, gate=str(gate.path)), saves=(1,))
        receipt = gang.begin(spec)
        assert gang.next(StateSaved).step == 1
        with hanging(pids[one]):
            gate.open()
            assert gang.order(attempt=spec.attempt, save_at=None, stop_at=-1, lost=one) == "ok"
            ended = receipt_from_wire(unpacked(receipt.result(timeout=PATIENCE)))
            assert (ended.status, ended.step) == ("lost", 1)
        devices = Piecewise([3, 2], boundaries=[1])
        again = lent(1, 3, two, devices=devices, gate=str(gate.path))
        assert gang.run(again).status == "trained"


def test_dropped_audit_waits_for_no_lender_that_hangs(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with gang_of(Arriving, tmp_path / "states", 3) as gang, gate:
        one, two = gang.lenders
        pids = gang.client.run(os.getpid)
        audit = gang.begin_audit(lent(0, 3, one, gate=str(gate.path)))
        wait_until(Path(f"{gate.path}.reached").exists)
        with hanging(pids[one]):
            gate.open()
            audit.cancel()
            assert gang.run(lent(0, 2, two, gate=str(gate.path))).status == "trained"


def test_a_lender_leaves_when_the_stage_has_ended(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    with gang_of(Held, tmp_path / "states", 2) as gang, gate:
        (one,) = gang.lenders
        pids = gang.client.run(os.getpid)
        receipt = gang.begin(replace(lent(0, 2, one, gate=str(gate.path)), saves=(1,)))
        assert gang.next(StateSaved).step == 1
        os.kill(pids[one], signal.SIGTERM)
        assert gang.next(LeaveAnnounced).worker == one
        gate.open()
        assert receipt_from_wire(unpacked(receipt.result(timeout=PATIENCE))).status == "trained"


def test_a_lender_tells_the_error_of_its_process(tmp_path: Path) -> None:
    options = {"protocol": "tls://", "security": Security.temporary(), "host": "127.0.0.1"}
    with gang_of(Failing, tmp_path / "states", 2, **options) as gang:
        (one,) = gang.lenders
        assert one.startswith("tls://")
        for way, message in (
            ("raises", "device 1: ValueError: no luck here"),
            ("dies", "the process of device 1 must live, it ended with code -9"),
        ):
            assert gang.run(lent(0, 2, one, way=way)).status == "failed"
            assert message in gang.next(StageFailed).message
            assert gang.processes() == {gang.first: 0, one: 0}
