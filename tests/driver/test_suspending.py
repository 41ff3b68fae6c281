"""Suspensions of trials: seconds and bytes, as workers measure and studies report them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune._results.summary import suspensions_of
from dasktune._study.study import Study
from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.messages import StageMessage, StateSaved
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant, Piecewise
from dasktune.storage.database.rows import StageRow

SIZE = 100
SEQUENCES = {"lr": Constant(0.1)}
MAY_TRAIN = threading.Event()
IS_TRAINING = threading.Event()


class Adding(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.total = 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        self.total += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"total": self.total}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "lr": self.lr, "weight": np.zeros(SIZE)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.lr = state["total"], state["lr"]


class Waiting(Adding):
    """Trains no step before it may."""

    def train(self) -> None:
        IS_TRAINING.set()
        assert MAY_TRAIN.wait(30)
        super().train()


NUMBERS = {"total": list(range(10_000))}


class OfNumbers(Waiting):
    """Has a state without arrays."""

    def state_dict(self) -> dict[str, Any]:
        return NUMBERS


@pytest.fixture(autouse=True)
def may_train() -> None:
    MAY_TRAIN.set()
    IS_TRAINING.clear()


def host_in(
    folder: Path, trainer: type[dt.Trainer] = Waiting
) -> tuple[StageHost, list[StageMessage]]:
    """Return a host of stages, and the list of its messages."""
    messages: list[StageMessage] = []
    job = Job(trainer_class=trainer, config={}, device="cpu", store=str(folder), report_every=1)
    return StageHost(job, messages.extend), messages


@pytest.fixture
def host(tmp_path: Path) -> tuple[StageHost, list[StageMessage]]:
    return host_in(tmp_path)


def stage(stop: int, saves: tuple[int, ...] = ()) -> StageSpec:
    chain = Chain("aa" * 16).extend(encode_at(SEQUENCES, 0), 0)
    return StageSpec(
        attempt="first",
        start=0,
        stop=stop,
        saves=saves,
        sequences={name: sequence.to_json() for name, sequence in SEQUENCES.items()},
        chain=(chain.base, chain.values.hex(), chain.length),
        seed=0,
    )


def saved(messages: list[StageMessage]) -> dict[int, StateSaved]:
    """Return the messages of durable states by step."""
    return {message.step: message for message in messages if isinstance(message, StateSaved)}


def test_suspension_is_measured_from_last_step_of_stage(
    host: tuple[StageHost, list[StageMessage]],
) -> None:
    began = time.monotonic()
    host[0].run(stage(3, saves=(1,)))
    host[0].close(30)
    passed = time.monotonic() - began
    states = saved(host[1])
    assert states[1].suspend_seconds is None
    assert states[3].latency <= states[3].suspend_seconds <= passed


@pytest.mark.parametrize("steps_ahead", [None, 1])
def test_a_stage_that_is_stopped_suspends_from_the_order_on(
    host: tuple[StageHost, list[StageMessage]], steps_ahead: int | None
) -> None:
    """The step that runs has to end first: that is part of it."""
    MAY_TRAIN.clear()
    training = threading.Thread(target=host[0].run, args=(stage(5),))
    training.start()
    assert IS_TRAINING.wait(30)
    control = host[0].control("first")
    assert control is not None
    control.stop(steps_ahead)
    ordered = time.monotonic()
    waited = time.monotonic() - ordered
    MAY_TRAIN.set()
    training.join(30)
    host[0].close(30)
    (message,) = saved(host[1]).values()
    assert message.step == 1
    assert message.suspend_seconds > waited + message.latency


def test_an_order_for_a_later_step_is_part_of_no_suspension(
    host: tuple[StageHost, list[StageMessage]],
) -> None:
    control = host[0].control("first")
    assert control is not None
    control.stop(4)
    assert control.ordered is None
    host[0].run(stage(5))
    host[0].close(30)
    (message,) = saved(host[1]).values()
    assert (message.step, control.ordered) == (4, None)


def test_a_state_of_numbers_alone_has_its_bytes_counted(tmp_path: Path) -> None:
    host, messages = host_in(tmp_path, OfNumbers)
    host.run(stage(1))
    host.close(30)
    (message,) = saved(messages).values()
    assert message.snapshot_bytes > len(json.dumps(NUMBERS, separators=(",", ":")))


def row(seconds: float | None, nbytes: int | None) -> StageRow:
    return StageRow(
        study_id=1,
        attempt="a",
        key="0",
        start=0,
        stop=1,
        worker="w",
        status="trained",
        started=0.0,
        ended=1.0,
        steps=1,
        repeated=0,
        suspend_seconds=seconds,
        snapshot_bytes=nbytes,
    )


def test_suspensions_have_mean_deviation_percentile_and_most() -> None:
    rows = [row(at / 100, 1000 * at) for at in range(1, 21)]
    found = suspensions_of([row(None, None), *rows])
    assert found is not None
    assert found["count"] == 20
    assert found["seconds"] == pytest.approx(
        {"mean": 0.105, "deviation": (33.25**0.5) / 100, "p95": 0.19, "most": 0.2}
    )
    assert found["nbytes"]["p95"] == 19_000
    assert suspensions_of([row(None, None)]) is None


def run(tuner: dt.algos.Grid | dt.algos.ASHA, folder: Path, client: Client) -> Study:
    study = dt.create_study(Adding, name="x", storage=folder, metric="total", direction="minimize")
    study.optimize(tuner, client=client, progress=False, last_line=False)
    return study


def test_each_rung_that_a_trial_comes_to_suspends_it(tmp_path: Path, two_threads: Client) -> None:
    tuner = dt.algos.ASHA(dt.Space(lr=dt.Float(0, 1)), trials=10, min_steps=2, max_steps=8, eta=2)
    study = run(tuner, tmp_path, two_threads)
    found = study.summary()["suspensions"]
    assert found is not None
    assert found["count"] == len(study.stages()) > 10
    assert 0 < found["seconds"]["mean"] <= found["seconds"]["most"]
    least = 8 * SIZE + len('{"total":0.0,"lr":0.0}')
    assert least < found["nbytes"]["mean"] <= found["nbytes"]["most"] < least + 1000
    study.close()


def test_a_worker_that_goes_on_suspends_nothing(tmp_path: Path, two_threads: Client) -> None:
    space = dt.Space(lr=[Piecewise([0.1, 0.2], [3]), Piecewise([0.1, 0.3], [3])])
    study = run(dt.algos.Grid(space, max_steps=6), tmp_path, two_threads)
    assert len(study.stages()) == 3, "the shared one, and two ends"
    found = study.summary()["suspensions"]
    assert found is not None
    assert found["count"] == 2
    study.close()
