"""Running a study without training: a virtual clock, simulated workers, given curves.

The module is itself the function: ``dasktune.simulate(tuner, curves, workers=8)``.
"""

from __future__ import annotations

import sys
from types import ModuleType

from dasktune.simulate.incumbents import Incumbent
from dasktune.simulate.result import Happening, Simulation
from dasktune.simulate.run import Curves, simulate
from dasktune.traces.trace import Trace

__all__ = ["Curves", "Happening", "Incumbent", "Simulation", "Trace", "simulate"]


class _CallableModule(ModuleType):
    """Lets ``dasktune.simulate`` be both the package and the function users call."""

    __call__ = staticmethod(simulate)


sys.modules[__name__].__class__ = _CallableModule
