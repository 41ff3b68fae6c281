"""The log of a stage: the lines that its trainer printed while it trained, with bounds.

The lines of loggers are among them, since loggers write to standard error by default. Handlers of
`logging` hold the streams, so these stay the same objects. Only their `write` is replaced, by a
function that also calls the former one.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from dasktune._worker.errors_in_words import sendable

MOST_CHARACTERS = 16_000
"""Most characters of a stage's log; of a longer log the last lines are kept."""

_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Codes that colour a terminal, or move its cursor."""

_PRINTER: ContextVar[Printer | None] = ContextVar("dasktune_printer", default=None)
"""The printer of the worker whose stage trains here."""


class PrintedLines:
    r"""The last lines that a stage printed.

    Examples
    --------
    >>> log = PrintedLines()
    >>> for text in ("epoch 1\n", "10%", "\r100%\n", "epoch"):
    ...     log.add(text)
    >>> log.take_news()
    'epoch 1\n100%\nepoch'
    >>> log.take_news() is None
    True
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._last = ""
        self._size = self._left_out = 0
        self._is_new = False
        # A watching thread may ask while the stage prints; and the garbage collection may run a
        # finalizer that prints, in the middle of an addition.
        self._lock = threading.RLock()

    def add(self, text: str) -> None:
        """Add a printed text; as in a terminal, a carriage return overwrites its line."""
        with self._lock:
            *whole, last = (self._last + text).split("\n")
            for line in map(_overwritten, whole):
                self._lines.append(line.rstrip("\r"))
                self._size += len(self._lines[-1]) + 1
            self._last = _overwritten(last)
            while self._lines and self._size + len(self._last) > MOST_CHARACTERS:
                self._size -= len(self._lines.popleft()) + 1
                self._left_out += 1
            self._is_new = True

    def take_news(self) -> str | None:
        """Return the whole log, without secrets, if it has grown since the last time; else None."""
        if not self._is_new:
            return None
        with self._lock:
            self._is_new = False
            text = "\n".join([*self._lines, self._last])
            left_out = self._left_out
        head = f"({left_out:,} earlier lines are left out)\n" if left_out else ""
        return head + sendable(_CODES.sub("", text)).rstrip()


def _overwritten(line: str) -> str:
    """Return the text of a line after its last carriage return, as a terminal shows it.

    Of a very long line only the end stays, from its first blank on: this cuts no secret in two.
    """
    line = line[line.rstrip("\r").rfind("\r") + 1 :]
    return line if len(line) < MOST_CHARACTERS else line[-MOST_CHARACTERS:].partition(" ")[2]


class Printer:
    """The log of the stage that a worker trains now.

    The thread of a training function begins in its first stage and lives on in later ones. So it
    finds the log of the present stage by the worker.
    """

    def __init__(self) -> None:
        self._log: PrintedLines | None = None

    @contextmanager
    def prints_to(self, log: PrintedLines) -> Iterator[None]:
        """Add to a log all text that is printed in this context.

        That includes text of threads that began in this or an earlier context of the printer.
        """
        for stream in (sys.stdout, sys.stderr):
            _follow(stream)
        token = _PRINTER.set(self)
        self._log = log
        try:
            yield
        finally:
            self._log = None
            _PRINTER.reset(token)

    def add(self, text: str) -> None:
        """Add a text to the log of the present stage; between stages it belongs to none."""
        log = self._log
        if log is not None:
            log.add(text)


def _follow(stream: Any) -> None:
    """Replace a stream's `write`, once, by one that looks for the printer of its worker."""
    write: Callable[[str], int] | None = getattr(stream, "write", None)
    if write is None or hasattr(write, "dasktune_passes_on"):
        return

    def pass_on(text: str) -> int:
        printer = _PRINTER.get()
        if printer is None:
            return write(text)
        # This stream may write to another one that is followed, too: the log has the text once.
        token = _PRINTER.set(None)
        try:
            return write(text)
        finally:
            _PRINTER.reset(token)
            printer.add(text)

    pass_on.dasktune_passes_on = True  # type: ignore[attr-defined]
    with suppress(AttributeError):  # a stream without attributes of its own is not followed
        stream.write = pass_on
