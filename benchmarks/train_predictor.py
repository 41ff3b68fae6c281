"""Trains the network of `PriorFitted`, and measures it on tasks that it has not seen.

    python benchmarks/train_predictor.py --data FOLDER --out FILE.npz --seed 0

trains on curves drawn from a prior (`curve_prior`) and on recorded ones (the folder of
`curves/*.npz`), and writes the weights. With `--held-out` it trains as often as there are folds,
each time without a part of each data set's tasks, and prints how it does on those: log-likelihood,
CRPS and coverage of the final score, next to `Persistence`. It needs torch, one core and some
twenty minutes; the same seed gives the same weights on the same machine.

Each example is a question: a beginning of a curve, brought into another unit, thinned out, with
or without its bounds, learning rates and siblings, and a future step. The network answers with
scores at `LEVELS`, in the curve's own unit; it is trained by what predictions are judged by, the
log-likelihood of what was measured and the CRPS, in parts of the metric's range.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from curve_prior import Array, Random, Record, draw
from scores import Score, Scores
from torch import Tensor, nn

from dasktune.algos.curves import LEVELS, Branch, Curve, Persistence, Predictor
from dasktune.algos.curves.features import FORM, Features, describe
from dasktune.algos.curves.prior_fitted import (
    FARTHEST,
    LEAST_GAP,
    LEAST_ROOM,
    MOST_GAP,
    MOST_INPUT,
    PriorFitted,
    Weights,
)

WIDTH, DEPTH, MEMBERS = 128, 3, 4
FOLDS = 4
FRACTIONS = (0.1, 0.2, 0.4)
PARTS = {
    "prior": 0.40,
    "algoperf": 0.13,
    "taskset": 0.12,
    "lcbench": 0.10,
    "rl_dopamine": 0.13,
    "own_mlp": 0.05,
    "own_stage": 0.07,
}
"""Which part of the questions is about which curves."""

# ------------------------------------------------------------------------ recorded curves


def recorded(folder: Path) -> list[Record]:
    """Return all recorded curves."""
    found = [*_algoperf(folder), *_taskset(folder), *_lcbench(folder), *_dopamine(folder)]
    return [*found, *_own_mlp(folder), *_own_stage(folder)]


def _metadata(packed: Array) -> list[dict[str, object]]:
    return [json.loads(line) for line in bytes(packed).decode().splitlines()]


def _algoperf(folder: Path) -> Iterable[Record]:
    with np.load(folder / "algoperf_dev.npz") as held:
        arrays = {name: held[name] for name in ("offsets", "step", "val", "val_loss")}
        runs = _metadata(held["meta_jsonl"])
    for place, run in enumerate(runs):
        part = slice(arrays["offsets"][place], arrays["offsets"][place + 1])
        high = 100.0 if run["metric"] == "bleu" else 1.0
        group = f"algoperf {run['workload']}"
        val, loss = arrays["val"][part].astype(float), -arrays["val_loss"][part].astype(float)
        if len(val) >= 5:
            yield _whole("algoperf", group, val, low=0.0, high=high, spread=high)
            yield _whole("algoperf", group, loss, high=0.0)


def _taskset(folder: Path) -> Iterable[Record]:
    with np.load(folder / "taskset_imdb_dev.npz") as held:
        losses, tasks = -held["loss"].astype(float), held["tasks"]
    for task, name in enumerate(tasks):
        for split in (0, 1, 1, 2):
            for scores in losses[task, ::2, split, 1:]:
                yield _whole("taskset", f"taskset {name}", scores, high=0.0)


def _lcbench(folder: Path) -> Iterable[Record]:
    with np.load(folder / "lcbench_surrogate_dev.npz") as held:
        tasks = held["tasks"]
        accuracy = held["val_accuracy"].astype(float)
        entropy = -held["val_cross_entropy"].astype(float)
    for task, name in enumerate(tasks):
        for one, other in zip(accuracy[task], entropy[task], strict=True):
            yield _whole("lcbench", f"lcbench {name}", one, low=0.0, high=100.0, spread=100.0)
            yield _whole("lcbench", f"lcbench {name}", other, high=0.0)


def _dopamine(folder: Path) -> Iterable[Record]:
    with np.load(folder / "rl_dopamine_dev.npz") as held:
        offsets, returns = held["offsets"], held["ret"].astype(float)
        runs = _metadata(held["meta_jsonl"])
    for place, run in enumerate(runs):
        scores = returns[offsets[place] : offsets[place + 1]]
        if len(scores) >= 20:
            yield _whole("rl_dopamine", f"rl_dopamine {run['game']}", scores)


def _own_mlp(folder: Path) -> Iterable[Record]:
    with np.load(folder / "own_mlp_mnist.npz") as held:
        curves, configurations = held["curves"].astype(float), _metadata(held["configs_jsonl"])
    for curve, values in zip(curves, configurations, strict=True):
        rates = ((0, float(str(values["lr"]))),)
        for column, high in ((0, 1.0), (1, 0.0), (3, 1.0)):
            sign = 1.0 if high else -1.0
            bounds = {"low": 0.0 if high else None, "high": high}
            yield replace(
                _whole("own_mlp", "own_mlp", sign * curve[:, column], **bounds), rates=rates
            )


def _own_stage(folder: Path) -> Iterable[Record]:
    with np.load(folder / "own_stage_mnist.npz") as held:
        curves, configurations = held["curves"].astype(float), _metadata(held["configs_jsonl"])
    shared = _shared(curves)
    for column, high in ((0, 1.0), (1, 0.0), (3, 1.0), (4, 0.0)):
        sign = 1.0 if high else -1.0
        bounds = {"low": 0.0 if high else None, "high": high}
        group = [
            replace(
                _whole("own_stage", "own_stage", sign * curve[:, column], **bounds),
                rates=_changes(list(values["lr"])),  # type: ignore[call-overload]
            )
            for curve, values in zip(curves, configurations, strict=True)
        ]
        for place, one in enumerate(group):
            kin = [
                (int(shared[place, other]), group[other])
                for other in np.flatnonzero(shared[place])
                if other != place
            ]
            yield replace(one, siblings=tuple(kin))


def _shared(curves: Array) -> Array:
    """Return for each two trials how many epochs they have in common."""
    same = (curves[:, None, :, :5] == curves[None, :, :, :5]).all(axis=3)
    found: Array = np.cumprod(same, axis=2).sum(axis=2)
    return found


def _changes(rates: Sequence[float]) -> tuple[tuple[int, float], ...]:
    return tuple(
        (place, rate) for place, rate in enumerate(rates) if place == 0 or rate != rates[place - 1]
    )


def _whole(
    kind: str,
    group: str,
    scores: Array,
    *,
    low: float | None = None,
    high: float | None = None,
    spread: float = math.nan,
) -> Record:
    steps = np.arange(1.0, len(scores) + 1)
    if low is not None and high is not None:
        spread = high - low
    return Record(
        kind=kind, group=group, steps=steps, scores=scores, low=low, high=high, spread=spread
    )


def with_spreads(records: Sequence[Record]) -> list[Record]:
    """Return the records, those without a unit in which errors count with their group's."""
    ends = defaultdict(list)
    for record in records:
        finite = record.scores[np.isfinite(record.scores)]
        if math.isnan(record.spread) and len(finite):
            ends[record.group].append(np.percentile(finite, [10, 90]))
    widths = {
        group: max(float(np.percentile(found, 95) - np.percentile(found, 5)), 1e-9)
        for group, found in ends.items()
    }
    return [
        replace(one, spread=widths.get(one.group, 1.0)) if math.isnan(one.spread) else one
        for one in records
    ]


