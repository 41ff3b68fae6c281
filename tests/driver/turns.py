"""What trainers on workers of the test's own process share with the test."""

from __future__ import annotations

import threading

PERMITS = threading.Semaphore(0)
"""Each step takes one; the tests give them while they wait."""

TRAINING: dict[str, str] = {}
"""By worker: the study that trained the last step on it."""


def train_a_step(worker: str, study: str) -> None:
    """Wait for a permit to train a step."""
    PERMITS.acquire(timeout=60)
    TRAINING[worker] = study
