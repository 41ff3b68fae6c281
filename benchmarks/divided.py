"""The measured scaling curve of this host: a training on 1 and on 2 CPU processes."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

from figures import Figure, main

os.environ["OMP_NUM_THREADS"] = "1"  # one core for each process, also for those that start later

import torch
from torch import nn

import dasktune as dt
from dasktune.engine.scaling import Scale, choose_devices
from dasktune.trainer.code import pack
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.worker.divided import AnyRun, DividedRun
from dasktune.worker.rank import RankTraining

WIDTHS, SHORT_WIDTHS = (64, 512, 1536), (64,)
BATCH = 512
ROUNDS, SHORT_ROUNDS = 15, 2
ROUND_SECONDS = 0.5
"""About how long one process trains in a round."""

VALUES = {"lr": 0.01}


class Net(dt.TorchTrainer):
    """A net of two layers; a step is one batch."""

    divides = True

    def build(self, hp: Any) -> None:
        """Build a net of the width that the study's config names."""
        width = self.config["width"]
        self.model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hp["lr"])
        self.images = torch.rand(BATCH, width)
        self.labels = torch.randint(0, 10, (BATCH,))

    def setup(self, hp: Any) -> None:
        """Keep the learning rate, which never changes."""

    def train(self) -> None:
        """Train on this process's part of the batch."""
        images, labels = self.share((self.images, self.labels))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.divided(self.model)(images), labels).backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        """Return the loss of the batch."""
        return {"loss": nn.functional.cross_entropy(self.model(self.images), self.labels).item()}


def measure(short: bool) -> list[Figure]:
    """Return how many times as fast 2 processes train as 1, for nets of several widths."""
    torch.set_num_threads(1)
    return [
        _figure(width, speedups(width, rounds=SHORT_ROUNDS if short else ROUNDS))
        for width in (SHORT_WIDTHS if short else WIDTHS)
    ]


def speedups(width: int, *, rounds: int) -> list[float]:
    """Return the speedup in each round; the runs take turns, so that both meet the same load."""
    config = {"width": width}
    alone: AnyRun = TrainerRun.start(Net, VALUES, config=config, seed=0)
    training = RankTraining(
        code=pack(Net),
        config=config,
        seed=0,
        device="cpu",
        step=0,
        first_values=VALUES,
        last_values=VALUES,
        state=None,
    )
    together = DividedRun.begin(training, Net, 2)
    try:
        for run in (alone, together):
            seconds_of(run, 3)
        steps = max(1, round(ROUND_SECONDS / (seconds_of(alone, 3) / 3)))
        ratios = []
        for number in range(rounds):
            order = (alone, together) if number % 2 else (together, alone)
            seconds = {id(run): seconds_of(run, steps) for run in order}
            ratios.append(seconds[id(alone)] / seconds[id(together)])
        return ratios
    finally:
        together.close()


def seconds_of(run: AnyRun, steps: int) -> float:
    """Return the seconds of the next steps of a run."""
    began = time.perf_counter()
    for _ in range(steps):
        run.advance(VALUES)
    return time.perf_counter() - began


def _figure(width: int, ratios: list[float]) -> Figure:
    middle = statistics.median(ratios)
    chosen = choose_devices(Scale(max=2), most=2, speedups={1: 1.0, 2: middle})
    return Figure(
        name=f"speedup of 2 processes, {width} wide",
        value=middle,
        unit="x",
        note=(
            f"median of {len(ratios)} rounds in turns, {min(ratios):.2f} to {max(ratios):.2f}; "
            f"Scale(max=2) chooses {chosen}"
        ),
    )


if __name__ == "__main__":
    sys.exit(main("divided", measure))
