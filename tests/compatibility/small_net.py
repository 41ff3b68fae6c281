"""A small trainer in torch with resumable data, whose fingerprint is kept.

Any change of this file changes the fingerprint in ``written_before``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import dasktune as dt
from dasktune.sequences import Sequence, as_sequence
from dasktune.trainer import data_digest
from dasktune.trainer.base import Trainer

DATA = torch.arange(24.0).reshape(12, 2)
SPACE = dt.Space(lr=[0.1, 0.2])


def rate(value: object) -> Sequence:
    """Return a learning rate as a sequence."""
    return as_sequence(value)


class SmallNet(dt.TorchTrainer):
    """A linear model."""

    def build(self, hp: Mapping[str, Any]) -> None:
        """Make model, optimizer and data."""
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate(0.1)(0), momentum=0.9)
        self.loader = dt.ResumableLoader((DATA.numpy(),), hp["batch_size"], seed=self.seed)

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        self.optimizer.param_groups[0]["lr"] = hp["lr"]

    def train(self) -> None:
        """Train on one batch."""
        (batch,) = map(torch.as_tensor, self.loader.next_batch())
        self.optimizer.zero_grad()
        self.model(batch / 24).square().mean().backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        """Return the loss."""
        return {"loss": float(self.model(DATA).square().mean())}

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, Any]) -> str:
        """Return what tells these data from others."""
        return data_digest(DATA) if issubclass(cls, Trainer) else ""