# ------------------------------------------------------------------------------ questions


@dataclass(frozen=True, slots=True)
class Question:
    """A beginning of a curve, future steps, what was measured there and the unit of errors."""

    curve: Curve
    steps: tuple[int, ...]
    truths: tuple[float, ...]
    spread: float


def plain(record: Record, fraction: float) -> Question | None:
    """Return the question for the last score, as benchmarks ask it; None if there is none."""
    count = len(record.scores)
    seen = max(round(fraction * count), 1)
    if not np.isfinite(record.scores[:seen]).any() or not np.isfinite(record.scores[-1]):
        return None
    curve = Curve(
        steps=tuple(range(1, seen + 1)),
        scores=tuple(record.scores[:seen].tolist()),
        max_steps=count,
        low=record.low,
        high=record.high,
        rates=record.rates,
    )
    return Question(curve, (count,), (float(record.scores[-1]),), record.spread)


def asked(rng: Random, record: Record) -> Question | None:
    """Return a question about a record as another might have recorded it; None if there is none."""
    record = _another_unit(rng, record)
    count = len(record.scores)
    fraction = rng.choice(FRACTIONS) if rng.random() < 0.4 else np.exp(rng.uniform(-3.9, -0.05))
    seen = min(max(round(fraction * count), 1), count - 1)
    ahead = np.unique(np.append(rng.integers(seen, count, 2), count - 1))
    ahead = ahead[np.isfinite(record.scores[ahead])]
    kept = np.arange(seen)
    if rng.random() < 0.15:  # seldom measured, or not always
        kept = kept[:: int(rng.integers(1, 6))] if rng.random() < 0.5 else _some(rng, kept)
    if not len(ahead) or not np.isfinite(record.scores[kept]).any():
        return None
    every = int(rng.integers(2, 500)) if rng.random() < 0.3 else 1
    end = count if rng.random() < 0.8 else int(count * rng.uniform(1, 2.5))
    bounds = rng.random() < 0.7
    rates = record.rates if rng.random() < 0.85 else ()
    curve = Curve(
        steps=tuple(((kept + 1) * every).tolist()),
        scores=tuple(record.scores[kept].tolist()),
        max_steps=end * every,
        low=record.low if bounds else None,
        high=record.high if bounds else None,
        rates=tuple((step * every, rate) for step, rate in rates),
        siblings=_branches(rng, record, seen, every),
    )
    truths = tuple(record.scores[ahead].tolist())
    return Question(curve, tuple(((ahead + 1) * every).tolist()), truths, record.spread)


