"""A compute class that disappears in mid-study, and comes back: real worker processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._engine.timeouts import Waits
from dasktune.cli.status import read
from tests.holding import Gate, pass_gate, wait_until
from tests.unlike_workers import unlike_processes

STEPS, HELD = 4, 2
OLD, NEW = (0.1, 0.2), (0.6, 0.7)


class Walk(dt.Trainer):
    """Adds up its learning rate; writes down each step with the tag of its worker."""

    ignored_config = ("folder",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.lr, self.done, self.x = hp["lr"], 0, 0.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        folder, tag = Path(self.config["folder"]), os.environ["DASKTUNE_TAGS"]
        if tag == "new" or self.done == HELD:
            pass_gate(folder / tag)
        self.x += self.lr
        self.done += 1
        with open(folder / "log", "a") as file:
            file.write(f"{tag} {self.lr} {self.done}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


class OldIsGone:
    """Closes the only worker of a class, and starts it again once the other class is done."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.cluster = folder, client.cluster
        self.old, self.new = Gate(folder / "old"), Gate(folder / "new")
        self.seen: list[str] = []

    def trained(self, tag: str) -> int:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(line.startswith(tag) for line in lines)

    def waits(self) -> str:
        """Return the reasons for waiting that the status of the study names."""
        (status,) = read(str(self.folder))
        return "" if status.run is None else "; ".join(wait.text for wait in status.run.waits)

    def act(self) -> None:
        try:
            wait_until(lambda: self.trained("old") == HELD)
            spec = self.cluster.worker_spec.pop(0)
            self.cluster.sync(self.cluster._correct_state)
            wait_until(lambda: "on which its steps began" in self.waits())
            self.new.open()
            wait_until(lambda: self.trained("new") == STEPS * len(NEW))
            self.seen.append(self.waits())
            self.old.open()
            self.cluster.worker_spec[2] = spec
            self.cluster.sync(self.cluster._correct_state)
        finally:
            self.old.open()
            self.new.open()


def needs(hp: Mapping[str, Any]) -> dict[str, str]:
    return {"tags": "old" if hp["lr"] in OLD else "new"}


@pytest.mark.process
def test_class_that_goes_and_returns_leaves_the_other_at_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = dt.create_study(
        Walk,
        name="walk",
        storage=tmp_path,
        metric="loss",
        config={"folder": str(tmp_path)},
        checkpoint_every=1,
        needs=needs,
    )
    workers = [
        {"DASKTUNE_TAGS": tag, "DASKTUNE_CLASS": f"{tag} class", "DASKTUNE_NUMERICS": f"{tag} bits"}
        for tag in ("old", "new")
    ]
    with unlike_processes(*workers) as client:
        gone = OldIsGone(tmp_path, client)
        thread = threading.Thread(target=gone.act)
        with gone.old, gone.new:
            thread.start()
            study.optimize(
                dt.algos.Grid(dt.Space(lr=[*OLD, *NEW]), max_steps=STEPS),
                client=client,
                timeouts=dt.Timeouts(waits=Waits(heartbeat_seconds=0.05, heartbeat_share=1.0)),
                progress=False,
                check=False,
            )
            thread.join()
    (seen,) = gone.seen
    assert "1 stage of trial 1 to run: no worker has tag old" in seen
    assert "no worker has tag old, numeric class 'old bits', on which its steps began" in seen
    assert "workers: new class (tags new" in seen
    assert "stages wait: 1 stage of trial" in caplog.text
    assert [trial.state.value for trial in study.trials] == ["COMPLETE"] * 4
    assert [trial.value for trial in study.trials] == pytest.approx(
        [STEPS * lr for lr in (*OLD, *NEW)]
    )
    assert study.summary()["steps_repeated"] == 0
    classes = {(stage.trials[0], stage.kind) for stage in study.stages()}
    assert classes == {(0, "old class"), (1, "old class"), (2, "new class"), (3, "new class")}
    study.close()
