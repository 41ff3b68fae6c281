"""All interfaces of dasktune: the docstring of each class says what a subclass must do.

===========  ==================================================  ==================================
interface    what it does                                        written by
===========  ==================================================  ==================================
`Trainer`    trains one configuration, step by step              every user
`Tuner`      registers trials, decides how far each is trained   authors of algorithms
`Sampler`    makes the source of a tuner's configurations        authors of algorithms
`Source`     proposes configurations, and learns from results    authors of algorithms
`Predictor`  continues learning curves                           authors of algorithms
`Domain`     the values that a hyper-parameter may have          authors of search spaces
`Sequence`   a hyper-parameter as a function of the step         authors of search spaces
`Callback`   is told what happens while a study runs             who watches a study
`Logger`     shows trials as runs of another program             authors of loggers
`Files`      reads and writes the files of a store               who brings another kind of store
`Policy`     one reason for or against a stage on a worker       who changes the scheduling
===========  ==================================================  ==================================

``docs/extending.md`` names the files that each of them takes.
"""

from dasktune._study.callbacks import Callback
from dasktune.algos.base import Tuner
from dasktune.algos.curves import Predictor
from dasktune.algos.samplers import Sampler, Source
from dasktune.graph.policy import Policy
from dasktune.mirror import Logger
from dasktune.sequences import Sequence
from dasktune.space.domains import Domain
from dasktune.storage.files.base import Files
from dasktune.trainer.base import Trainer

__all__ = [
    "Callback",
    "Domain",
    "Files",
    "Logger",
    "Policy",
    "Predictor",
    "Sampler",
    "Sequence",
    "Source",
    "Trainer",
    "Tuner",
]
