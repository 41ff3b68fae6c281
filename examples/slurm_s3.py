"""ASHA on a SLURM cluster, states in a bucket: TPE proposes, jobs of SLURM train.

Put your bucket here, your partition and its GPUs into ``dasktune.toml``, and run it where
``sbatch`` works: ``dasktune run examples/slurm_s3.py --slurm``. Jobs take over the credentials of
your shell. Without ``--slurm`` the same file runs on one machine.
"""

from __future__ import annotations

import asha
from digits import DigitsTrainer

import dasktune as dt

BUCKET = "s3://your-bucket/digits"


def study(storage: str = BUCKET) -> dt.Study:
    """Return the study, continued if it was begun before.

    Parameters
    ----------
    storage
        A bucket, or a folder that all nodes see.
    """
    return dt.create_study(
        DigitsTrainer,
        name="slurm",
        storage=storage,
        metric="accuracy",
        direction="maximize",
        load_if_exists=True,
    )


def tuner(trials: int = 40, max_steps: int = 16) -> dt.algos.ASHA:
    """Return ASHA with proposals of Optuna's TPE, as in ``asha.py``."""
    return asha.tuner(trials, max_steps)
