"""Tuners: they decide which trials are trained, and how far.

All that draw configurations take ``(space, trials=, max_steps=, seed=, sampler=)``.
"""

from dasktune.algos.asha import ASHA
from dasktune.algos.auto import Auto
from dasktune.algos.bandit import Bandit
from dasktune.algos.base import Tuner
from dasktune.algos.early_term import EarlyTerm
from dasktune.algos.freeze_thaw import FreezeThaw
from dasktune.algos.grid import Grid
from dasktune.algos.hyperband import AsyncHyperband, Hyperband
from dasktune.algos.milestones import Milestones
from dasktune.algos.pbt import PBT
from dasktune.algos.pop import POP
from dasktune.algos.random import Random
from dasktune.algos.repeats import Repeats
from dasktune.algos.sha import SHA
from dasktune.algos.stopping import MedianStopping, PatienceStopping, PercentileStopping
from dasktune.algos.stopping_asha import StoppingASHA

__all__ = [
    "ASHA",
    "PBT",
    "POP",
    "SHA",
    "AsyncHyperband",
    "Auto",
    "Bandit",
    "EarlyTerm",
    "FreezeThaw",
    "Grid",
    "Hyperband",
    "MedianStopping",
    "Milestones",
    "PatienceStopping",
    "PercentileStopping",
    "Random",
    "Repeats",
    "StoppingASHA",
    "Tuner",
]
