"""The spaces on which dasktune is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

import dasktune as dt
from dasktune.sequences import (
    Constant,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    Piecewise,
    Sequence,
    WarmRestarts,
    Warmup,
)
from dasktune.space import Branch

STEPS = 120
"""Steps of a trial of `hippo_144`."""

REQUESTED, UNIQUE = 17_280, 7_024
"""Steps that the trials of `hippo_144` ask for, and those that differ."""


BATCH_SIZES = (
    Constant(128),
    Piecewise([128, 256], boundaries=[70]),
    Piecewise([128, 256], boundaries=[40]),
    Piecewise([128, 512], boundaries=[100]),
)


def drop(*milestones: int) -> Sequence:
    """Return a learning rate of 0.1 that falls to a tenth at each milestone."""
    return MultiStep(0.1, milestones=list(milestones), gamma=0.1)


def hippo_144(batch_sizes: Iterable[Sequence] = BATCH_SIZES) -> dt.Space:
    """Return a grid of 144 trials in the manner of Hippo's ResNet56 study.

    Twelve learning rates, four batch sizes and three momenta, most of which begin alike.
    """
    decay = Exponential(0.1, gamma=0.95)
    plain = [Constant(0.1), drop(90), drop(60, 90), drop(40, 80), decay]
    warm = [Warmup(5, 0.1) >> rest for rest in (Constant(0.1), drop(85), drop(55, 85), decay)]
    long = [Warmup(10, 0.1) >> rest for rest in (Constant(0.1), WarmRestarts(0.1, 20))]
    return dt.Space(
        lr=[*plain, *warm, *long, Cyclic(0.001, 0.1, 20)],
        batch_size=list(batch_sizes),
        momentum=[
            Constant(0.9),
            Piecewise([0.7, 0.8, 0.9], boundaries=[40, 80]),
            Piecewise([0.9, 0.95], boundaries=[80]),
        ],
    )


def hippo_448() -> dt.Space:
    """Return a grid of 448 trials of 120 steps, whose merge rate is that of Hippo's Table 1: 2.44.

    Fourteen learning rates and four batch sizes are sequences; four optimizers, one of them
    with a momentum that may be a sequence, and two weight decays are not and share nothing.
    """
    flat, decay = Constant(0.1), Exponential(0.1, gamma=0.95)
    plain = [flat, drop(90, 135), drop(60, 90), drop(40, 80), drop(80, 110), decay]
    after_five = [flat, drop(85, 130), drop(55, 85), drop(75, 105), decay]
    after_ten = [drop(80, 125), WarmRestarts(0.1, 20)]
    momentum = [Constant(0.9), Piecewise([0.7, 0.8, 0.9], boundaries=[40, 80])]
    return dt.Space(
        lr=[
            *plain,
            *(Warmup(5, 0.1) >> rest for rest in after_five),
            *(Warmup(10, 0.1) >> rest for rest in after_ten),
            Cyclic(0.001, 0.1, 20),
        ],
        batch_size=[
            Constant(128),
            Piecewise([128, 256], boundaries=[70]),
            Piecewise([128, 256], boundaries=[60]),
            Piecewise([128, 512], boundaries=[105]),
        ],
        optimizer=["adam", "sgd", Branch("sgd with momentum", dt.Space(momentum=momentum))],
        weight_decay=[1e-4, 1e-3],
    )


def hippo_240() -> dt.Space:
    """Return a grid of 240 trials of 200 steps with the merge rate of Hippo's MobileNetV2 study.

    The values are in the manner of its Table 3. The paper prints examples, not the space; the
    milestones are chosen such that the merge rate is 3.142, where the paper has 3.144.
    """
    warm = [drop(100, 150), drop(80, 130), Exponential(0.1, gamma=0.95), WarmRestarts(0.1, 20)]
    plain = [Constant(0.1), drop(100, 150), drop(80, 120), drop(120, 160), drop(60, 120, 160)]
    return dt.Space(
        lr=[*plain, *(Warmup(10, 0.1) >> rest for rest in warm), Cyclic(0.001, 0.1, 20)],
        batch_size=[
            Constant(128),
            Piecewise([128, 256], boundaries=[100]),
            Piecewise([128, 256], boundaries=[159]),
            Piecewise([128, 512], boundaries=[160]),
        ],
        cutout=[
            Constant(16),
            Piecewise([16, 18, 20], boundaries=[80, 100]),
            Piecewise([16, 18], boundaries=[165]),
        ],
        weight_decay=[4e-5, 1e-4],
    )


def hippo_40() -> dt.Space:
    """Return a grid of 40 trials of 300 steps with the merge rate of Hippo's BERT study.

    A step stands for 100 of the paper's. The values are in the manner of its Table 4, with
    boundaries chosen such that the merge rate is 2.043, where the paper has 2.045.
    """
    peaks = (5e-5, 3e-5)
    straight = [Linear(peak, 0.0, steps) for peak in peaks for steps in (300, 360)]
    warm = [Linear(peak, 0.0, steps) for peak in peaks for steps in (270, 330)]
    return dt.Space(
        lr=[
            *straight,
            *(Warmup(30, rest(0)) >> rest for rest in warm),
            Constant(3e-5),
            Warmup(30, 5e-5) >> Constant(5e-5),
        ],
        length=[
            Constant(384),
            *(Piecewise([384, 512], boundaries=[step]) for step in (144, 204, 255)),
        ],
    )


def random_space(rng: np.random.Generator, steps: int) -> dt.Space:
    """Return a random grid of sequences, many of which begin alike."""
    return dt.Space(
        lr=_some(rng, lambda: _random_sequence(rng, steps, (0.1, 0.05, 0.025)), most=5),
        width=_some(rng, lambda: _random_levels(rng, steps, (32, 64)), most=3),
        dropout=_some(rng, lambda: Constant(float(rng.choice([0.1, 0.2]))), most=2),
    )


def _some(rng: np.random.Generator, draw: Callable[[], Sequence], *, most: int) -> list[Sequence]:
    drawn = [draw() for _ in range(int(rng.integers(1, most + 1)))]
    return list(dict.fromkeys(drawn))


def _random_sequence(rng: np.random.Generator, steps: int, values: tuple[float, ...]) -> Sequence:
    first = values[int(rng.integers(len(values)))]
    match int(rng.integers(5)):
        case 0:
            return Constant(first)
        case 1:
            return MultiStep(first, milestones=_cuts(rng, steps), gamma=0.5)
        case 2:
            return _random_levels(rng, steps, values)
        case 3:
            return Exponential(first, gamma=0.5)
        case _:
            return Warmup(_cuts(rng, steps)[0], values[0]) >> Constant(values[0])


def _random_levels(rng: np.random.Generator, steps: int, values: tuple[float, ...]) -> Sequence:
    boundaries = _cuts(rng, steps)
    drawn = rng.integers(len(values), size=len(boundaries) + 1)
    return Piecewise([values[int(index)] for index in drawn], boundaries=boundaries)


def _cuts(rng: np.random.Generator, steps: int) -> list[int]:
    some = rng.choice(np.arange(1, steps), size=int(rng.integers(1, 3)), replace=False)
    return sorted(int(cut) for cut in some)


def stepped(first: int, second: int, third: int) -> Sequence:
    """Return a learning rate that takes three values, each for a third of the steps."""
    values = [0.1 / (1 + level) for level in (first, second, third)]
    return Piecewise(values, boundaries=[STEPS // 3, 2 * STEPS // 3])


def three_levels(levels: int) -> dt.Space:
    """Return a space whose learning rate takes three of many values, one after the other.

    Random trials of it share the first third, or two, with others: a bushy tree.
    """
    level = dt.Int(0, levels - 1)
    return dt.Space(lr=dt.Family(stepped, first=level, second=level, third=level))


def all_different() -> dt.Space:
    """Return a space of which no two random trials have anything in common."""
    return dt.Space(lr=dt.Float(1e-5, 1.0, log=True), batch_size=[64, 128])


def unique_steps(runs: Iterable[tuple[Mapping[str, Sequence], int]]) -> int:
    """Count the different beginnings of runs of so many steps: slow, and plainly right."""
    nodes: dict[tuple[object, ...], int] = {}
    for sequences, steps in runs:
        node = 0
        for step in range(steps):
            values = (
                (name, type(value), value)
                for name, sequence in sorted(sequences.items())
                for value in [sequence(step)]
            )
            node = nodes.setdefault((node, *values), len(nodes) + 1)
    return len(nodes)
