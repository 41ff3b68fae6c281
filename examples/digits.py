"""Tune a small PyTorch CNN on images: 36 trials of 24 epochs, of which 41% are trained.

Run it with::

    dasktune run examples/digits.py
    dasktune run examples/digits.py --config data=fashion.npz

The images are scikit-learn's digits (1797 of 8 x 8 pixels), or the arrays ``x`` and ``y`` of an
``.npz`` file: ``x`` of shape (N, H, W) or (N, H, W, channels), 8-bit or floating-point, ``y``
of N class numbers from 0. Every fifth image is held out and measured on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dasktune as dt
from dasktune.sequences import Constant, Cosine, MultiStep, Piecewise, Warmup
from dasktune.trainer import ResumableLoader, data_digest


def load_images(path: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images of shape (N, channels, H, W), between 0 and 1, and their class numbers."""
    if path is None:
        x, y = load_digits(return_X_y=True)
        return (x.reshape(-1, 1, 8, 8) / 16).astype(np.float32), y
    with np.load(path, allow_pickle=False) as arrays:
        x, y = arrays["x"], arrays["y"]
    x = x / 255 if x.dtype == np.uint8 else x
    x = x[..., np.newaxis] if x.ndim == 3 else x
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32), y.astype(np.int64)


def network(channels: int, classes: int) -> nn.Module:
    """Return a CNN for images of any size from 4 x 4 pixels on."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, classes),
    )


class DigitsTrainer(dt.TorchTrainer):
    """Train the CNN with momentum; one step is one epoch.

    ``config["data"]`` is the path of an ``.npz`` file. What the file holds decides the
    result, where it lies does not.
    """

    ignored_config = ("data",)

    @classmethod
    def fingerprint_data(cls, config: Mapping[str, Any]) -> str:
        """Return the identity of the images: a digest of the file."""
        path = config.get("data")
        return "scikit-learn digits" if path is None else data_digest(Path(path))

    def build(self, hp: Mapping[str, Any]) -> None:
        """Load the images and make model, optimizer and loader."""
        x, y = load_images(self.config.get("data"))
        held_out = np.arange(len(x)) % 5 == 0
        self.held_out = x[held_out], y[held_out]
        self.epoch_size = int(np.count_nonzero(~held_out))
        self.model = network(x.shape[1], int(y.max()) + 1).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), hp["lr"], hp["momentum"])
        self.loader = ResumableLoader(
            (x[~held_out], y[~held_out]), hp["batch_size"], seed=self.seed
        )

    def setup(self, hp: Mapping[str, Any]) -> None:
        """Take over the values that change at this step."""
        hp = dict(hp)
        if "batch_size" in hp:
            self.loader.batch_size = hp.pop("batch_size")
        for group in self.optimizer.param_groups:
            group.update(hp)

    def train(self) -> None:
        """Train one epoch."""
        seen = 0
        while seen < self.epoch_size:
            x, y = self.on_device(*self.loader.next_batch())
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            seen += len(x)

    def evaluate(self) -> dict[str, float]:
        """Return accuracy and loss on the images held out."""
        x, y = self.on_device(*self.held_out)
        scores = self.model(x)
        return {
            "accuracy": (scores.argmax(1) == y).float().mean().item(),
            "loss": nn.functional.cross_entropy(scores, y).item(),
        }

    def on_device(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """Return arrays as tensors where the model is."""
        return [torch.as_tensor(array, device=self.device) for array in arrays]


def study(data: str | None = None) -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        DigitsTrainer,
        name="digits" if data is None else Path(data).stem,
        storage="runs/digits",
        metric="accuracy",
        direction="maximize",
        config={} if data is None else {"data": data},
        load_if_exists=True,
    )


def tuner() -> dt.algos.Grid:
    """Return every combination of six learning rates, three batch sizes and two momenta."""
    space = dt.Space(
        lr=[
            Constant(0.05),
            MultiStep(0.05, milestones=[14], gamma=0.2),
            MultiStep(0.05, milestones=[14, 20], gamma=0.2),
            Warmup(3, 0.05) >> Constant(0.05),
            Warmup(3, 0.05) >> MultiStep(0.05, milestones=[12], gamma=0.2),
            Warmup(3, 0.05) >> Cosine(0.05, period=21),
        ],
        batch_size=[
            64,
            Piecewise([64, 128], boundaries=[12]),
            Piecewise([64, 256], boundaries=[16]),
        ],
        momentum=[0.9, Piecewise([0.9, 0.95], boundaries=[12])],
    )
    return dt.algos.Grid(space, max_steps=24)
