"""Trains the network of `PriorFitted` on curves that are drawn from a prior, and on no others.

    make predictor

writes the weights: two networks, which answer together. Each example is a question: a beginning of
a curve of the prior (`curve_prior`), thinned out, with or without its bounds, learning rates and
siblings, and a future step. The network answers with scores at `LEVELS`, in the curve's own unit;
it is trained by what predictions are judged by, the log-likelihood of what was measured and the
CRPS, in parts of the metric's range.

It needs torch, one core and a few minutes. The file names the seed, and the digest of the
code that draws curves and questions. The same seed gives the same bytes with the same versions of
torch and NumPy on the same kind of processor: sums of floats in another order differ a little.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from curve_prior import Array
from curve_questions import Examples, examples
from torch import Tensor, nn

from dasktune.algos.curves import LEVELS
from dasktune.algos.curves.network.features import FORM
from dasktune.algos.curves.network.prior_fitted import (
    FARTHEST,
    LEAST_GAP,
    LEAST_ROOM,
    MOST_GAP,
    MOST_INPUT,
)

WIDTH, DEPTH = 128, 3
NETWORKS = 2

DRAWN_BY = ("curve_prior.py", "curve_questions.py")
"""The files that decide what a seed draws."""

BLUR = 0.05
"""Noise on what a network is told, in standard deviations, and the part that it is not told."""

# -------------------------------------------------------------------------------- network

_LEVELS = torch.tensor(LEVELS)
_MIDDLE = LEVELS.index(0.5)


class Network(nn.Module):
    """Some layers; the answer is scores at `LEVELS` in the curve's unit."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(dim=0))
        self.register_buffer("deviation", rows.std(dim=0).clamp(min=0.05))
        sizes = [rows.shape[1], *[WIDTH] * DEPTH]
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.layers = nn.ModuleList([*layers, nn.Linear(WIDTH, len(LEVELS))])
        with torch.no_grad():
            self.layers[-1].weight *= 0.1
            self.layers[-1].bias[:] = -1.5
            self.layers[-1].bias[_MIDDLE] = 0.0

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the median, and the distances of the other levels from it."""
        hidden = self.standard(rows)
        if self.training:
            hidden = hidden + BLUR * torch.randn_like(hidden)
            hidden = hidden * (torch.rand_like(hidden) > BLUR)
        for layer in self.layers[:-1]:
            hidden = nn.functional.silu(layer(hidden))
        raw = self.layers[-1](hidden)
        gaps = torch.exp(raw.clamp(LEAST_GAP, MOST_GAP))
        lower = -gaps[:, :_MIDDLE].flip(1).cumsum(1).flip(1)
        upper = gaps[:, _MIDDLE + 1 :].cumsum(1)
        middle = raw[:, _MIDDLE : _MIDDLE + 1]
        return middle, torch.cat((lower, torch.zeros_like(middle), upper), dim=1)

    def standard(self, rows: Tensor) -> Tensor:
        """Return rows in standard deviations from the mean."""
        return ((rows - self.mean) / self.deviation).clamp(-MOST_INPUT, MOST_INPUT)


def levels(middle: Tensor, away: Tensor, batch: Examples) -> Tensor:
    """Return the scores at `LEVELS`, in the curve's own unit."""
    scores = (middle + away).clamp(-FARTHEST, FARTHEST)
    scores = torch.where(scores > 0, _within(scores, batch.above), scores)
    scores = torch.where(scores < 0, -_within(-scores, batch.below), scores)
    return torch.sinh(scores)


def _within(distances: Tensor, room: Tensor) -> Tensor:
    room = room[:, None].clamp(LEAST_ROOM, 1e3)
    return room * torch.tanh(distances / room)


def loss(scores: Tensor, batch: Examples) -> Tensor:
    """Return the log-likelihood and the CRPS of `scores.py`, the latter twice: in both units."""
    truths = batch.truths[:, None]
    miss = truths - scores
    pinball = torch.maximum(_LEVELS * miss, (_LEVELS - 1) * miss)
    crps = 2 * torch.trapezoid(pinball, _LEVELS, dim=1) / batch.spreads
    squeezed = torch.asinh(truths) - torch.asinh(scores)
    own = torch.maximum(_LEVELS * squeezed, (_LEVELS - 1) * squeezed).mean(dim=1)
    nll = _nll(scores, batch.truths, 1e-3 * batch.spreads)
    nll = torch.where(nll > 25, 25 + 25 * torch.log(nll.clamp(min=25) / 25), nll)  # far misses
    return nll.mean() + 10 * crps.clamp(max=3).mean() + 2 * own.mean()


