"""Trainers as users give them: classes, or functions that become classes."""

from __future__ import annotations

import inspect
from typing import Any

from dasktune.trainer.base import problems_of


def as_trainer(given: Any) -> Any:
    """Return the trainer class of a training function; anything else as it is."""
    if (made := getattr(given, "_dasktune_trainer", None)) is not None:
        return made  # of `dasktune.from_optuna`
    if not inspect.isfunction(given) or problems_of(given):
        return given
    # Loaded on first use: torch takes seconds, and classes may do without it.
    from dasktune.trainer.function import trainer_of

    return trainer_of(given)
