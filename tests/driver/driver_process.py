"""A driver in a process of its own: ``python -m tests.driver.driver_process JSON``.

Every step that is trained appends one line to the log, which names the state: no count of
dasktune's own is needed to see whether something was trained twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Client, LocalCluster, Worker

import dasktune as dt
from dasktune._engine.timeouts import Waits
from dasktune.sequences import MultiStep
from tests.holding import pass_gate, save_order, wait_until


class Follow(dt.Trainer):
    """Follows its learning rate; after so many steps it passes a gate.

    With `told_to_save`, it goes on from there when its driver has told it to save at that step.
    """

    ignored_config = ("log", "hold", "hold_after", "told_to_save")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.done, self.lr = 0.0, 0, hp["lr"]

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        if self.done == self.config["hold_after"]:
            pass_gate(self.config["hold"])
            if self.config["told_to_save"] is not None:
                wait_until(save_order(Worker._instances, self.config["told_to_save"]))
        self.x, self.done = follow(self.x, self.lr), self.done + 1
        with open(self.config["log"], "a") as file:
            file.write(f"{self.done} {self.x.hex()}\n")

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x, self.done = state["x"], state["done"]


def follow(x: float, lr: float) -> float:
    return 0.9 * x + lr


def space(
    gammas: list[float],
    rates: Sequence[float] = (0.1, 0.2, 0.3),
    milestones: Sequence[int] = (4, 8, 12, 16),
) -> dt.Space:
    return dt.Space(
        lr=[
            MultiStep(lr, milestones=[at], gamma=gamma)
            for lr in rates
            for at in milestones
            for gamma in gammas
        ]
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    seconds = options["lease_seconds"]
    waits = Waits(lease_seconds=seconds, renew_seconds=seconds / 4)
    cluster = LocalCluster(
        processes=False,
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
    )
    with cluster, Client(cluster) as client:
        study = dt.create_study(
            Follow,
            name=options["name"],
            storage=options["storage"],
            database=options["database"],
            metric="loss",
            config={name: options[name] for name in Follow.ignored_config},
            checkpoint_every=options["checkpoint_every"],
            load_if_exists=True,
        )
        choices = {name: options[name] for name in ("rates", "milestones") if name in options}
        tuner = dt.algos.Grid(space(options["gammas"], **choices), max_steps=options["steps"])
        timeouts = dt.Timeouts(waits=waits)
        study.optimize(tuner, client=client, progress=False, last_line=False, timeouts=timeouts)
        losses = {
            trial.number: {step: metrics["loss"] for step, metrics in trial.metrics.items()}
            for trial in study.trials
        }
        sys.stdout.write(json.dumps({"summary": study.summary(), "metrics": losses}))
        study.close()


if __name__ == "__main__":
    main()
