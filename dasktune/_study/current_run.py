"""The run of a study that is going on: how it is stopped from outside, and noted at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dasktune._engine.limits import Meter
from dasktune.errors import StorageError

if TYPE_CHECKING:
    from dasktune._driver.runner import DaskRunner

GOES_ON = "once that is mended, the same call or command goes on where it was"
"""Advice for a store or database that fails a run."""


class CurrentRun:
    """The run that `stop` ends; there is one at a time.

    A signal handler calls `stop` in the middle of anything, also of a lock: so there is none here.

    Attributes
    ----------
    runner
        Carries out the run; None while nothing runs, or its cluster is starting.
    """

    def __init__(self) -> None:
        self.runner: DaskRunner | None = None
        self._is_stopping: bool | None = None  # None while nothing runs

    @property
    def is_stopping(self) -> bool:
        """Whether a run has been asked to end."""
        return bool(self._is_stopping)

    def stop(self) -> bool:
        """Make the run save its running stages and end; return whether there is a run."""
        if self._is_stopping is None:
            return False
        self._is_stopping = True
        if self.runner is not None:
            self.runner.request_stop()
        return True

    @contextmanager
    def stoppable(self, meter: Meter) -> Iterator[None]:
        """Accept `stop` while the context lasts, and note at its end what the run used."""
        self._is_stopping = False
        try:
            with noted(meter):
                yield
        except StorageError as error:
            error.add_note(GOES_ON)
            raise
        finally:
            self._is_stopping = None

    @contextmanager
    def carried_out_by(self, runner: DaskRunner) -> Iterator[None]:
        """Pass `stop` on to a runner, also if it came before the runner was there."""
        self.runner = runner
        if self._is_stopping:
            runner.request_stop()
        try:
            yield
        finally:
            self.runner = None


@contextmanager
def noted(meter: Meter) -> Iterator[None]:
    """Note at the end of the context what a run used."""
    try:
        yield
    except BaseException:
        with suppress(StorageError):  # the first error is the one to raise
            meter.save()
        raise
    else:
        meter.save()
