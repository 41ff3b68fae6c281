"""Exactness: states and metrics of random studies are, bit for bit, those of lone runs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distributed import Client
from figures import Figure, main
from spaces import random_space

import dasktune as dt
from dasktune.cluster.local import local_client
from dasktune.engine.trials import Trial
from dasktune.storage.codec import encode
from dasktune.study.study import Study
from dasktune.trainer import ResumableLoader
from dasktune.trainer.lifecycle import run_alone

STUDIES, SHORT_STUDIES = 50, 2
STEPS = 9
WORKERS, SHORT_WORKERS = (1, 4), (2,)


class Net(dt.TorchTrainer):
    """A small network with all that is forgotten easily.

    Momentum, batch norm, dropout, a shuffled loader whose batch size changes in mid-epoch,
    and an evaluation that draws random numbers.
    """

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make data, model and optimizer."""
        numbers = np.random.default_rng(3)
        x = numbers.normal(size=(150, 6)).astype(np.float32)
        y = (x.sum(axis=1) > 0).astype(np.int64)
        self.held_out = torch.as_tensor(x[:20]), torch.as_tensor(y[:20])
        self.loader = ResumableLoader((x[20:], y[20:]), hp["width"], seed=self.seed)
        self.dropout = torch.nn.Dropout(0.1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), self.dropout, torch.nn.Linear(8, 2)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over what changed."""
        self.loader.batch_size = hp.get("width", self.loader.batch_size)
        self.dropout.p = hp.get("dropout", self.dropout.p)
        if "lr" in hp:
            self.optimizer.param_groups[0]["lr"] = hp["lr"]

    def train(self) -> None:
        """Train on one batch."""
        x, y = self.loader.next_batch()
        self.optimizer.zero_grad()
        scores = self.model(torch.as_tensor(x))
        torch.nn.functional.cross_entropy(scores, torch.as_tensor(y)).backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        """Return the loss, and a number from the generator that training uses, too."""
        x, y = self.held_out
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        return {"loss": float(loss), "noise": float(torch.rand(()))}


@dataclass(slots=True)
class Tally:
    """The numbers of compared trials, states and metrics."""

    trials: int = 0
    states: int = 0
    metrics: int = 0
    different: int = 0


def measure(short: bool) -> list[Figure]:
    """Run random studies on clusters of one and of four workers; the short version on two."""
    figures = []
    for workers in SHORT_WORKERS if short else WORKERS:
        tally = Tally()
        rng = np.random.default_rng(workers)
        with local_client(workers) as client:
            for number in range(SHORT_STUDIES if short else STUDIES):
                _compare_study(random_space(rng, STEPS), number, client, tally)
        note = f"{tally.states:,} states and {tally.metrics:,} metrics of {tally.trials:,} trials"
        name = f"differences from lone runs in {number + 1} random studies, {workers} worker(s)"
        figures.append(Figure(name=name, value=tally.different, equals=0, note=note))
    return figures


def _compare_study(space: dt.Space, number: int, client: Client, tally: Tally) -> None:
    """Run one study and compare all that it left behind."""
    with tempfile.TemporaryDirectory() as folder:
        study = dt.create_study(
            Net,
            name=f"exactness-{number}",
            storage=Path(folder),
            metric="loss",
            seed=number,
            checkpoint_every=4,
        )
        study.optimize(dt.algos.Grid(space, max_steps=STEPS), client=client, progress=False)
        for trial in study.trials:
            _compare_trial(study, trial, tally)
        study.close()


def _compare_trial(study: Study, trial: Trial, tally: Tally) -> None:
    stored = {
        step: node.key_at(step)
        for node in study.plan.nodes_of(trial.number)
        for step in node.checkpoints
    }
    if STEPS not in stored:
        raise RuntimeError(f"trial {trial.number} must have a state at {STEPS}, got {stored}")
    alone = run_alone(Net, trial.sequences, STEPS, seed=study.seed, states_at=set(stored))
    tally.trials += 1
    for step, metrics in alone.metrics.items():
        tally.metrics += len(metrics)
        tally.different += dict(trial.metrics.get(step, {})) != metrics
    for step, key in stored.items():
        state, _ = study.store.load(key)
        tally.states += 1
        tally.different += encode(state).digest != encode(alone.states[step]).digest


if __name__ == "__main__":
    sys.exit(main("exactness", measure))
