"""A small CNN on scikit-learn's digits, trained by 24 schedules: with dasktune, and by hand."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tree_by_hand import Values

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.trainer.check_switch import SWITCH

EPOCHS = 12
RATES = (
    Constant(0.1),
    MultiStep(0.1, [3, 8], 0.3),
    MultiStep(0.1, [5], 0.1),
    MultiStep(0.1, [5, 9], 0.1),
    MultiStep(0.1, [9], 0.1),
    MultiStep(0.1, [10], 0.3),
)
BATCH_SIZES = (
    Constant(128),
    Piecewise([128, 64], boundaries=[4]),
    Piecewise([128, 256], boundaries=[6]),
    Piecewise([128, 64], boundaries=[9]),
)
MOMENTUM = 0.9
TRIALS = len(RATES) * len(BATCH_SIZES)


def run_study(workers: int, folder: Path, *, check: bool) -> int:
    """Train all schedules with dasktune, as a first study of this trainer; return their number."""
    os.environ[SWITCH] = "on"
    space = dt.Space(lr=RATES, momentum=[MOMENTUM], batch_size=BATCH_SIZES)
    made = dt.create_study(
        _trainer_class(),
        name="digits",
        storage=folder / "store",
        metric="accuracy",
        direction="maximize",
    )
    made.optimize(dt.algos.Grid(space, max_steps=EPOCHS), workers=workers, check=check)
    return sum(trial.state.value == "COMPLETE" for trial in made.trials)


def schedules() -> list[list[Values]]:
    """Return the values of each epoch of all trials."""
    return [
        [{"lr": rate(t), "momentum": MOMENTUM, "batch_size": size(t)} for t in range(EPOCHS)]
        for rate in RATES
        for size in BATCH_SIZES
    ]


def train_stage(
    state: tuple[Any, Values, float] | None, values: Sequence[Values]
) -> tuple[Any, Values, float]:
    """Train epochs in a worker, on from a state; return the next one, and the accuracy."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer_class = _trainer_class()
    module = sys.modules[trainer_class.__module__]
    if not hasattr(module.load_images, "cache_info"):  # as a trainer reads them once in a process
        module.load_images = functools.cache(module.load_images)  # type: ignore[attr-defined]
    trainer = trainer_class()
    trainer.config, trainer.seed, trainer.device = {}, 0, "cpu"
    before = values[0] if state is None else state[1]
    trainer.build(before)
    if state is not None:
        trainer.load_state_dict(state[0])
    accuracy = 0.0
    for now in values:
        trainer.setup({name: now[name] for name in now if now[name] != before[name]} or now)
        trainer.train()
        accuracy, before = trainer.evaluate()["accuracy"], now
    return trainer.state_dict(), before, accuracy


def _trainer_class() -> Any:
    """Return the trainer of the example."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from examples import digits

    return digits.DigitsTrainer
