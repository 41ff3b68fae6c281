"""A module that kinds of trainers use, with variables that they change."""

from __future__ import annotations

count = 0
ledger: list[float] = []


def noted(value: float) -> float:
    """Return the mean of the last four values."""
    ledger.append(value)
    return sum(ledger[-4:]) / 4
