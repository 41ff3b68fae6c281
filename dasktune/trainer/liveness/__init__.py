"""Static analysis: which values the next step of a training overwrites before it reads them."""

from dasktune.trainer.liveness.liveness import Liveness
from dasktune.trainer.liveness.loops import Variable, carried_variables

__all__ = ["Liveness", "Variable", "carried_variables"]
