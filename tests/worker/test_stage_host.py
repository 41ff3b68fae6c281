"""Stages on one worker, without Dask: what was trained here is never trained again here."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import dasktune as dt
from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.messages import (
    StageEnded,
    StageMessage,
    StageProgress,
    StageStarted,
    StateSaved,
)
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.trainer.lifecycle import run_alone
from tests.toy_trainers import Adding
from tests.worker.held_store import PATIENCE, HeldStore

SEQUENCES = {"lr": Constant(0.1)}


def stage(attempt: str, start: int, stop: int, root: str = "aa" * 16) -> StageSpec:
    chain = Chain(root).extend(encode_at(SEQUENCES, 0), start)
    return StageSpec(
        attempt=attempt,
        start=start,
        stop=stop,
        saves=(),
        sequences={name: sequence.to_json() for name, sequence in SEQUENCES.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )


def test_a_state_on_its_way_to_the_store_is_waited_for(
    tmp_path: Path,
) -> None:
    store, messages, has_begun = HeldStore(str(tmp_path)), list[StageMessage](), threading.Event()

    def emit(sent: list[StageMessage]) -> None:
        messages.extend(sent)
        if any(isinstance(each, StageStarted) and each.attempt == "second" for each in sent):
            has_begun.set()

    store.hold()
    job = Job(trainer_class=Adding, config={}, device="cpu", store=store.url, report_every=1)
    host = StageHost(job, emit, store=store)
    first = host.run(stage("first", 0, 3))
    # Another path's stage comes in between: the warm trainer is its own from now on.
    other = host.run(stage("other", 0, 1, root="bb" * 16))
    receipts: list[StageEnded] = []
    thread = threading.Thread(target=lambda: receipts.append(host.run(stage("second", 3, 5))))
    thread.start()
    assert has_begun.wait(PATIENCE)
    assert receipts == []
    store.release()
    thread.join(PATIENCE)
    (second,) = receipts
    host.close(30)
    assert [receipt.status for receipt in (first, other, second)] == ["trained"] * 3
    assert second.step == 5
    saved = [message.attempt for message in messages if isinstance(message, StateSaved)]
    assert saved == ["first", "other", "second"]


class Drawing(dt.Trainer):
    """Adds up what it draws from the global generator, which is a part of its state."""

    def build(self, hp: Mapping[str, Any]) -> None:
        random.seed(self.seed)
        self.sum = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        pass

    def train(self) -> None:
        self.sum += random.random()

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.sum}

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum, "generator": random.getstate()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sum = state["sum"]
        random.setstate(state["generator"])


def test_two_studies_on_a_worker_train_as_if_alone(tmp_path: Path) -> None:
    messages: list[StageMessage] = []
    hosts = [
        StageHost(
            Job(
                trainer_class=Drawing,
                config={},
                device="cpu",
                store=str(tmp_path / name),
                report_every=1,
            ),
            emit,
        )
        for name, emit in (("one", messages.extend), ("other", lambda _: None))
    ]
    for start in (0, 2, 4):
        for host in hosts:
            receipt = host.run(stage(f"from-{start}", start, start + 2))
            assert receipt.status == "trained"
    for host in hosts:
        host.close(PATIENCE)
    progress = [message for message in messages if isinstance(message, StageProgress)]
    metrics = {step: values for each in progress for step, _, values in each.reports}
    assert metrics == run_alone(Drawing, SEQUENCES, 6).metrics


class Counted(Adding):
    """Knows how many trainers there are at most at a time."""

    most: ClassVar[int] = 0
    living: ClassVar[weakref.WeakSet[Counted]] = weakref.WeakSet()

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        Counted.living.add(self)
        Counted.most = max(Counted.most, len(Counted.living))


@pytest.mark.parametrize("next_start", [0, 3])
def test_the_last_trainer_is_gone_before_the_next(tmp_path: Path, next_start: int) -> None:
    Counted.most = 0
    store = HeldStore(str(tmp_path))
    job = Job(trainer_class=Counted, config={}, device="cpu", store=store.url, report_every=1)
    host = StageHost(job, lambda _: None, store=store)
    host.run(stage("first", 0, 3))
    host.writer.finish(PATIENCE)
    host.run(stage("other", 0, 1, root="bb" * 16))
    host.writer.finish(PATIENCE)
    store.hold()  # the trainer does not wait for its state to be written
    host.run(stage("begun", 0, 1, root="cc" * 16))
    host.run(stage("last", next_start, 4))
    store.release()
    host.close(PATIENCE)
    assert Counted.most == 1
