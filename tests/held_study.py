"""A study whose trials train until the test lets them go, and marks of where they did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import get_worker

import dasktune as dt
from dasktune._engine.timeouts import Waits
from tests.holding import Gate, pass_gate
from tests.toy_trainers import Adding

SOON = dt.Timeouts(waits=Waits(idle_seconds=0.1))
"""An idle worker is ended soon."""


class Held(Adding):
    """Leaves a mark of its worker, and passes the gate of its learning rate."""

    ignored_config = ("folder",)

    def train(self) -> None:
        folder, worker = Path(self.config["folder"]), get_worker().address
        (folder / f"{self.lr:g}-{worker.replace('/', '')}").touch()
        pass_gate(folder / f"gate-{self.lr:g}")
        super().train()


class HeldStudy:
    """A study of trials that train until the test lets them go."""

    def __init__(self, folder: Path, trials: int) -> None:
        self._folder = folder
        self.gates = {lr: Gate(folder / f"gate-{lr}") for lr in range(1, trials + 1)}
        for gate in self.gates.values():
            gate.close()
        self.study = dt.create_study(
            Held,
            name="held",
            storage=folder / "store",
            metric="loss",
            config={"folder": str(folder)},
        )

    def workers(self, lr: int) -> set[str]:
        """Return the workers on which a trial was trained."""
        return {path.name.partition("-")[2] for path in self._folder.glob(f"{lr}-*")}

    def are_apart(self) -> bool:
        """Whether all trials train, each on a worker of its own."""
        return len(set().union(*map(self.workers, self.gates))) == len(self.gates)

    def let_go(self) -> None:
        """Open the gates of all trials."""
        for gate in self.gates.values():
            gate.open()

    def train(self, act: Callable[[], None], **options: Any) -> None:
        """Train all trials while a thread acts."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                errors.append(error)
            finally:
                self.let_go()

        thread = threading.Thread(target=run)
        thread.start()
        tuner = dt.algos.Grid(dt.Space(lr=[*map(float, self.gates)]), max_steps=2)
        options = {"timeouts": SOON, "progress": False, "check": False, **options}
        try:
            self.study.optimize(tuner, **options)
        finally:
            thread.join()
        assert errors == []
        assert [trial.value for trial in self.study.trials] == [2.0 * lr for lr in self.gates]
        assert self.study.summary()["steps_repeated"] == 0


@contextmanager
def held_study(folder: Path, trials: int = 2) -> Iterator[HeldStudy]:
    """Give such a study, and let its trials go in the end."""
    made = HeldStudy(folder, trials)
    yield made
    made.let_go()
    made.study.close()
