"""The measured scaling curve of this host: a training on 1 and on 2 CPU processes."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

from figures import Figure, main

# For each process, also for those that start later: one core, and no warning that the search for
# unused parameters, which `TorchTrainer` needs, finds none.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

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

TOLERANCE = 1e-4
"""By which share of it a metric of 2 processes may differ from that of 1."""


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
    """Return how many times as fast 2 processes train as 1, and how far their metrics differ."""
    torch.set_num_threads(1)
    return [
        figure
        for width in (SHORT_WIDTHS if short else WIDTHS)
        for figure in _figures(width, *compared(width, rounds=SHORT_ROUNDS if short else ROUNDS))
    ]


def compared(width: int, *, rounds: int) -> tuple[list[float], float, int]:
    """Return the speedup in each round, the difference of the last loss, and the steps until then.

    The runs take turns, so that both meet the same load. The difference is a share of the loss.
    """
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
        seconds_of(together, 3)
        ratios = []
        for number in range(rounds):
            order = (alone, together) if number % 2 else (together, alone)
            seconds = {id(run): seconds_of(run, steps) for run in order}
            ratios.append(seconds[id(alone)] / seconds[id(together)])
        loss, other = (run.evaluate()["loss"] for run in (alone, together))
        return ratios, abs(other - loss) / abs(loss), 6 + rounds * steps
    finally:
        together.close()


def seconds_of(run: AnyRun, steps: int) -> float:
    """Return the seconds of the next steps of a run."""
    began = time.perf_counter()
    for _ in range(steps):
        run.advance(VALUES)
    return time.perf_counter() - began


def _figures(width: int, ratios: list[float], difference: float, steps: int) -> list[Figure]:
    middle = statistics.median(ratios)
    chosen = choose_devices(Scale(max=2), most=2, speedups={1: 1.0, 2: middle})
    speedup = Figure(
        name=f"speedup of 2 processes, {width} wide",
        value=middle,
        unit="x",
        note=(
            f"median of {len(ratios)} rounds in turns, {min(ratios):.2f} to {max(ratios):.2f}; "
            f"Scale(max=2) chooses {chosen}"
        ),
    )
    metrics = Figure(
        name=f"loss of 2 processes next to that of 1, {width} wide",
        value=difference,
        unit="of it",
        at_most=TOLERANCE,
        note=f"after {steps:,} steps",
    )
    return [speedup, metrics]


if __name__ == "__main__":
    sys.exit(main("divided", measure))
