"""POP: promising, opportunistic and poor trials [Rasley et al., "HyperDrive"]."""

from dasktune.algos.pop.pop import POP, Label

__all__ = ["POP", "Label"]
