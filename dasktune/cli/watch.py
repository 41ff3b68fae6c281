"""Showing something again and again, as it changes, until ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import repeat

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dasktune.errors import ConfigurationError, StorageError

DAY = 86_400
"""The longest wait before something is shown again."""


def watch(
    read: Callable[[], str],
    seconds: float,
    *,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a text as it is every few seconds; return at ctrl-C.

    On a terminal it is shown in place, elsewhere one after the other. While the database does
    not answer, that is shown.

    Parameters
    ----------
    console
        Where to; standard output if None.
    sleep
        Waits for so many seconds.

    Raises
    ------
    ConfigurationError
        If the seconds are negative, NaN or more than a day.
    """
    if not 0 <= seconds <= DAY:
        raise ConfigurationError(
            f"--watch must be a number of seconds from 0 to 86,400, got {seconds}"
        )
    console = console or Console(highlight=False)
    first = read()  # what is wrong from the beginning is no reason to wait
    try:
        if not console.is_terminal:
            for text in _texts(first, read, seconds, sleep):
                console.print(Text(text), soft_wrap=True)
            return
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            for text in _texts(first, read, seconds, sleep):
                live.update(fitted(text, console.height), refresh=True)
    except KeyboardInterrupt:
        return


def fitted(text: str, height: int) -> Text:
    """Return a text that fits a window: a long line is cut, and the last line counts the rest."""
    lines = text.splitlines()
    if len(lines) >= height > 1:
        kept = lines[: height - 2]
        lines = [*kept, f"... {len(lines) - len(kept)} more lines"]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _texts(
    first: str, read: Callable[[], str], seconds: float, sleep: Callable[[float], None]
) -> Iterator[str]:
    yield first
    for _ in repeat(None):
        sleep(seconds)
        try:
            yield read()
        except StorageError as error:
            yield f"cannot be read now: {error}"
