"""The last score stays."""

from __future__ import annotations

from dasktune.algos.curves import Persistence
from dasktune.testing import PredictorConformance


class TestConformance(PredictorConformance):
    def make(self) -> Persistence:
        return Persistence()
