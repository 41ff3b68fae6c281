"""Retrying a store's failed operations at growing intervals.

The libraries below fsspec retry, too, but each in its own way, most for some seconds only, and
some draw their intervals from Python's global random numbers, which belong to the trainer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import TypeVar

import tenacity

from dasktune._engine.timeouts import STORE_SECONDS
from dasktune.storage.files.failures import is_passing, reason_of

# Users show retries by this name, which is documented: it does not follow the module.
logger = logging.getLogger("dasktune.storage.retrying")

_SLOWEST = 256 * 1024
"""Bytes per second of the slowest line."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How an operation on a store is retried.

    The wait before the n-th retry is drawn from 0 to ``first * 2**(n-1)``, at most `longest`,
    so that processes that were throttled together do not return together.

    Parameters
    ----------
    seconds
        No retry begins later than this after the first try.
    first, longest
        Upper bounds of the first and of all waits, in seconds.
    request
        Time limit of each request in seconds; None for a limit by the size of the request,
        on a slow line.
    clock, sleep, draw
        Functions that return the time in seconds, wait, and draw from 0 to 1.

    References
    ----------
    The intervals are the "full jitter" of M. Brooker, Exponential Backoff And Jitter, AWS
    Architecture Blog, 2015.
    """

    seconds: float = STORE_SECONDS
    first: float = 0.2
    longest: float = 10.0
    request: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = SystemRandom().random

    def call(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, retried while its failure may pass.

        Raises
        ------
        Exception
            The failure of the last try.
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
        """Return the time limit in seconds of a request that sends so many bytes."""
        return 30.0 + nbytes / _SLOWEST if self.request is None else self.request

    def _interval(self, state: tenacity.RetryCallState) -> float:
        # The bound keeps the power finite after many tries.
        ceiling: float = self.first * 2 ** min(state.attempt_number - 1, 30)
        return self.draw() * min(ceiling, self.longest)


def _note(state: tenacity.RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    reason = "" if error is None else reason_of(error)
    logger.info("store failed, next try in %.1f s: %s", state.upcoming_sleep, reason)
