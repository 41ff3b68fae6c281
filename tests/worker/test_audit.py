"""Audits on one worker, without Dask: steps trained again and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dasktune._worker.host import StageHost
from dasktune._worker.job import AuditSpec, Job, StageSpec
from dasktune._worker.messages import (
    AuditEnded,
    StageMessage,
    StageProgress,
    audit_from_wire,
    to_wire,
)
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from tests.forgetful import Tally
from tests.toy_trainers import Adding

SEQUENCES = {"lr": Constant(0.5)}
ROOT = "aa" * 16


class Counting(Adding):
    """Adds a number that depends on how often it was called since it was built."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls: int = Tally(0)

    def train(self) -> None:
        super().train()
        self.calls += 1
        if self.calls % 3 == 0:
            self.total += 1.0


class Timed(Adding):
    """Saves a number that differs each time, which decides nothing."""

    harmless_differences = ("state['calls']",)
    calls = 0

    def state_dict(self) -> dict[str, Any]:
        Timed.calls += 1
        return {**super().state_dict(), "calls": Timed.calls}


MACHINE = {"unit": 1.0}
"""What a CPU of another type would change: the last bits of a sum."""


class Rounding(Adding):
    """Adds as the machine does."""

    def train(self) -> None:
        super().train()
        self.total *= MACHINE["unit"]


class SlowSum(Rounding):
    """Adds a sum at every 8th step, from a count that is not in the state."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls: int = Tally(0)

    def train(self) -> None:
        super().train()
        self.calls += 1
        if self.calls % 8 == 0:
            self.total += 1.0


class PlainSlowSum(SlowSum):
    """The same with a plain number, which is kept beside the state."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.calls = 0


class ClassCount(Rounding):
    """Adds a number at every 4th step, by a count of its class."""

    calls = [Tally(0)]  # noqa: RUF012

    def train(self) -> None:
        super().train()
        self.calls[0] += 1
        if self.calls[0] % 4 == 0:
            self.total += 1.0


class Watched(Adding):
    """Notes at every step when the host says that the step began."""

    host: ClassVar[StageHost]
    began: ClassVar[list[float | None]] = []

    def train(self) -> None:
        super().train()
        self.began.append(self.host.watch.began)


class Costly(Adding):
    """Takes 5 seconds to build, and 1 second a step, on a clock of its own."""

    now: ClassVar[list[float]] = [0.0]

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.now[0] += 5.0

    def train(self) -> None:
        super().train()
        self.now[0] += 1.0


class Unsteady(Adding):
    """Rounds in another way each time, as atomic additions on a GPU do."""

    by = 1e-6

    def train(self) -> None:
        super().train()
        self.total *= 1 + self.by * SystemRandom().uniform(-1, 1)


class Wild(Unsteady):
    """Rounds by more than the tolerance allows."""

    by = 0.5


class Raising(Adding):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise RuntimeError("no such file")


class Worker:
    """A host, and what it sends."""

    def __init__(self, kind: type, folder: Path, device: str) -> None:
        self.sent: list[StageMessage] = []
        job = Job(trainer_class=kind, config={}, device=device, store=str(folder), report_every=1)
        self.host = StageHost(job, self.sent.extend)

    def train(self, start: int, stop: int, *saves: int, name: str = "") -> None:
        self.host.run(stage(name or f"{start}-{stop}", start, stop, *saves))
        self.host.writer.finish(60)

    @property
    def metrics(self) -> dict[int, Mapping[str, float]]:
        progress = [each for each in self.sent if isinstance(each, StageProgress)]
        return {step: values for each in progress for step, _, values in each.reports}

    def audit(
        self,
        start: int,
        stop: int,
        *stored: int,
        name: str = "audit",
        origins: Collection[int] = (0,),
        **changed: float,
    ) -> AuditEnded:
        metrics = {step: self.metrics[step] for step in range(start + 1, stop + 1)}
        metrics |= {int(step[1:]): {"loss": value} for step, value in changed.items()}
        spec = AuditSpec(
            stage=stage(name, start, stop),
            metrics=metrics,
            states={step: chain_at(step).key for step in stored},
            origins={step: chain_at(step).key for step in origins},
            splits=(start, *stored),
            measured=tuple(range(min(origins) + 1, start + 1)),
        )
        assert AuditSpec.from_wire(spec.to_wire()) == spec
        receipt = self.host.audit(spec)
        assert audit_from_wire(to_wire(receipt)) == receipt
        return receipt


def chain_at(step: int) -> Chain:
    return Chain(ROOT).extend(encode_at(SEQUENCES, 0), step)


