"""Stages on one worker, without Dask: what was trained here is never trained again here."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.worker.host import StageHost
from dasktune.worker.job import Job, StageSpec
from dasktune.worker.messages import StateSaved

SEQUENCES = {"lr": Constant(0.1)}


class Adding(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.total = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.total += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"total": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total = state["total"]


def stage(attempt: str, start: int, stop: int, root: str = "aa" * 16) -> StageSpec:
    chain = Chain(root).extend(encode_at(SEQUENCES, 0), start)
    return StageSpec(
        attempt=attempt,
        start=start,
        stop=stop,
        saves=(),
        sequences={name: one.to_json() for name, one in SEQUENCES.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )


def test_a_state_on_its_way_to_the_store_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, said = threading.Event(), []
    save = CheckpointStore.save

    def held_back(self: CheckpointStore, *args: Any, **kwargs: Any) -> Any:
        assert may_write.wait(30)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(CheckpointStore, "save", held_back)
    job = Job(trainer_class=Adding, config={}, device="cpu", store=str(tmp_path), report_every=1)
    host = StageHost(job, said.extend)
    first = host.run(stage("first", 0, 3))
    # Another path's stage comes in between: the warm trainer is its own from now on.
    other = host.run(stage("other", 0, 1, root="bb" * 16))
    threading.Timer(0.1, may_write.set).start()
    second = host.run(stage("second", 3, 5))
    host.close(30)
    assert [one.status for one in (first, other, second)] == ["trained"] * 3
    assert second.step == 5
    saved = [message.attempt for message in said if isinstance(message, StateSaved)]
    assert saved == ["first", "other", "second"]
