"""POP: promising, opportunistic and poor trials [Rasley et al., "HyperDrive"]."""

from dasktune.algos.pop.active import Label
from dasktune.algos.pop.pop import POP

__all__ = ["POP", "Label"]
