"""Trains the network of `PriorFitted`, and measures it on tasks that it has not seen.

    python benchmarks/train_predictor.py --data FOLDER --out FILE.npz --seed 0

writes the weights: four networks, which answer together. They are trained on curves drawn from a
prior (`curve_prior`) and on recorded ones (`recorded`), each without a fold of the recorded tasks.
On that fold it is measured, and by it calibrated: log-likelihood, CRPS and coverage of the final
score are printed next to those of `Persistence`. It needs torch, one core and some twenty minutes;
the same seed gives the same weights on the same machine.

Each example is a question: a beginning of a curve, brought into another unit, thinned out, with
or without its bounds, learning rates and siblings, and a future step. The network answers with
scores at `LEVELS`, in the curve's own unit; it is trained by what predictions are judged by, the
log-likelihood of what was measured and the CRPS, in parts of the metric's range.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import recorded
import torch
from curve_prior import Array, Random
from curve_questions import FRACTIONS, Examples, examples, group_of, records_of
from recorded import RecordedSet
from scores import Score, Scores
from torch import Tensor, nn

from dasktune.algos.curves import LEVELS, Persistence, Predictor
from dasktune.algos.curves.network.features import FORM
from dasktune.algos.curves.network.prior_fitted import (
    FARTHEST,
    LEAST_GAP,
    LEAST_ROOM,
    MOST_GAP,
    MOST_INPUT,
    PriorFitted,
    Weights,
)

WIDTH, DEPTH = 128, 3
FOLDS = 4
"""Each network is trained without one part of the recorded tasks."""

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


def weights(networks: Sequence[Network], stretch: Tensor) -> dict[str, Array]:
    """Return the arrays that `Weights.from_arrays` takes."""
    arrays: dict[str, Array] = {
        "form": np.array(FORM),
        "stretch": stretch.numpy(),
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


# ----------------------------------------------------------------- calibrating, measuring


def stretches(networks: Sequence[Network], batch: Examples) -> Tensor:
    """Return by how much distances from the median are to be stretched, as logarithms.

    Each network is asked about the fold that it has not seen: what it is surer of there than it
    should be, it will be on other tasks, too. A line over how much was seen, for either side.
    """
    parts = []
    with torch.no_grad():
        for fold, network in enumerate(networks):
            part = batch[torch.nonzero(batch.folds == fold)[:, 0]]
            parts.append((part, regime(network, part), *network(part.rows)))
    factors = torch.zeros((3, 2), requires_grad=True)
    optimizer = torch.optim.Adam([factors], lr=0.02)
    for _ in range(150):
        value = torch.zeros(())
        for part, known, middle, away in parts:
            value = value + loss(levels(middle, away * stretched(known, factors), part), part)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return factors.detach()


def regime(network: Network, batch: Examples) -> Tensor:
    """Return 1 and the first two features: how many scores were seen, and how much of all."""
    return torch.cat((torch.ones(len(batch), 1), network.standard(batch.rows)[:, :2]), dim=1)


def stretched(told: Tensor, found: Tensor) -> Tensor:
    """Return the factor for each level."""
    sides = torch.exp(told @ found)
    below = sides[:, :1].expand(-1, _MIDDLE + 1)
    return torch.cat((below, sides[:, 1:].expand(-1, len(LEVELS) - _MIDDLE - 1)), dim=1)


def measured(
    predictor: Predictor, sets: Sequence[RecordedSet], *, most: int = 300
) -> dict[tuple[str, float], Scores]:
    """Return how a predictor does on each kind of set, by the fraction that is seen."""
    rng = np.random.default_rng(5)
    kinds = defaultdict(list)
    for of in sets:
        kinds[of.source] += [(of, run) for run in of.curves]
    scores = {}
    for kind, group in kinds.items():
        chosen = rng.choice(len(group), min(most, len(group)), replace=False)
        for fraction in FRACTIONS:
            questions = [
                (group[at][0], group[at][0].asked(group[at][1], fraction)) for at in chosen
            ]
            scores[kind, fraction] = Scores.of(
                Score.of(
                    predictor.predict(question.curve, (question.step,)),
                    question.score,
                    scale=of.scale,
                )
                for of, question in questions
                if question is not None
            )
    return scores


def show(name: str, found: dict[tuple[str, float], Scores]) -> None:
    """Print the figures of a predictor."""
    print(f"{name:24} seen    NLL    CRPS  in 80%  median|e|  mean|e|")
    for (kind, fraction), shown in sorted(found.items()):
        print(
            f"{kind:24} {fraction:4} {shown.nll:7.3f} {shown.crps:7.4f} {shown.coverage:6.1%} "
            f"{shown.median_error:9.4f} {shown.mean_error:9.4f}"
        )


def folds_of(sets: Sequence[RecordedSet], rng: Random) -> dict[str, int]:
    """Return for each group the fold in which it is held out; each source's are spread."""
    sources = defaultdict(set)
    for of in sets:
        sources[of.source].add(group_of(of))
    folds: dict[str, int] = {}
    for source in sorted(sources):
        first = int(rng.integers(FOLDS))
        for place, group in enumerate(rng.permutation(sorted(sources[source]))):
            folds.setdefault(str(group), (first + place) % FOLDS)
    return folds


def main() -> None:
    """Train, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of recorded curves")
    parser.add_argument("--out", type=Path, required=True, help="where the weights are written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=150_000)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sets = recorded.load(given.data)
    rng = np.random.default_rng(given.seed)
    folds = folds_of(sets, rng)
    batch = examples(rng, records_of(sets), given.questions, folds)
    print(f"{len(batch)} examples", flush=True)
    networks = [
        train(batch[torch.nonzero(batch.folds != fold)[:, 0]], given.seed + fold, given.epochs)
        for fold in range(FOLDS)
    ]
    stretch = stretches(networks, batch)
    np.savez_compressed(given.out, **weights(networks, stretch))
    for fold, network in enumerate(networks):
        unseen = [of for of in sets if folds[group_of(of)] == fold]
        alone = Weights.from_arrays(weights([network], stretch))
        show(f"without fold {fold}", measured(PriorFitted(alone), unseen))
        show("Persistence", measured(Persistence(), unseen))


if __name__ == "__main__":
    main()
