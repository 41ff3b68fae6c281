"""Permits for steps, and a board of them: shared by a test with trainers of its process."""

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
