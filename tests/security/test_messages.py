"""Tests that any failure of a trainer can be sent to the driver."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.messages import StageFailed, StageMessage, to_wire
from dasktune.graph.keys import Chain
from dasktune.sequences import Constant
from tests.toy_trainers import Adding


class Failing(Adding):
    def train(self) -> None:
        raise ValueError(f"cannot read {self.config['path']}")


@pytest.mark.parametrize(
    "path",
    [
        "a\0b",
        "\x1b[31m",
        "x" * 100_000,
        "caf\udce9.png",  # as Python has the name of a file that is no UTF-8
    ],
    ids=["NUL", "an escape", "much", "half a pair"],
)
def test_every_failure_can_be_sent(path: str, tmp_path: Path) -> None:
    messages: list[StageMessage] = []
    job = Job(
        trainer_class=Failing,
        config={"path": path},
        device="cpu",
        store=str(tmp_path),
        report_every=1,
    )
    host = StageHost(job, messages.extend)
    chain = Chain("aa" * 16)
    receipt = host.run(
        StageSpec(
            attempt="0-77",
            start=0,
            stop=1,
            saves=(),
            sequences={"lr": Constant(1).to_json()},
            chain=(chain.base, chain.values.hex(), chain.length),
            seed=0,
        )
    )
    host.close(5.0)
    (failed,) = [message for message in messages if isinstance(message, StageFailed)]
    assert "cannot read" in failed.message
    assert len(failed.message) <= 500
    for message in (*messages, receipt):
        msgpack.packb(to_wire(message))
