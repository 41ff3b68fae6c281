"""Running a study without training: a virtual clock, simulated workers, given curves.

The module is itself the function: ``dasktune.simulate(tuner, curves, workers=8)``.
"""

from __future__ import annotations

from dasktune._lazy import make_callable
from dasktune.simulate.incumbents import Incumbent
from dasktune.simulate.result import Happening, Simulation
from dasktune.simulate.run import Curves, simulate
from dasktune.traces.trace import Trace

__all__ = ["Curves", "Happening", "Incumbent", "Simulation", "Trace", "simulate"]

make_callable(__name__, simulate)
