"""ASHA on a SLURM cluster, states in a bucket: TPE proposes, jobs of SLURM train.

Run it on a login node with ``dasktune run examples/slurm_s3.py --slurm --gpus-per-worker 1
--config gpus=1 --config storage=s3://bucket/digits``; ``dasktune.toml`` beside this file has the
other options. Without ``--slurm`` the same file runs on one machine.
"""

from __future__ import annotations

import asha
from digits import DigitsTrainer

import dasktune as dt


def study(storage: str = "runs/slurm", gpus: int = 0) -> dt.Study:
    """Return the study, continued if it was begun before.

    Parameters
    ----------
    storage
        A folder that all nodes see, or a bucket; then ``dasktune.db`` lies where this is run.
    gpus
        How many each stage needs: only workers that have them are used.
    """
    return dt.create_study(
        DigitsTrainer,
        name="slurm",
        storage=storage,
        metric="accuracy",
        direction="maximize",
        needs={"GPU": gpus} if gpus else None,
        load_if_exists=True,
    )


def tuner(trials: int = 40, max_steps: int = 16) -> dt.algos.ASHA:
    """Return ASHA with proposals of Optuna's TPE, as in ``asha.py``."""
    return asha.tuner(trials, max_steps)
