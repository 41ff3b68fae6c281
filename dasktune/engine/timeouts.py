"""Timeouts: how long parts of a run may say nothing before something is done about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dasktune.errors import refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The seconds that parts of a run may stay silent before the driver reacts.

    Parameters
    ----------
    step_seconds
        Longest time that one step may take with its evaluation, and so may building a trainer
        or loading its state. A worker on which it takes longer is replaced; the stage is tried
        once more elsewhere, then its trials fail, with where the step was. None is no limit.
    silence_seconds
        A worker that has not been heard of for so long is taken for lost: its stage starts
        elsewhere. One that wakes up later does no harm, and is used again. Code that keeps
        Python's global lock for longer silences its worker, too.
    scheduler_seconds
        Longest time that the driver waits for a lost scheduler, and then for its first worker.
    database_seconds
        Longest time that the driver waits for a database that has answered before.

    Raises
    ------
    ConfigurationError
        If one is not a number of seconds > 0: all problems at once.
    """

    step_seconds: float | None = None
    silence_seconds: float = 45.0
    scheduler_seconds: float = 300.0
    database_seconds: float = 300.0

    def __post_init__(self) -> None:
        refuse(
            f"Timeouts: {timeout.name} must be a number of seconds > 0, got {value!r}"
            for timeout in fields(self)
            if not _is_duration(value := getattr(self, timeout.name))
            and not (timeout.name == "step_seconds" and value is None)
        )


def _is_duration(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) and value > 0
