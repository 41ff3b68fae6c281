"""What a user writes to be tuned, and how it is run, resumed, checked and carried."""

from dasktune.trainer.base import Trainer, problems_of
from dasktune.trainer.code import TrainerCode, pack, unpack
from dasktune.trainer.lifecycle import LoneRun, TrainerRun, run_alone

__all__ = [
    "LoneRun",
    "Trainer",
    "TrainerCode",
    "TrainerRun",
    "pack",
    "problems_of",
    "run_alone",
    "unpack",
]
