"""Trying again what a store failed, at growing intervals and for so long.

The libraries below fsspec try again, too, but each in its own way, most for some seconds
only; and some draw their intervals from Python's global random numbers, which belong to the
trainer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import TypeVar

import tenacity

from dasktune.storage.files.failures import is_passing, reason_of

# Users show retries by this name, which is documented: it does not follow the module.
logger = logging.getLogger("dasktune.storage.retrying")

PATIENCE_SECONDS = 120.0
"""How long a store may fail before that is an error."""

_SLOWEST = 256 * 1024
"""Bytes per second of the slowest line."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long an operation is tried that a store fails.

    Before the n-th further try it waits at random up to ``first * 2**(n-1)``, at most
    `longest`, so that many that were throttled together do not come back together.

    Parameters
    ----------
    seconds
        No further try begins later than this after the beginning of the first.
    first, longest
        Seconds of the first and of the longest interval.
    request
        Seconds that any single request may take; None gives a request as long as its
        bytes need on a slow line.
    clock, sleep, draw
        Tell the time in seconds, pass it, and draw from 0 to 1.

    References
    ----------
    The intervals are the "full jitter" of M. Brooker, Exponential Backoff And Jitter, AWS
    Architecture Blog, 2015.
    """

    seconds: float = PATIENCE_SECONDS
    first: float = 0.2
    longest: float = 10.0
    request: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = SystemRandom().random

    def call(self, work: Callable[[], Found]) -> Found:
        """Return what `work` does, tried again while it fails in a way that may pass.

        Raises
        ------
        Exception
            Of the last try.
        """
        begin = self.clock()

        def is_over(state: tenacity.RetryCallState) -> bool:
            return self.clock() - begin + state.upcoming_sleep >= self.seconds

        retrying = tenacity.Retrying(
            stop=is_over,
            wait=self._interval,
            sleep=self.sleep,
            retry=tenacity.retry_if_exception(is_passing),
            before_sleep=_note,
            reraise=True,
        )
        return retrying(work)

    def request_seconds(self, nbytes: int) -> float:
        """Return how long a request may take that sends so many bytes."""
        return 30.0 + nbytes / _SLOWEST if self.request is None else self.request

    def _interval(self, state: tenacity.RetryCallState) -> float:
        # The exponent has a bound because a number of tries has none.
        ceiling: float = self.first * 2 ** min(state.attempt_number - 1, 30)
        return self.draw() * min(ceiling, self.longest)


def _note(state: tenacity.RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    reason = "" if error is None else reason_of(error)
    logger.info("store failed, next try in %.1f s: %s", state.upcoming_sleep, reason)
