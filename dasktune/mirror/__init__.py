"""A study in other programs: as an Optuna study, or as a run for each trial.

This module imports Optuna only when a function needs it.
"""

from __future__ import annotations

from dasktune.mirror.loggers import Logger, OpenLogger
from dasktune.mirror.runs import LoggedStudy, SharedSteps, TrialRun
from dasktune.mirror.snapshot import Seen, Span, optuna_study, spans_of

__all__ = [
    "LoggedStudy",
    "Logger",
    "OpenLogger",
    "Seen",
    "SharedSteps",
    "Span",
    "TrialRun",
    "optuna_study",
    "spans_of",
]
