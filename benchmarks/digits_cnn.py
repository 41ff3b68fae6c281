"""A small CNN on scikit-learn's digits, trained by 24 schedules: with dasktune, and by hand.

The tree by hand trains each shared beginning once, by plain tasks of Dask that hand states on in
memory. Nothing of it is durable, and it knows nothing of exact resumption.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.trainer.check_switch import SWITCH

if TYPE_CHECKING:
    from distributed import Client, Future

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

Values = Mapping[str, Any]
"""The hyper-parameters of an epoch."""


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


def run_tree(client: Client) -> int:
    """Train the stages of the tree as tasks, all submitted at once; return as `run_study` does."""
    schedules = [
        [{"lr": rate(t), "momentum": MOMENTUM, "batch_size": size(t)} for t in range(EPOCHS)]
        for rate in RATES
        for size in BATCH_SIZES
    ]
    leaves: list[Future] = []
    _grow(client, None, 0, schedules, leaves)
    return len(client.gather(leaves))


def _grow(
    client: Client,
    parent: Future | None,
    first: int,
    schedules: list[list[Values]],
    leaves: list[Future],
) -> None:
    """Submit the epochs that schedules share from one on, then each group that goes on alike."""
    end = first
    while end < EPOCHS and all(each[end] == schedules[0][end] for each in schedules):
        end += 1
    if end > first:
        parent = client.submit(train_stage, parent, schedules[0][first:end], pure=False)
    if end == EPOCHS and parent is not None:
        leaves.extend([parent] * len(schedules))
        return
    parts: dict[str, list[list[Values]]] = {}
    for each in schedules:
        parts.setdefault(repr(each[end]), []).append(each)
    for part in parts.values():
        _grow(client, parent, end, part, leaves)


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
