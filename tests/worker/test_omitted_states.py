"""States at the ends of stages that are not stored, because that costs more than to train again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune._worker.messages import StageEnded, StageProgress, StateOmitted, StateSaved
from dasktune._worker.trainers import LiveTrainer
from dasktune._worker.writer import MEASURED_SAVES
from dasktune.graph.audits import ALWAYS
from dasktune.storage.codec import encode
from tests.worker.held_store import HeldStore
from tests.worker.test_host import Bench, bench_in, chain_at

ANY = "done", -math.inf, math.inf
"""No rule keeps a state, whatever its metrics are."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Return a bench whose saves take long, as far as its host knows."""
    with bench_in(tmp_path, store=HeldStore(str(tmp_path))) as bench:
        know_cost(bench, 1e6)
        yield bench


def know_cost(bench: Bench, seconds: float) -> None:
    bench.host.writer.saves, bench.host.writer.shortest_seconds = MEASURED_SAVES, seconds


def run(bench: Bench, attempt: str, start: int, stop: int, omits: Any = ANY, **more: Any) -> Any:
    spec = replace(bench.spec(attempt, start, stop, **more), omits=omits)
    return bench.host.run(spec)


def test_end_that_costs_more_than_training_is_omitted(bench: Bench) -> None:
    receipt = run(bench, "a1", 0, 3)
    assert bench.saved_steps() == []
    (omitted,) = bench.messages_of(StateOmitted)
    assert omitted == replace(omitted, step=3, key=chain_at(3).key, reported=(1, 2, 3))
    assert len(omitted.paces) == 3
    assert receipt.is_omitted
    progress = bench.messages_of(StageProgress)[-1]
    assert bench.messages.index(progress) < bench.messages.index(omitted)


def test_first_ends_are_stored_to_measure_the_cost(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        for number in range(MEASURED_SAVES):
            receipt = run(bench, f"a{number}", 0, 3 + number)
            bench.host.writer.finish(30.0)
            assert not receipt.is_omitted
        assert 0 < bench.host.writer.save_seconds < 1e6
        know_cost(bench, 1e6)
        assert run(bench, "b1", 0, 15).is_omitted


def test_end_that_costs_less_than_training_is_stored(bench: Bench) -> None:
    know_cost(bench, 0.0)
    run(bench, "a1", 0, 3)
    assert bench.saved_steps() == [3]


@pytest.mark.parametrize(
    ("omits", "stored"),
    [
        (None, [3]),
        (("done", -math.inf, 2.0), [3]),
        (("done", -math.inf, 3.0), []),
        (("done", 4.0, math.inf), [3]),
        (("loss", -math.inf, math.inf), [3]),
    ],
)
def test_end_that_a_rule_keeps_is_stored(bench: Bench, omits: Any, stored: list[int]) -> None:
    run(bench, "a1", 0, 3, omits)
    assert bench.saved_steps() == stored


def test_end_with_a_value_that_is_no_number_is_omitted(bench: Bench) -> None:
    bench.trainer.evaluate = lambda self: {"done": math.nan}
    run(bench, "a1", 0, 3, ("done", 0.0, 1.0))
    assert bench.saved_steps() == []


def test_end_that_somebody_asks_for_is_stored(bench: Bench) -> None:
    bench.host.control("a1").save_at(3)
    run(bench, "a1", 0, 3)
    assert bench.saved_steps() == [3]


@pytest.mark.parametrize(("saves", "stored"), [((1,), [1]), ((), [1, 3])])
def test_end_after_a_save_nobody_ordered_is_stored(
    bench: Bench, saves: tuple[int, ...], stored: list[int]
) -> None:
    """The driver would not wait for the state before, and have the whole stage trained again."""
    bench.host.control("a1").save_at(1)
    run(bench, "a1", 0, 3, saves=saves)
    bench.host.writer.finish(30.0)
    assert bench.saved_steps() == stored


def test_stage_that_stops_early_is_stored(bench: Bench) -> None:
    bench.host.control("a1").stop(2)
    run(bench, "a1", 0, 3)
    assert bench.saved_steps() == [2]


def test_first_resumes_are_stored_for_audits(bench: Bench) -> None:
    bench.run("a0", 0, 1)
    for number in range(ALWAYS + 1):
        bench.host.writer.finish(30.0)
        bench.host.trainers.drop()
        know_cost(bench, 1e6)
        run(bench, f"b{number}", 1, 2 + number)
    assert bench.saved_steps() == [1, *range(2, 2 + ALWAYS)]


def test_end_on_a_gpu_is_stored(bench: Bench) -> None:
    # The trainer itself stays on the CPU.
    bench.host.job = replace(bench.host.job, device="cuda")
    run(bench, "a1", 0, 3)
    assert bench.saved_steps() == [3]


@pytest.mark.parametrize("devices", [1, 2])
def test_end_from_several_devices_is_stored(bench: Bench, devices: int) -> None:
    trained: Any = SimpleNamespace(step=0)
    stage = bench.stage_run("a1", 0, 1)
    assert stage.may_omit(LiveTrainer(trained, "key", None, devices)) == (devices == 1)


def test_message_of_an_omission_waits_for_states_before(bench: Bench) -> None:
    bench.store.hold()
    bench.run("a1", 0, 2)
    receipt = run(bench, "b1", 2, 3)
    assert receipt.is_omitted
    assert bench.messages_of(StateOmitted) == []
    bench.store.release()
    bench.host.close(30.0)
    (saved,), (omitted,) = bench.messages_of(StateSaved), bench.messages_of(StateOmitted)
    assert bench.messages.index(saved) < bench.messages.index(omitted)


def test_metrics_come_before_an_omission_whoever_sends_it(bench: Bench) -> None:
    """The driver takes one that comes before its metrics for lost, and trains again."""
    bench.store.hold()
    bench.run("a1", 0, 2)
    omit = bench.host.writer.omit

    def omit_and_write(*arguments: Any) -> Any:
        messages = omit(*arguments)
        bench.store.release()
        bench.host.writer.finish(30.0)
        return messages

    bench.host.writer.omit = omit_and_write
    run(bench, "b1", 2, 3)
    (omitted,) = bench.messages_of(StateOmitted)
    progress = bench.messages_of(StageProgress)[-1]
    assert progress.attempt == omitted.attempt == "b1"
    assert bench.messages.index(progress) < bench.messages.index(omitted)


def test_omission_after_a_lost_commit_is_lost(bench: Bench) -> None:
    bench.store.save(encode({"done": 7}), key=chain_at(2).key, attempt="rival", step=2)
    bench.store.hold()
    bench.run("a1", 0, 2)
    run(bench, "b1", 2, 3)
    bench.store.release()
    bench.host.close(30.0)
    assert bench.messages_of(StateOmitted) == []
    lost = [message for message in bench.messages_of(StageEnded) if message.status == "lost"]
    assert [(message.attempt, message.step) for message in lost] == [("b1", 3)]
