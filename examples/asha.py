"""ASHA over schedules: learning rates whose shape and size are searched, proposed by TPE.

Run it with ``dasktune run examples/asha.py``; it tunes the CNN of ``digits.py``. Promoted
trials go on from their checkpoints, and those that begin alike are trained once.
"""

from __future__ import annotations

import optuna
from digits import DigitsTrainer

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise, Sequence, Warmup


def warmed(lr: float, steps: int) -> Sequence:
    """Return a rate that warms up to `lr` and stays there."""
    return Warmup(steps, lr) >> Constant(lr)


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        DigitsTrainer,
        name="asha",
        storage="runs/asha",
        metric="accuracy",
        direction="maximize",
        load_if_exists=True,
    )


def tuner(trials: int = 40, max_steps: int = 16) -> dt.algos.ASHA:
    """Return ASHA with proposals of Optuna's TPE.

    Parameters
    ----------
    trials
        How many configurations to try.
    max_steps
        Epochs of the best ones.
    """
    rate = dt.Float(0.003, 0.3, log=True)
    space = dt.Space(
        lr=[
            dt.Family(MultiStep, init=rate, milestones=[[8], [4, 12]], gamma=[0.1, 0.3]),
            dt.Family(warmed, lr=rate, steps=[1, 2]),
        ],
        batch_size=[64, Piecewise([64, 128], boundaries=[8])],
        momentum=[0.5, 0.9],
    )
    sampler = optuna.samplers.TPESampler()
    return dt.algos.ASHA(space, trials=trials, max_steps=max_steps, sampler=sampler)