def stage(attempt: str, start: int, stop: int, *saves: int) -> StageSpec:
    chain = chain_at(start)
    return StageSpec(
        attempt=attempt,
        start=start,
        stop=stop,
        saves=saves,
        sequences={name: sequence.to_json() for name, sequence in SEQUENCES.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Any]:
    made: list[Worker] = []

    def make(kind: type, device: str = "cpu") -> Worker:
        made.append(Worker(kind, tmp_path, device))
        return made[-1]

    yield make
    for worker in made:
        worker.host.close(60)


def test_audit_of_an_exact_trainer_is_identical(workers: Any) -> None:
    worker = workers(Adding)
    worker.train(0, 8, 4)
    sent, keys = len(worker.sent), set(worker.host.store.keys())
    receipt = worker.audit(4, 8, 8)
    assert receipt.seconds > 0
    assert replace(receipt, seconds=0.0) == AuditEnded(
        audit="audit", step=8, status="identical", steps=4, compared=5
    )
    assert len(worker.sent) == sent, "nothing is said"
    assert set(worker.host.store.keys()) == keys, "nothing is saved"
    assert worker.audit(0, 8, 4, 8, name="from the beginning").status == "identical"


def test_audit_counts_the_trainer_that_is_gone(
    workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: Costly.now[0]})
    for module in ("host", "audit"):
        monkeypatch.setattr(f"dasktune._worker.{module}.time", clock)
    worker = workers(Costly)
    worker.train(0, 8, 4)
    assert worker.audit(4, 8, 8).seconds == (5 + 4) + 5, "a stage has to load it anew"
    assert worker.audit(4, 8, 8, name="another").seconds == 5 + 4, "none was in memory"


def test_audit_names_what_differs(workers: Any) -> None:
    worker = workers(Counting)
    worker.train(0, 9, 4)
    receipt = worker.audit(4, 9, 9)
    assert (receipt.status, receipt.step) == ("differs", 9)
    assert receipt.steps == 5 + 9 + 5, "without a stop from the beginning, and with a resume"
    assert receipt.differences == (
        ("state['total']", "must be 7.5, got 6.5"),
        ("metrics[6]['loss']", "must be 5.0, got 4.0"),
    )


@pytest.mark.parametrize("environment", [{"numpy": "3.0.0"}, {"device": "cuda:0"}])
def test_audit_of_states_from_elsewhere_trains_nothing(
    workers: Any, environment: Mapping[str, Any]
) -> None:
    worker = workers(Counting)
    worker.train(0, 9, 4)
    worker.host.job = replace(worker.host.job, environment=environment)
    receipt = worker.audit(4, 9, 9)
    assert (receipt.status, receipt.steps, receipt.differences) == ("elsewhere", 0, ())


