"""Lost workers: what they have saved is looked up while the loop goes on."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._driver.look_ups import Commits
from dasktune._driver.lost_workers import LookUpEnded, LostWorkers
from dasktune._study.study import Study
from dasktune.graph.events import WorkerJoined
from dasktune.storage.checkpoints import CheckpointStore, Commit
from tests.holding import PATIENCE, Gate, pass_gate, wait_until

STEPS = 4
RATES = (0.1, 0.2, 0.3, 0.4)
HELD = 2
"""Steps after which the first trial is held."""


def test_loss_waits_for_the_store_and_the_loop_does_not() -> None:
    inbox: queue.SimpleQueue[LookUpEnded] = queue.SimpleQueue()
    commits: Future[Commits] = Future()
    lost = LostWorkers(inbox.put)
    lost.add("w0", commits, is_blameless=False)
    assert "w0" in lost
    assert lost.take("w0") is None
    assert not lost.any_joined
    joined = WorkerJoined(worker="w0", host="", resources={})
    lost.join(joined)
    assert lost.any_joined
    commits.set_result({})
    assert inbox.get_nowait() == LookUpEnded(worker="w0")
    taken = lost.take("w0")
    assert taken is not None
    assert taken.joined == joined
    assert "w0" not in lost


# ------------------------------------------------------------------------------ in a run


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step, and writes each down with its process."""

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        folder = Path(self.config["folder"])
        if self.lr != RATES[0]:
            pass_gate(folder / "others")
        elif self.done == HELD:
            pass_gate(folder / "first")
        self.x -= self.lr * self.x
        self.done += 1
        with open(folder / "log", "a") as file:
            file.write(f"{os.getpid()} {self.lr} {self.done}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


class Loss:
    """The loss of the worker of the first trial, while the store does not say what it saved."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.first, self.others = Gate(folder / "first"), Gate(folder / "others")
        self.asked, self.answers = threading.Event(), threading.Event()
        self._last = ""
        commits, of_store = CheckpointStore.commits, self

        def held(store: CheckpointStore, keys: Iterable[str]) -> dict[str, Commit]:
            wanted = list(keys)
            if of_store._last in wanted:
                of_store.asked.set()
                assert of_store.answers.wait(PATIENCE)
            return commits(store, wanted)

        monkeypatch.setattr(CheckpointStore, "commits", held)

    def trained(self) -> list[list[str]]:
        """Return the process, rate and number of each step."""
        log = self.folder / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def steps_of(self, rates: Collection[float]) -> int:
        return sum(float(rate) in rates for _, rate, _ in self.trained())

    def kill_and_hold(self, study: Study) -> None:
        """Kill the worker of the first trial, once it has trained what it may."""
        wait_until(lambda: self.steps_of(RATES[:1]) == HELD)
        victim = next(process for process, rate, _ in self.trained() if float(rate) == RATES[0])
        self._last = study.plan.paths[0].leaf.key_at(STEPS)
        os.kill(int(victim), signal.SIGKILL)
        assert self.asked.wait(PATIENCE)

    def let_go(self) -> None:
        self.first.open()
        self.others.open()
        self._last = ""
        self.answers.set()


@pytest.fixture
def loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loss]:
    loss = Loss(tmp_path, monkeypatch)
    yield loss
    loss.let_go()


@pytest.mark.cluster
def test_other_stages_go_on_while_the_store_does_not_answer(tmp_path: Path, loss: Loss) -> None:
    study = dt.create_study(
        Walk,
        name="walk",
        storage=tmp_path,
        metric="loss",
        config={"folder": str(tmp_path)},
        checkpoint_every=1,
    )
    meanwhile: list[int] = []
    gone: set[str] = set()

    def act() -> None:
        try:
            loss.kill_and_hold(study)
            loss.others.open()
            wait_until(lambda: loss.steps_of(RATES[1:]) == STEPS * len(RATES[1:]))
            view = study._optimizer.runner._engine.view
            gone.update(one.worker for one in view.attempts.values() if not one.ended)
            gone.difference_update(view.slots)
            meanwhile.append(loss.steps_of(RATES[:1]))
        finally:
            loss.let_go()

    loss.first.close()
    loss.others.close()
    thread = threading.Thread(target=act)
    with local_client(2) as client:
        thread.start()
        tuner = dt.algos.Grid(dt.Space(lr=list(RATES)), max_steps=STEPS)
        study.optimize(tuner, client=client, progress=False)
        thread.join()
    assert meanwhile == [HELD], "the others have ended, the lost one has not begun again"
    assert len(gone) == 1, "nothing else is given to the lost worker"
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * len(RATES)
    assert [trial.value for trial in study.trials] == pytest.approx(
        [(1 - rate) ** STEPS for rate in RATES]
    )
    study.close()
