"""Chaos: whole studies on real processes that are killed, paused and cut off meanwhile."""

from dasktune.testing.chaos.faults import FAULTS
from dasktune.testing.chaos.session import Case, Result, Terms, chaos

__all__ = ["FAULTS", "Case", "Result", "Terms", "chaos"]