@pytest.fixture
def other_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that changes the last bits of what this worker computes."""
    return lambda: monkeypatch.setitem(MACHINE, "unit", 1.0 + 2.0**-52)


@pytest.mark.parametrize(("start", "origin"), [(0, 0), (4, 0), (4, 2), (4, 4)])
def test_audit_on_another_machine_blames_no_exact_trainer(
    workers: Any, other_machine: Callable[[], None], start: int, origin: int
) -> None:
    worker = workers(Rounding)
    worker.train(0, 12, 2, 4, 8)
    other_machine()
    receipt = worker.audit(start, 12, 8, 12, origins=(origin,))
    assert receipt.status == "incomparable"
    assert receipt.differences


@pytest.mark.parametrize("kind", [SlowSum, ClassCount])
@pytest.mark.parametrize("split", [4, 12, 15])
def test_audit_on_another_machine_finds_an_inexact_trainer(
    workers: Any, other_machine: Callable[[], None], kind: type, split: int
) -> None:
    worker = workers(kind)
    worker.train(0, 20, split)
    other_machine()
    assert worker.audit(split, 20, 20).status == "differs"


@pytest.mark.parametrize("split", [4, 12, 15])
def test_audit_gives_a_trainer_what_is_kept_beside_its_state(
    workers: Any, other_machine: Callable[[], None], split: int
) -> None:
    worker = workers(PlainSlowSum)
    worker.train(0, 20, split)
    assert worker.audit(split, 20, 20).status == "identical"
    other_machine()
    assert worker.audit(split, 20, 20, name="elsewhere").status == "incomparable"


def test_audit_on_a_gpu_allows_rounding(workers: Any) -> None:
    worker = workers(Unsteady, device="cuda")
    worker.train(0, 12, 4, 8)
    assert worker.audit(4, 12, 8, 12).status == "identical"


@pytest.mark.parametrize("origin", [0, 4])
def test_audit_on_a_gpu_names_a_repetition_that_differs(workers: Any, origin: int) -> None:
    worker = workers(Wild, device="cuda")
    worker.train(0, 12, 4, 8)
    receipt = worker.audit(4, 12, 8, 12, origins=(origin,))
    assert receipt.status == "differs"
    path, reason = receipt.differences[-1]
    assert path == "two trainings from this state"
    assert "not deterministic" in reason


def test_audit_on_a_gpu_finds_a_wrong_resume(workers: Any) -> None:
    worker = workers(Counting, device="cuda")
    worker.train(0, 12, 4, 8)
    receipt = worker.audit(4, 12, 8, 12)
    assert receipt.status == "differs"
    assert receipt.differences[-1][0] != "two trainings from this state"


def test_audit_looks_for_what_a_trainer_holds_since_long(
    workers: Any, other_machine: Callable[[], None]
) -> None:
    worker = workers(SlowSum)
    worker.train(0, 20, 4, 12)
    other_machine()
    assert worker.audit(12, 20, 20, origins=(12, 4), name="a").status == "incomparable"
    assert worker.audit(12, 20, 20, origins=(12, 4, 0), name="b").status == "differs"


def test_audit_goes_on_where_an_origin_was_evicted(workers: Any) -> None:
    worker = workers(Counting)
    worker.train(0, 9, 2, 4)
    worker.host.store.discard(chain_at(2).key)
    assert worker.audit(4, 9, 9, origins=(2, 0)).status == "differs"


def test_audit_that_is_told_to_end_before_it_is_sure_is_dropped(workers: Any) -> None:
    built: list[str] = []

    class Stopped(Counting):
        def build(self, hp: Mapping[str, Any]) -> None:
            super().build(hp)
            built.append("by the study, by the audit, and to make sure")
            if len(built) == 3:
                worker.host.control("audit").stop(None)

    worker = workers(Stopped)
    worker.train(0, 9, 4)
    receipt = worker.audit(4, 9, 9)
    assert (receipt.status, receipt.steps) == ("dropped", 5)


def test_audit_ends_at_the_first_state_that_differs(workers: Any) -> None:
    worker = workers(Counting)
    worker.train(0, 12, 4, 6)
    receipt = worker.audit(4, 12, 6, 12)
    assert (receipt.status, receipt.step) == ("differs", 6)


def test_audit_sees_a_metric_that_differs_in_one_bit(workers: Any) -> None:
    worker = workers(Adding)
    worker.train(0, 4, 2)
    receipt = worker.audit(2, 4, 4, _3=1.5000000000000002)
    assert receipt.status == "incomparable", "no way of this worker gives it"
    assert [path for path, _ in receipt.differences] == ["metrics[3]['loss']"]


def test_audit_heeds_what_the_trainer_calls_harmless(workers: Any) -> None:
    worker = workers(Timed)
    worker.train(0, 4, 2)
    assert worker.audit(2, 4, 4).status == "identical"


def test_audit_without_its_first_state_is_missing(workers: Any) -> None:
    worker = workers(Adding)
    worker.train(0, 4, 2)
    worker.host.store.discard(chain_at(2).key)
    receipt = worker.audit(2, 4, 4)
    assert (receipt.status, receipt.steps) == ("missing", 0)


def test_audit_leaves_out_a_state_that_was_evicted(workers: Any) -> None:
    worker = workers(Counting)
    worker.train(0, 5, 4)
    worker.host.store.discard(chain_at(5).key)
    receipt = worker.audit(4, 5, 5)
    assert (receipt.status, receipt.compared) == ("identical", 1)


def test_audit_whose_trainer_raises_failed(workers: Any) -> None:
    worker = workers(Raising)
    worker.train(0, 4, 2)
    receipt = worker.audit(2, 4, 4)
    assert receipt.status == "failed"
    assert receipt.message.endswith("load_state_dict raised RuntimeError: no such file")
    worker.train(0, 1, name="the next stage")


def test_each_step_of_an_audit_is_watched(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workers(Watched)
    Watched.host, store, waiting = worker.host, worker.host.store, []
    worker.train(0, 8, 4)
    Watched.began.clear()
    commit_of = store.commit_of

    def waited(key: str) -> Any:
        waiting.append(worker.host.watch.began)
        return commit_of(key)

    monkeypatch.setattr(store, "commit_of", waited)
    assert worker.audit(4, 8, 6, 8).status == "identical"
    assert None not in Watched.began
    assert len(set(Watched.began)) == 4, "each step has a time of its own"
    assert set(waiting) == {None}, "a store that does not answer is no slow step"


def test_audit_that_is_told_to_end_is_dropped(workers: Any) -> None:
    worker = workers(Adding)
    worker.train(0, 4, 2)
    worker.host.control("audit").stop(None)
    receipt = worker.audit(2, 4, 4)
    assert (receipt.status, receipt.steps) == ("dropped", 0)


def test_audit_of_a_closed_host_is_dropped(workers: Any) -> None:
    worker = workers(Adding)
    worker.train(0, 4, 2)
    worker.host.close(60)
    assert worker.audit(2, 4, 4).status == "dropped"


def test_stage_after_an_audit_begins_from_its_stored_state(workers: Any) -> None:
    worker = workers(type("Named", (Counting,), {"harmless_differences": ("trainer.calls",)}))
    worker.train(0, 4, 2)
    worker.audit(0, 4, 4)
    worker.train(4, 6)
    assert worker.metrics[6] == {"loss": 4.0}, "the trainer before the audit is not used"
