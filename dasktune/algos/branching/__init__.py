"""Search that branches late: proposals by expected improvement per step to be trained."""

from dasktune.algos.branching.sampler import Branching

__all__ = ["Branching"]