def _nll(scores: Tensor, truths: Tensor, floor: Tensor) -> Tensor:
    """Return `scores.log_loss`, but for the constant of the unit."""
    low, high = truths - floor / 2, truths + floor / 2
    first = torch.maximum(0.5 * (scores[:, 1] - scores[:, 0]), floor)
    last = torch.maximum(0.5 * (scores[:, -1] - scores[:, -2]), floor)
    under = math.log(LEVELS[0]) - (scores[:, 0] - high) / first + _log_part(floor / first)
    over = math.log(LEVELS[0]) - (low - scores[:, -1]) / last + _log_part(floor / last)
    ends = torch.stack((low, high), dim=1)
    edges = ends.clamp(min=scores[:, :1], max=scores[:, -1:])
    place = torch.searchsorted(scores.detach().contiguous(), edges.detach()).clamp(
        1, len(LEVELS) - 1
    )
    left, right = scores.gather(1, place - 1), scores.gather(1, place)
    step = _LEVELS[place] - _LEVELS[place - 1]
    inner = _LEVELS[place - 1] + step * (edges - left) / (right - left).clamp(min=1e-9)
    tail = LEVELS[0]
    beneath = tail * torch.exp(-((scores[:, :1] - ends) / first[:, None]).clamp(min=0))
    beyond = 1 - tail * torch.exp(-((ends - scores[:, -1:]) / last[:, None]).clamp(min=0))
    below = torch.where(ends < scores[:, :1], beneath, inner)
    below = torch.where(ends > scores[:, -1:], beyond, below)
    chance = (below[:, 1] - below[:, 0]).clamp(min=1e-7).log()
    chance = torch.where(high <= scores[:, 0], under, chance)
    return floor.log() - torch.where(low >= scores[:, -1], over, chance)


def _log_part(ratio: Tensor) -> Tensor:
    return torch.log(-torch.expm1(-ratio))


def train(batch: Examples, seed: int, epochs: int) -> Network:
    """Return a network that has seen the examples so often."""
    torch.manual_seed(seed)
    network = Network(batch.rows).train()
    size = 1024
    rounds = epochs * (len(batch) // size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2e-3, total_steps=rounds + 1, pct_start=0.05
    )
    began, total = time.perf_counter(), 0.0
    for turn in range(rounds):
        if turn % (len(batch) // size) == 0:
            order = torch.randperm(len(batch))
        place = turn % (len(batch) // size)
        part = batch[order[place * size : (place + 1) * size]]
        value = loss(levels(*network(part.rows), part), part)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += float(value.detach())
        if (turn + 1) % 1000 == 0:
            spent = time.perf_counter() - began
            print(f"    {turn + 1}/{rounds} loss {total / 1000:.4f}, {spent:.0f} s", flush=True)
            total = 0.0
    return network.eval()


def weights(networks: Sequence[Network]) -> dict[str, Array]:
    """Return the arrays that `Weights.from_arrays` takes."""
    arrays: dict[str, Array] = {
        "form": np.array(FORM),
        "stretch": np.zeros((3, 2), np.float32),
        "mean": np.stack([network.mean.numpy()[None] for network in networks]),
        "deviation": np.stack([network.deviation.numpy()[None] for network in networks]),
    }
    for place in range(DEPTH + 1):
        layers = [network.layers[place] for network in networks]
        matrices = [layer.weight.detach().numpy().T for layer in layers]
        offsets = [layer.bias.detach().numpy()[None] for layer in layers]
        arrays[f"matrices{place}"] = np.stack(matrices).astype(np.float16)
        arrays[f"offsets{place}"] = np.stack(offsets).astype(np.float32)
    return arrays


# ------------------------------------------------------------------------------- the file


def digest(folder: Path = Path(__file__).parent) -> str:
    """Return a digest of the code that draws curves and asks about them."""
    found = hashlib.sha256()
    for name in DRAWN_BY:
        found.update((folder / name).read_bytes())
    return found.hexdigest()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the weights are written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    batch = examples(np.random.default_rng(given.seed), given.questions)
    print(f"{len(batch)} examples", flush=True)
    networks = [train(batch, given.seed + number, given.epochs) for number in range(NETWORKS)]
    origin = {"seed": np.array(given.seed), "prior": np.array(digest())}
    np.savez_compressed(given.out, **weights(networks), **origin)


if __name__ == "__main__":
    main()
