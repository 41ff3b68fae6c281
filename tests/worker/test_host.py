"""A stage host without Dask: stages, save-points, stops, and rival attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import dasktune as dt
from dasktune._worker.control import Control
from dasktune._worker.host import StageHost
from dasktune._worker.job import Job, StageSpec
from dasktune._worker.messages import (
    StageEnded,
    StageFailed,
    StageMessage,
    StagePrinted,
    StageProgress,
    StageStarted,
    StateMeasured,
    StateSaved,
    StoreFailed,
)
from dasktune._worker.stage_run import StageRun
from dasktune._worker.trainers import LiveTrainer
from dasktune._worker.writer import PENDING_WRITES, StateWriter
from dasktune.errors import StorageError
from dasktune.graph.keys import Chain, encode_at
from dasktune.sequences import Constant
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from tests.holding import wait_until
from tests.worker.held_store import PATIENCE, HeldStore

Sent = TypeVar("Sent")

SEQUENCES = {"lr": Constant(1)}
ROOT = "aa" * 16


class Counting(dt.Trainer):
    """Counts steps; what a test hangs into `before_step` runs before each of them."""

    builds = 0
    before_step: Callable[[int], None] = staticmethod(lambda done: None)

    def build(self, hp: Mapping[str, Any]) -> None:
        type(self).builds += 1
        self.done = 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        type(self).before_step(self.done)
        self.done += self.lr

    def evaluate(self) -> dict[str, float]:
        return {"done": self.done}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]


class WatchedWriter(StateWriter):
    """Sets an event once training waits for the store."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.waits = threading.Event()
        super().__init__(*arguments, **options)

    def _has_room_for(self, nbytes: int) -> bool:
        has_room = super()._has_room_for(nbytes)
        if not has_room:
            self.waits.set()
        return has_room


