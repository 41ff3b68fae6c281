"""A thread that writes changes of trials to another program's storage, which may be slow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

DUTY: Final = 0.1
"""Share of the time in which the thread may write. With a slow storage it writes seldom and
much at once, which costs less; but people look at it while the study runs."""

Change = TypeVar("Change")
Item = TypeVar("Item")


class Background(Generic[Change]):
    """Writes changes in a thread; a failure is logged and ends the writing, not the study.

    Parameters
    ----------
    write
        Writes changes, in the order of the numbers of their trials.
    join
        Returns one change for two of the same trial: (earlier, later) -> both.
    warning
        The log record for a failure of `write`; ``%s`` becomes its reason.
    interval
        Least number of seconds between two writes.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[Change]], None],
        join: Callable[[Change, Change], Change],
        *,
        warning: str,
        interval: float,
    ) -> None:
        self._write_changes = write
        self._join = join
        self._warning = warning
        self._interval = interval
        self._lock = threading.Lock()
        self._changes: dict[int, Change] = {}
        self._is_closing = threading.Event()
        self.is_broken = False
        """Whether a write failed, so that nothing is written any more."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, changes: Iterable[tuple[int, Change]]) -> None:
        """Receive changes with the numbers of their trials; the thread writes them soon."""
        if self.is_broken:
            return
        with self._lock:
            for number, change in changes:
                waiting = self._changes.get(number)
                self._changes[number] = change if waiting is None else self._join(waiting, change)

    def close(self) -> bool:
        """Write the remaining changes; return False if this was done before."""
        if self._is_closing.is_set():
            return False
        self._is_closing.set()
        self._thread.join()
        return True

    def _run(self) -> None:
        pause = self._interval
        while not self._is_closing.wait(pause):
            pause = max(self._interval, self._write() / DUTY)
        self._write()

    def _write(self) -> float:
        """Write the changes, and return the seconds that this took."""
        with self._lock:
            changes, self._changes = self._changes, {}
        if self.is_broken or not changes:
            return 0.0
        began = time.perf_counter()
        try:
            self._write_changes([changes[number] for number in sorted(changes)])
        except Exception as error:  # noqa: BLE001 - a storage of the user's may raise anything
            self.is_broken = True
            logger.warning(self._warning, error)
        return time.perf_counter() - began


def in_parts(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    """Return items in order, in parts of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))
