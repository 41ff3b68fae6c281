"""The study that each logger shows: two trials with their first four steps in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dasktune as dt
from dasktune.sequences import MultiStep
from tests.integrations.exact import single_thread
from tests.toy_trainers import Adding

RATES = [1.0, MultiStep(1.0, milestones=[4], gamma=0.5)]

CURVES = {
    "trial-0000": {
        "loss": [(step, float(step)) for step in range(1, 9)],
        "final/loss": [(8, 8.0)],
    },
    "trial-0001": {
        "loss": [(5, 4.5), (6, 5.0), (7, 5.5), (8, 6.0)],
        "hp/lr": [(step, 0.5) for step in range(5, 9)],
        "final/loss": [(8, 6.0)],
    },
}
"""The points of each run after 8 steps, by metric: each step is in one run."""


class Summing(Adding):
    """Trains in threads of this process."""

    requires_process = False


def make(folder: Path, name: str = "net", **options: Any) -> dt.Study:
    named = {"name": name, "metric": "loss", "load_if_exists": True, **options}
    return dt.create_study(Summing, storage=folder / "store", **named)


def run(study: dt.Study, steps: int = 8) -> None:
    with single_thread(Summing) as client:
        # One after the other: else the measured times decide which trial has the shared steps.
        for rate in RATES:
            tuner = dt.algos.Grid(dt.Space(lr=[rate]), max_steps=steps)
            study.optimize(tuner, client=client, check=False, progress=False, last_line=False)
    study.close()