class OneByOneWriter(StateWriter):
    """Takes memory for a snapshot when all others are written, and notes where it lies."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.addresses: list[int] = []
        super().__init__(*arguments, **options)

    def room_for(self, nbytes: int) -> Any:
        with self._written:
            assert self._written.wait_for(lambda: not self._pending, PATIENCE)
        data = super().room_for(nbytes)
        self.addresses.append(data.ctypes.data)
        return data


class FullStore(CheckpointStore):
    """Can save nothing."""

    def save(self, *arguments: Any, **options: Any) -> Any:
        raise StorageError("the disk is full")


class Bench:
    """A host, all that it said, and its store."""

    def __init__(
        self,
        folder: Path,
        writer: type[StateWriter] = StateWriter,
        *,
        store: CheckpointStore | None = None,
        **options: Any,
    ) -> None:
        self.trainer = type("Counting", (Counting,), {})
        job = Job(
            trainer_class=self.trainer,
            config={},
            device="cpu",
            store=str(folder),
            report_every=1,
        )
        self.messages: list[StageMessage] = []
        self.store = store or CheckpointStore(job.store)
        emit = self.messages.extend
        self.writer = writer(self.store, emit, environment=job.environment, **options)
        self.host = StageHost(job, emit, writer=self.writer)

    def spec(self, attempt: str, start: int, stop: int, saves: tuple[int, ...] = ()) -> StageSpec:
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

    def run(self, attempt: str, start: int, stop: int, saves: tuple[int, ...] = ()) -> Any:
        return self.host.run(self.spec(attempt, start, stop, saves))

    def stage_run(self, attempt: str, start: int, stop: int) -> StageRun:
        host = self.host
        return StageRun(
            self.spec(attempt, start, stop),
            Control(),
            job=host.job,
            trainers=host.trainers,
            writer=host.writer,
            watch=host.watch,
            emit=self.messages.extend,
        )

    def messages_of(self, kind: type[Sent]) -> list[Sent]:
        return [message for message in self.messages if isinstance(message, kind)]

    def saved_steps(self) -> list[int]:
        """Return the steps whose states are in the store, once all were written."""
        self.host.close(PATIENCE)
        steps = []
        for step in range(20):
            commit = self.store.commit_of(chain_at(step).key)
            if commit is not None:
                assert commit.step == step
                steps.append(step)
        return steps


def chain_at(step: int) -> Chain:
    return Chain(ROOT).extend(encode_at(SEQUENCES, 0), step)


@contextmanager
def bench_in(
    folder: Path, writer: type[StateWriter] = StateWriter, **options: Any
) -> Iterator[Bench]:
    bench = Bench(folder, writer, **options)
    yield bench
    bench.host.close(PATIENCE)
    assert not bench.writer.thread.is_alive()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path) as bench:
        yield bench


def hook(bench: Bench, step: int, act: Callable[[], object]) -> None:
    """Do something before the trainer takes the step that follows `step` of them."""

    def before_step(done: int) -> None:
        if done == step:
            act()

    bench.trainer.before_step = staticmethod(before_step)


# ------------------------------------------------------------------------- messages


def test_a_stage_says_what_happens_in_order(bench: Bench) -> None:
    receipt = bench.run("a1", 0, 3, saves=(1,))
    assert bench.saved_steps() == [1, 3]
    assert (receipt.status, receipt.step) == ("trained", 3)
    assert {message.attempt for message in bench.messages} == {"a1"}
    assert isinstance(bench.messages[0], StageStarted)
    reports = [report for message in bench.messages_of(StageProgress) for report in message.reports]
    keys = [chain_at(step).key for step in (1, 2, 3)]
    assert reports == [
        (step, key, {"done": step}) for step, key in zip((1, 2, 3), keys, strict=True)
    ]
    first, last = bench.messages_of(StateSaved)
    assert (first.step, first.reported) == (1, (1,))
    assert (last.step, last.reported) == (3, (2, 3))
    assert bench.messages.index(bench.messages_of(StageProgress)[-1]) < bench.messages.index(last)
    for message in (first, last):
        commit = bench.store.commit_of(message.key)
        assert (message.by, message.digest) == ("a1", commit.digest)
        assert message.replaced == ()
    assert bench.store.commit_of(last.key).parent == first.digest
    assert bench.messages_of(StageEnded) == [receipt]


def test_a_silent_stage_sends_no_log(bench: Bench) -> None:
    bench.run("a1", 0, 3)
    assert bench.messages_of(StagePrinted) == []


def test_stage_sends_its_log_before_its_end(bench: Bench) -> None:
    bench.trainer.before_step = staticmethod(lambda done: print(f"step {done}"))
    bench.run("a1", 0, 2)
    bench.run("a2", 2, 3)
    logs = bench.messages_of(StagePrinted)
    assert [(log.attempt, log.text) for log in logs] == [("a1", "step 0\nstep 1"), ("a2", "step 2")]
    assert isinstance(bench.messages[bench.messages.index(logs[0]) + 1], StageEnded)


def test_stage_that_raises_sends_its_log(bench: Bench) -> None:
    def fail() -> None:
        print("all is well")
        raise ValueError("it is not")

    hook(bench, 1, fail)
    bench.run("a1", 0, 2)
    (log,) = bench.messages_of(StagePrinted)
    assert log.text == "all is well"
    assert isinstance(bench.messages[bench.messages.index(log) + 1], StageFailed)


def test_running_stage_sends_its_log_now_and_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dasktune._worker.stage_run.LOG_SECONDS", -1.0)
    bench.trainer.before_step = staticmethod(lambda done: print(f"step {done}"))
    bench.run("a1", 0, 2, saves=(1,))
    assert [log.text for log in bench.messages_of(StagePrinted)] == ["step 0", "step 0\nstep 1"]


def test_stage_reports_seconds_of_steps_start_and_saves(bench: Bench) -> None:
    built, warm = bench.run("a1", 0, 3, saves=(1,)), bench.run("a2", 3, 4)
    assert bench.saved_steps() == [1, 3, 4]
    assert built.start_seconds > 0
    assert warm.start_seconds == 0, "the worker held its trainer already"
    assert [len(one.paces) for one in bench.messages_of(StateSaved)] == [1, 2, 1]
    first, second, third = (one.paces for one in bench.messages_of(StateSaved))
    # Evaluation is part of a step's time, but not of what its configuration's speed is.
    assert sum(first + second) >= built.seconds > 0
    assert sum(third) >= warm.seconds > 0
    assert all(0 < one.hold_up <= one.latency for one in bench.messages_of(StateSaved))


def test_progress_tells_the_seconds_since_the_start(bench: Bench) -> None:
    receipt = bench.run("a1", 0, 3, saves=(1,))
    told = [(each.step, each.seconds) for each in bench.messages_of(StageProgress)]
    assert [step for step, _ in told] == [1, 3]
    assert 0 < told[0][1] < told[1][1] == receipt.seconds + receipt.evaluate_seconds


def test_the_next_stage_goes_on_with_the_same_trainer(bench: Bench) -> None:
    bench.run("a1", 0, 3)
    bench.run("b1", 3, 5)
    assert bench.trainer.builds == 1
    bench.run("c1", 3, 6)
    assert bench.trainer.builds == 2, "the trainer is at step 5 by now"
    assert bench.saved_steps() == [3, 5, 6]
    assert bench.store.load(chain_at(6).key)[0] == {"done": 6}


def test_a_stage_without_steps_only_measures(bench: Bench) -> None:
    bench.run("a1", 0, 2)
    receipt = bench.run("b1", 2, 2)
    assert receipt.status == "trained"
    assert bench.saved_steps() == [2]
    started, progress, saved, ended = (one for one in bench.messages if one.attempt == "b1")
    assert isinstance(progress, StageProgress)
    assert progress.reports == ((2, chain_at(2).key, {"done": 2}),)
    assert saved == StateMeasured(attempt="b1", step=2, key=chain_at(2).key)
    assert isinstance(started, StageStarted)
    assert ended == receipt


def test_a_stage_is_skipped_if_the_one_before_did_not_get_there(bench: Bench) -> None:
    receipt = bench.host.skip(bench.spec("b1", 3, 5))
    assert (receipt.status, receipt.step) == ("skipped", 3)
    assert bench.messages == [receipt]
    assert bench.saved_steps() == []


# ------------------------------------------------------------------ saves and stops


def test_a_save_point_may_come_before_the_stage(bench: Bench) -> None:
    assert bench.host.control("a1").save_at(2)
    bench.run("a1", 0, 4)
    assert bench.saved_steps() == [2, 4]


def test_a_save_point_may_come_while_the_stage_runs(bench: Bench) -> None:
    answers = []
    control = bench.host.control("a1")
    hook(bench, 2, lambda: answers.extend(control.save_at(step) for step in (1, 2, 3)))
    bench.run("a1", 0, 5)
    assert answers == [False, False, True], "1 and 2 are past"
    assert bench.saved_steps() == [3, 5]


def test_a_stage_that_is_stopped_before_it_begins_does_nothing(bench: Bench) -> None:
    bench.host.control("a1").stop(None)
    receipt = bench.run("a1", 0, 4)
    assert (receipt.status, receipt.step) == ("stopped", 0)
    assert bench.trainer.builds == 0
    assert bench.saved_steps() == []


@pytest.mark.parametrize(
    ("at", "status", "end"),
    [(None, "stopped", 3), (1, "stopped", 3), (4, "stopped", 4), (6, "trained", 6)],
)
def test_a_stage_ends_where_it_is_told_and_is_saved_there(
    bench: Bench, at: int | None, status: str, end: int
) -> None:
    hook(bench, 2, lambda: bench.host.control("a1").stop(at))
    receipt = bench.run("a1", 0, 6)
    assert (receipt.status, receipt.step) == (status, end)
    assert bench.saved_steps() == [end]


def test_the_earlier_of_two_stops_counts() -> None:
    control = Control()
    control.stop(5)
    control.stop(9)
    assert [control.passes(step)[1] for step in (4, 5)] == [False, True]
    control.stop(None)
    assert control.passes(1) == (False, True)


def test_closing_ends_the_stage_and_saves_it(bench: Bench) -> None:
    running = threading.Event()
    hook(bench, 5, running.set)
    receipts: list[StageEnded] = []
    thread = threading.Thread(target=lambda: receipts.append(bench.run("a1", 0, 10_000_000)))
    thread.start()
    assert running.wait(PATIENCE)
    bench.host.close(PATIENCE)
    thread.join(PATIENCE)
    (receipt,) = receipts
    assert receipt.status == "stopped"
    commit = bench.store.commit_of(chain_at(receipt.step).key)
    assert commit is not None
    assert commit.step == receipt.step > 5


def test_a_stage_that_comes_after_closing_is_skipped(bench: Bench) -> None:
    bench.run("a1", 0, 5)
    bench.host.close(PATIENCE)
    receipt = bench.run("b1", 5, 10)
    assert (receipt.status, receipt.step) == ("skipped", 5)
    assert [ended.status for ended in bench.messages_of(StageEnded)] == ["trained", "skipped"]
    assert bench.trainer.builds == 1


def test_trainer_abandoned_while_it_is_kept_is_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = bench.host.trainers.keep

    def abandon_and_keep(live: LiveTrainer) -> None:
        bench.host.abandon("a1")
        keep(live)

    with monkeypatch.context() as patch:
        patch.setattr(bench.host.trainers, "keep", abandon_and_keep)
        bench.run("a1", 0, 2)
    bench.run("b1", 2, 3)
    assert bench.trainer.builds == 2


# ---------------------------------------------------------------------- the store


def reached_while_held(bench: Bench, stop: int) -> list[int]:
    """Train while nothing can be saved; return the steps that begin before training waits."""
    writer, store = bench.writer, bench.store
    assert isinstance(writer, WatchedWriter)
    assert isinstance(store, HeldStore)
    reached: list[int] = []
    bench.trainer.before_step = staticmethod(reached.append)
    store.hold()
    thread = threading.Thread(target=bench.run, args=("a1", 0, stop, tuple(range(1, stop))))
    thread.start()
    assert writer.waits.wait(PATIENCE)
    before = [*reached]
    store.release()
    thread.join(PATIENCE)
    assert bench.saved_steps() == list(range(1, stop + 1))
    return before


def test_training_waits_for_the_store(tmp_path: Path) -> None:
    with bench_in(tmp_path, WatchedWriter, store=HeldStore(str(tmp_path))) as bench:
        # One is being written, so many wait, and the next one is held in the trainer's hands.
        assert len(reached_while_held(bench, 12)) == PENDING_WRITES + 2


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2 * 64, 2), (100 * 64, PENDING_WRITES + 1)])
def test_of_large_states_fewer_wait(tmp_path: Path, limit: int, most: int) -> None:
    def state_dict(self: Counting) -> dict[str, Any]:
        return {"done": self.done, "weights": np.zeros(8)}

    store = HeldStore(str(tmp_path))
    with bench_in(tmp_path, WatchedWriter, store=store, pending_bytes=limit) as bench:
        bench.trainer.state_dict = state_dict
        assert len(reached_while_held(bench, 6)) == most + 1


def test_the_memory_of_a_written_snapshot_is_used_again(tmp_path: Path) -> None:
    def state_dict(self: Counting) -> dict[str, Any]:
        return {"done": self.done, "weights": np.full(1000, self.done)}

    with bench_in(tmp_path, OneByOneWriter) as bench:
        bench.trainer.state_dict = state_dict
        bench.run("a1", 0, 5, saves=(1, 2, 3, 4))
        assert bench.saved_steps() == [1, 2, 3, 4, 5]
        assert len(bench.writer.addresses) == 5
        assert len(set(bench.writer.addresses)) == 1
        for step in range(1, 6):
            assert (bench.store.load(chain_at(step).key)[0]["weights"] == step).all()


def test_host_reports_that_a_store_fails(tmp_path: Path) -> None:
    with bench_in(tmp_path, store=FullStore(str(tmp_path))) as bench:
        bench.run("a1", 0, 2)
        bench.host.close(PATIENCE)
        (trouble,) = bench.messages_of(StoreFailed)
        assert trouble == StoreFailed(attempt="a1", message="the disk is full")
        assert bench.messages_of(StateSaved) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_state_that_is_missing_or_corrupt_is_out_of_the_way(
    bench: Bench, tmp_path: Path, is_there: bool
) -> None:
    key = chain_at(3).key
    if is_there:
        bench.store.save(encode({"done": 3}), key=key, attempt="x1", step=3)
        (commit,) = tmp_path.rglob("commit")
        commit.write_bytes(b"{}")
    receipt = bench.run("a1", 3, 5)
    assert (receipt.status, receipt.step) == ("missing", 3)
    assert bench.store.commit_of(key) is None
    assert bench.run("b1", 0, 3).status == "trained"
    assert bench.run("c1", 3, 5).status == "trained"
    assert bench.saved_steps() == [3, 5]


def test_who_loses_a_commit_goes_on_from_the_winners_state(bench: Bench) -> None:
    key = chain_at(2).key
    bench.store.save(
        encode({"done": 200}), key=key, attempt="rival", step=2, reports=[(2, {"done": 200.0})]
    )

    hook(bench, 3, lambda: wait_until(lambda: bench.messages_of(StateSaved)))
    receipt = bench.run("a1", 0, 6, saves=(2,))
    assert (receipt.status, receipt.step) == ("superseded", 4)
    (saved,) = bench.messages_of(StateSaved)
    assert (saved.by, saved.step) == ("rival", 2)
    assert saved.replaced == ((2, key, {"done": 200.0}),), "the winner's metrics stand"
    assert bench.run("b1", 2, 4).status == "trained"
    assert bench.saved_steps() == [2, 4]
    assert bench.store.load(chain_at(4).key)[0] == {"done": 202}


def test_trial_alone_replaces_a_state_that_differs(bench: Bench) -> None:
    reports = [(2, {"done": 200.0})]
    key = chain_at(2).key
    bench.store.save(encode({"done": 200}), key=key, attempt="earlier", step=2, reports=reports)
    spec = replace(bench.spec("a1", 0, 4, saves=(2,)), is_alone=True)
    assert bench.host.run(spec).status == "trained"
    assert bench.saved_steps() == [2, 4]
    assert [saved.by for saved in bench.messages_of(StateSaved)] == ["a1", "a1"]
    assert bench.store.load(key)[0] == {"done": 2}


def test_states_behind_a_lost_commit_are_not_written(tmp_path: Path) -> None:
    """Those that wait for the writing thread when it learns of the loss go nowhere."""
    store = HeldStore(str(tmp_path))
    with bench_in(tmp_path, store=store) as bench:
        store.save(encode({"done": 200}), key=chain_at(2).key, attempt="rival", step=2)
        store.hold()
        receipt = bench.run("a1", 0, 3, saves=(2,))
        assert receipt.status == "trained", "nothing was known of a rival yet"
        store.release()
        assert bench.saved_steps() == [2]
        ends = [(message.status, message.step) for message in bench.messages_of(StageEnded)]
        assert ends == [("trained", 3), ("lost", 3)]


def test_the_same_state_from_another_attempt_is_no_conflict(bench: Bench) -> None:
    bench.store.save(encode({"done": 2}), key=chain_at(2).key, attempt="twin", step=2)
    assert bench.run("a1", 0, 4, saves=(2,)).status == "trained"
    assert bench.run("b1", 4, 5).status == "trained"
    assert bench.trainer.builds == 1
    assert bench.saved_steps() == [2, 4, 5]


# ------------------------------------------------------------------------- failures


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_trainer_raises_comes_back_as_data(bench: Bench, error: BaseException) -> None:
    def fail() -> None:
        raise error

    hook(bench, 2, fail)
    receipt = bench.run("a1", 0, 5, saves=(1,))
    assert (receipt.status, receipt.step) == ("failed", 2)
    (failed,) = bench.messages_of(StageFailed)
    assert failed.message.startswith(type(error).__name__)
    assert "in fail" in failed.traceback
    reported = [step for one in bench.messages_of(StageProgress) for step, _, _ in one.reports]
    assert reported == [1, 2]
    assert bench.messages.index(bench.messages_of(StageProgress)[-1]) < bench.messages.index(failed)
    bench.trainer.before_step = Counting.before_step
    assert bench.run("b1", 0, 3).status == "trained"
    assert bench.trainer.builds == 2, "a trainer that failed is not used again"
    assert bench.saved_steps() == [1, 3]
