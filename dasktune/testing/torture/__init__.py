"""Deterministic simulation: whole studies under seeded faults, checked after every event."""

from dasktune.testing.torture.scenario import FAULTS, Scenario
from dasktune.testing.torture.seeds import Finding, many, shortest, torture

__all__ = ["FAULTS", "Finding", "Scenario", "many", "shortest", "torture"]
