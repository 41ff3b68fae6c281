"""Hyper-parameters as functions of the step: values that can be compared, joined and stored.

Call a sequence with a step. ``seq[:n]`` has its first `n` steps, ``seq[n:]`` the steps after
them; ``a >> b`` continues with `b` where `a` ends.

>>> lr = Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95)
>>> lr(4), lr(5), lr.end
(0.1, 0.1, None)
"""

from dasktune.sequences.compare import first_difference
from dasktune.sequences.core import Constant, Ended, Joined, Sequence, as_sequence
from dasktune.sequences.document import FAMILIES, sequence_from_json
from dasktune.sequences.families import (
    Cosine,
    Cyclic,
    Exponential,
    Linear,
    MultiStep,
    Piecewise,
    WarmRestarts,
    Warmup,
)

__all__ = [
    "FAMILIES",
    "Constant",
    "Cosine",
    "Cyclic",
    "Ended",
    "Exponential",
    "Joined",
    "Linear",
    "MultiStep",
    "Piecewise",
    "Sequence",
    "WarmRestarts",
    "Warmup",
    "as_sequence",
    "first_difference",
    "sequence_from_json",
]
