"""The reader of commits: those of states that trials meet and no database knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from dasktune._driver.parts import Following, News, Part
from dasktune._driver.reuse import CommitsRead, KnownStates


class CommitReader(Part):
    """Reads commits in a thread, while the driver's loop goes on; `put` takes the messages."""

    def __init__(self, known_states: KnownStates, put: Callable[[CommitsRead], None]) -> None:
        self._known_states = known_states
        self._put = put
        self._is_reading = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dasktune-commits")

    def turn(self, now: float) -> Iterable[Following]:
        """Begin to read the commits that are to be read; a message follows."""
        keys = tuple(self._known_states.unread)
        if not keys or self._is_reading:
            return ()
        self._is_reading = True
        commits = self._pool.submit(self._known_states.read_commits, keys)
        message = CommitsRead(keys=keys, commits=commits)
        commits.add_done_callback(lambda _: self._put(message))
        return ()

    def receive(self, news: News, now: float) -> list[Following]:
        """Return the event that follows from commits.

        Raises a `StorageError` if the store could not be read: steps that it may have must not be
        trained again.
        """
        if not isinstance(news, CommitsRead):
            return []
        self._is_reading = False
        return [self._known_states.receive(news.keys, news.commits.result())]

    def close(self) -> None:
        """End the thread; what it still reads is dropped, and read again by the next run."""
        self._pool.shutdown(wait=False, cancel_futures=True)
