"""Trainers: the class that a user writes, and how it is run, resumed, checked and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dasktune.trainer.base import Trainer, problems_of
from dasktune.trainer.check_resume.check import CheckLimit, ResumeReport, check_resume
from dasktune.trainer.code import TrainerCode, pack, unpack
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.fingerprint.data import data_digest
from dasktune.trainer.fingerprint.fingerprint import Fingerprint, fingerprint
from dasktune.trainer.lifecycle import LoneRun, TrainerRun, run_alone
from dasktune.trainer.proof.differences import Difference, state_differences

if TYPE_CHECKING:
    from dasktune.trainer.function import Run
    from dasktune.trainer.torch import TorchTrainer
    from dasktune.trainer.torch_loader import loader

__all__ = [
    "CheckLimit",
    "Difference",
    "Fingerprint",
    "LoneRun",
    "ResumableLoader",
    "ResumeReport",
    "Run",
    "TorchTrainer",
    "Trainer",
    "TrainerCode",
    "TrainerRun",
    "check_resume",
    "data_digest",
    "fingerprint",
    "loader",
    "pack",
    "problems_of",
    "run_alone",
    "state_differences",
    "unpack",
]


def __getattr__(name: str) -> object:
    try:
        if name == "TorchTrainer":
            # Loaded on first use: torch takes seconds, and NumPy users need not have it.
            import torch  # noqa: F401 - training functions may do without, this class cannot

            from dasktune.trainer.torch import TorchTrainer

            return TorchTrainer
        if name == "loader":
            from dasktune.trainer.torch_loader import loader

            return loader
        if name == "Run":
            from dasktune.trainer.function import Run

            return Run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"dasktune.{name} needs torch: pip install 'dasktune[torch]'", name="torch"
        ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
