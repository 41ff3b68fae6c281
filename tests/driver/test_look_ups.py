"""Look-ups of states whose messages were lost: the loop goes on while the store is silent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune._driver import attempts as attempting
from dasktune._driver.attempts import Attempts, Following
from dasktune._driver.look_ups import LookUps
from dasktune._driver.runner import DaskRunner
from dasktune._worker.messages import StageMessage, StageProgress, StateSaved
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.types import TrialState
from tests.holding import PATIENCE, Gate, pass_gate, wait_until

STEPS = 2
RATES = (0.1, 0.2, 0.3)


class Walk(dt.Trainer):
    """Multiplies a number by 1 - lr at every step, and writes each down."""

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.x = hp["lr"], 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        folder = Path(self.config["folder"])
        if self.lr != RATES[0]:
            pass_gate(folder / "others")
        self.x -= self.lr * self.x
        with open(folder / "log", "a") as file:
            file.write(f"{self.lr}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


class SilentStore:
    """A store that answers no question about some keys until it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()
        self.keys: set[str] = set()
        commits, of_store = CheckpointStore.commits, self

        def held(store: CheckpointStore, keys: Iterable[str]) -> dict[str, Commit]:
            wanted = list(keys)
            if not of_store.keys.isdisjoint(wanted):
                of_store.asked.set()
                assert of_store.answers.wait(PATIENCE)
            return commits(store, wanted)

        monkeypatch.setattr(CheckpointStore, "commits", held)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentStore]:
    store = SilentStore(monkeypatch)
    yield store
    store.answers.set()


def test_no_keys_need_no_request(tmp_path: Path, silent: SilentStore) -> None:
    look_ups = LookUps(CheckpointStore(str(tmp_path)))
    silent.keys = {"a1f0"}
    held, nothing = look_ups.ask(["a1f0"]), look_ups.ask([])
    assert nothing.result(0) == {}
    assert not held.done()
    silent.answers.set()
    assert held.result(PATIENCE) == {}
    look_ups.close()


def lose(kind: type, silent: SilentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the messages of a kind about the first trial, of whose states the store is silent."""
    receive = Attempts.receive

    def lossy(attempts: Attempts, message: StageMessage, now: float) -> list[Following]:
        known = attempts._open.get(message.attempt)
        if known is not None and known.order.node.sequences["lr"](0) == RATES[0]:
            silent.keys |= {known.order.node.key_at(step) for step in range(1, STEPS + 1)}
            if isinstance(message, kind):
                return []
        return receive(attempts, message, now)

    monkeypatch.setattr(Attempts, "receive", lossy)
    monkeypatch.setattr(attempting, "DURABLE_SECONDS", 0.0)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", [StateSaved, StageProgress])
def test_loop_hears_messages_while_the_store_is_silent(
    kind: type, tmp_path: Path, silent: SilentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(kind, silent, monkeypatch)
    others = Gate(tmp_path / "others")
    study = dt.create_study(
        Walk,
        name="walk",
        storage=tmp_path,
        metric="loss",
        config={"folder": str(tmp_path)},
        checkpoint_every=1,
        audit=0,
    )
    ended: list[TrialState] = []

    def act() -> None:
        try:
            assert silent.asked.wait(PATIENCE)
            others.open()
            trials = study._optimizer.runner._engine.trials
            wait_until(lambda: all(trials[number].state.is_finished for number in (1, 2)))
            ended.extend(trials[number].state for number in range(3))
        finally:
            silent.answers.set()
            others.open()

    others.close()
    thread = threading.Thread(target=act)
    with local_client(2) as client:
        thread.start()
        tuner = dt.algos.Grid(dt.Space(lr=list(RATES)), max_steps=STEPS)
        study.optimize(tuner, client=client, progress=False)
        thread.join()
    assert ended == [TrialState.RUNNING, TrialState.COMPLETE, TrialState.COMPLETE]
    assert [trial.value for trial in study.trials] == pytest.approx(
        [(1 - rate) ** STEPS for rate in RATES]
    )
    trained = (tmp_path / "log").read_text().splitlines()
    assert len(trained) == STEPS * len(RATES), "no step is trained twice"
    study.close()


@pytest.mark.cluster
def test_loop_turns_while_states_of_others_are_looked_up(
    tmp_path: Path, silent: SilentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate = RATES[0]
    turns, turn = threading.Semaphore(0), DaskRunner._turn

    def counted(runner: DaskRunner) -> None:
        turn(runner)
        if silent.asked.is_set():
            turns.release()

    def run(database: str) -> dt.Study:
        study = dt.create_study(
            Walk,
            name="walk",
            storage=tmp_path / "store",
            database=f"sqlite:///{tmp_path / database}",
            metric="loss",
            config={"folder": str(tmp_path)},
            checkpoint_every=1,
            audit=0,
        )
        tuner = dt.algos.Grid(dt.Space(lr=[rate]), max_steps=STEPS)
        study.optimize(tuner, client=client, progress=False)
        return study

    def act() -> None:
        try:
            for _ in range(3):
                assert turns.acquire(timeout=PATIENCE)
                turned.append(True)
        finally:
            silent.answers.set()

    turned: list[bool] = []
    monkeypatch.setattr(DaskRunner, "_turn", counted)
    with local_client(1) as client:
        run("first.db").close()
        silent.keys = set(CheckpointStore(str(tmp_path / "store")).keys())
        assert silent.keys
        thread = threading.Thread(target=act)
        thread.start()
        study = run("second.db")
        thread.join()
    assert len(turned) == 3
    assert [trial.value for trial in study.trials] == pytest.approx([(1 - rate) ** STEPS])
    assert len((tmp_path / "log").read_text().splitlines()) == STEPS, "no step is trained twice"
    study.close()
