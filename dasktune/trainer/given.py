"""Trainers as users give them: classes, or functions that become classes."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.trainer.base import problems_of


def as_trainer(given: Any) -> Any:
    """Return the trainer class of a training function; anything else as it is.

    Raises
    ------
    ConfigurationError
        If it is a function, and torch is not installed.
    """
    if not inspect.isfunction(given) or problems_of(given):
        return given
    if find_spec("torch") is None:
        raise ConfigurationError(
            f"torch must be installed to train with a function, got {given.__qualname__}: "
            "pip install 'dasktune[torch]', or write a dasktune.Trainer"
        )
    # Loaded on first use: torch takes seconds, and classes may do without it.
    from dasktune.trainer.function import trainer_of

    return trainer_of(given)