def _some(rng: Random, places: Array) -> Array:
    chosen = places[rng.random(len(places)) < rng.uniform(0.3, 1.0)]
    return chosen if len(chosen) else places[-1:]


def _another_unit(rng: Random, record: Record) -> Record:
    """Return the record in another unit, thinned out or, rarely, upside down."""
    if rng.random() < 0.15 and len(record.scores) >= 20:
        every = int(rng.integers(2, max(len(record.scores) // 8, 3)))
        record = _each(record, lambda scores: scores[every - 1 :: every], every=every)
    if rng.random() < 0.04:
        return replace(
            _each(record, lambda scores: -scores),
            low=None if record.high is None else -record.high,
            high=None if record.low is None else -record.low,
        )
    if record.kind != "prior" and rng.random() < 0.25:
        factor = float(10 ** rng.uniform(-2, 2))
        shift = float(rng.normal() * factor * record.spread) if rng.random() < 0.5 else 0.0
        return replace(
            _each(record, lambda scores: factor * scores + shift),
            low=None if record.low is None else factor * record.low + shift,
            high=None if record.high is None else factor * record.high + shift,
            spread=factor * record.spread,
        )
    return record


def _each(record: Record, change, *, every: int = 1) -> Record:  # type: ignore[no-untyped-def]
    """Return the record and its siblings with their scores changed."""
    rates: dict[int, float] = {}
    for step, rate in record.rates:
        rates[step // every] = rate
    kin = tuple((at // every, _each(one, change, every=every)) for at, one in record.siblings)
    return replace(record, scores=change(record.scores), rates=tuple(rates.items()), siblings=kin)


def _branches(rng: Random, record: Record, seen: int, every: int) -> tuple[Branch, ...]:
    """Return some siblings, each trained as far as it may have been by then."""
    if not record.siblings or rng.random() < 0.35:
        return ()
    many = min(int(rng.integers(1, 9)), len(record.siblings))
    found = []
    for place in rng.choice(len(record.siblings), many, replace=False):
        at, other = record.siblings[place]
        count = len(other.scores)
        length = count if rng.random() < 0.5 else int(rng.integers(1, count + 1))
        if at < 1:
            continue
        found.append(
            Branch(
                at=min(at, seen) * every if rng.random() < 0.5 else at * every,
                steps=tuple(range(every, (length + 1) * every, every)),
                scores=tuple(other.scores[:length].tolist()),
                rates=tuple((step * every, rate) for step, rate in other.rates),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Examples:
    """Questions as a network is given them, one row for each future step."""

    rows: Tensor
    truths: Tensor
    below: Tensor
    above: Tensor
    spreads: Tensor

    @classmethod
    def of(cls, questions: Iterable[Question]) -> Examples:
        """Return the examples that questions come to."""
        parts: list[Features] = []
        truths, spreads = [], []
        for question in questions:
            found = describe(question.curve, question.steps)
            parts.append(found)
            truths.append((np.array(question.truths) - found.origin) / found.scale)
            spreads.append(np.full(len(question.steps), question.spread / found.scale))
        sizes = [len(part.rows) for part in parts]
        return cls(
            torch.tensor(np.concatenate([part.rows for part in parts]), dtype=torch.float32),
            torch.tensor(np.concatenate(truths), dtype=torch.float32).clamp(-1e7, 1e7),
            torch.tensor(np.repeat([part.below for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.repeat([part.above for part in parts], sizes), dtype=torch.float32),
            torch.tensor(np.concatenate(spreads), dtype=torch.float32).clamp(1e-3, 1e7),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, places: Tensor) -> Examples:
        return Examples(
            self.rows[places],
            self.truths[places],
            self.below[places],
            self.above[places],
            self.spreads[places],
        )


def examples(rng: Random, records: Sequence[Record], count: int) -> Examples:
    """Return the examples of `count` questions, by `PARTS`."""
    kinds = defaultdict(lambda: defaultdict(list))  # type: ignore[var-annotated]
    for record in records:
        kinds[record.kind][record.group].append(record)

    def questions() -> Iterable[Question]:
        names = [name for name in PARTS if name in kinds or name == "prior"]
        parts = np.array([PARTS[name] for name in names])
        for name in rng.choice(names, count, p=parts / parts.sum()):
            if name == "prior":
                record = draw(rng)
            else:
                groups = kinds[name]
                group = groups[list(groups)[int(rng.integers(len(groups)))]]
                record = group[int(rng.integers(len(group)))]
            question = asked(rng, record)
            if question is not None:
                yield question

    return Examples.of(questions())


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

    def forward(self, batch: Examples) -> Tensor:
        """Return ``(rows, levels)``."""
        hidden = ((batch.rows - self.mean) / self.deviation).clamp(-MOST_INPUT, MOST_INPUT)
        for layer in self.layers[:-1]:
            hidden = nn.functional.silu(layer(hidden))
        raw = self.layers[-1](hidden)
        gaps = torch.exp(raw.clamp(LEAST_GAP, MOST_GAP))
        middle = raw[:, _MIDDLE : _MIDDLE + 1]
        lower = middle - gaps[:, :_MIDDLE].flip(1).cumsum(1).flip(1)
        upper = middle + gaps[:, _MIDDLE + 1 :].cumsum(1)
        found = torch.cat((lower, middle, upper), dim=1).clamp(-FARTHEST, FARTHEST)
        found = torch.where(found > 0, _within(found, batch.above), found)
        found = torch.where(found < 0, -_within(-found, batch.below), found)
        return torch.sinh(found)


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
    nll = torch.where(nll > 25, 25 + 5 * torch.log(nll.clamp(min=25) / 25), nll)
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


def train(batch: Examples, seed: int, *, seconds: float, epochs: int) -> Network:
    """Return a network that has seen the examples so often, or as long as there is time."""
    torch.manual_seed(seed)
    network = Network(batch.rows)
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
        value = loss(network(part), part)
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
    return network


def weights(networks: Sequence[Network], *, stretch: float = 1.0) -> dict[str, Array]:
    """Return the arrays that `Weights.from_arrays` takes."""
    first = networks[0]
    found: dict[str, Array] = {
        "form": np.array(FORM),
        "stretch": np.array(stretch),
        "mean": first.mean.numpy(),
        "deviation": first.deviation.numpy(),
    }
    for place in range(len(first.layers)):
        layers = [network.layers[place] for network in networks]
        matrices = [layer.weight.detach().numpy().T for layer in layers]
        offsets = [layer.bias.detach().numpy()[None] for layer in layers]
        found[f"matrices{place}"] = np.stack(matrices).astype(np.float16)
        found[f"offsets{place}"] = np.stack(offsets).astype(np.float32)
    return found


# ------------------------------------------------------------------------------ measuring


def measured(
    predictor: Predictor, records: Sequence[Record], *, most: int = 400
) -> dict[tuple[str, float], Scores]:
    """Return how a predictor does on each kind of record, by the fraction that is seen."""
    rng = np.random.default_rng(5)
    kinds = defaultdict(list)
    for record in records:
        kinds[
            f"{record.kind}{'' if record.high or record.kind == 'rl_dopamine' else ' loss'}"
        ].append(record)
    found = {}
    for kind, group in kinds.items():
        chosen = rng.choice(len(group), min(most, len(group)), replace=False)
        for fraction in FRACTIONS:
            questions = [plain(group[place], fraction) for place in chosen]
            scores = [
                Score.of(
                    predictor.predict(question.curve, question.steps),
                    question.truths[0],
                    scale=question.spread,
                )
                for question in questions
                if question is not None
            ]
            found[kind, fraction] = Scores.of(scores)
    return found


def show(name: str, found: dict[tuple[str, float], Scores]) -> None:
    """Print the figures of a predictor."""
    print(f"{name:24} seen    NLL    CRPS  in 80%  median|e|  mean|e|")
    for (kind, fraction), one in sorted(found.items()):
        print(
            f"{kind:24} {fraction:4} {one.nll:7.3f} {one.crps:7.4f} {one.coverage:6.1%} "
            f"{one.median_error:9.4f} {one.mean_error:9.4f}"
        )


def fold_of(records: Sequence[Record], rng: Random) -> dict[str, int]:
    """Return for each group the fold in which it is held out; each kind's are spread."""
    kinds = defaultdict(set)
    for record in records:
        kinds[record.kind].add(record.group)
    found = {}
    for kind in sorted(kinds):
        first = int(rng.integers(FOLDS))
        for place, group in enumerate(rng.permutation(sorted(kinds[kind]))):
            found[str(group)] = (first + place) % FOLDS
    return found


def held_out(records: Sequence[Record], count: int, epochs: int, seed: int, folds: int) -> None:
    """Print how networks do on tasks that they have not seen."""
    places = fold_of(records, np.random.default_rng(seed))
    for fold in range(folds):
        rng = np.random.default_rng((seed, fold))
        own = [record for record in records if places[record.group] != fold]
        others = [record for record in records if places[record.group] == fold]
        network = train(examples(rng, own, count), seed, seconds=0, epochs=epochs)
        found = Weights.from_arrays(weights([network]))
        show(f"fold {fold}", measured(PriorFitted(found), others))
        show("persistence", measured(Persistence(), others))


def main() -> None:
    """Train, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with curves/*.npz")
    parser.add_argument("--out", type=Path, help="where the weights are written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=150_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--held-out", type=int, default=0, help="folds to measure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = with_spreads(recorded(given.data / "curves"))
    print(f"{len(records)} recorded curves", flush=True)
    if given.held_out:
        held_out(records, given.questions, given.epochs, given.seed, given.held_out)
    if given.out:
        began = time.perf_counter()
        batch = examples(np.random.default_rng(given.seed), records, given.questions)
        print(f"{len(batch)} examples, {time.perf_counter() - began:.0f} s", flush=True)
        networks = [
            train(batch, given.seed + member, seconds=0, epochs=given.epochs)
            for member in range(MEMBERS)
        ]
        np.savez_compressed(given.out, **weights(networks))


if __name__ == "__main__":
    main()
