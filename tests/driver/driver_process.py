"""A driver in a process of its own, for tests of several at once: ``driver.py JSON``.

Every step that is trained appends one line to the log, which names the state: no count of
dasktune's own is needed to see whether something was trained twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from distributed import Client, LocalCluster

import dasktune as dt
from dasktune.driver import leases as leasing
from dasktune.sequences import MultiStep


class Slow(dt.Trainer):
    """Follows its learning rate, slowly, and no further as long as there is a file to hold it."""

    ignored_config = ("log", "seconds", "hold")

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.done, self.lr = 0.0, 0, hp["lr"]

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        time.sleep(self.config["seconds"])
        while os.path.exists(self.config["hold"]):
            time.sleep(0.01)
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


def space(gammas: list[float]) -> dt.Space:
    return dt.Space(
        lr=[
            MultiStep(lr, milestones=[at], gamma=gamma)
            for lr in (0.1, 0.2, 0.3)
            for at in (4, 8, 12, 16)
            for gamma in gammas
        ]
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    leasing.LEASE_SECONDS = options.get("lease_seconds", 60.0)
    leasing.RENEW_SECONDS = leasing.LEASE_SECONDS / 4
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
            Slow,
            name=options["name"],
            storage=options["storage"],
            database=options["database"],
            metric="loss",
            config={name: options[name] for name in ("log", "seconds", "hold")},
            load_if_exists=True,
        )
        tuner = dt.algos.Grid(space(options["gammas"]), max_steps=options["steps"])
        study.optimize(tuner, client=client, progress=False, last_line=False)
        found = {
            trial.number: {step: one["loss"] for step, one in trial.metrics.items()}
            for trial in study.trials
        }
        sys.stdout.write(json.dumps({"summary": study.summary(), "metrics": found}))
        study.close()


if __name__ == "__main__":
    main()
