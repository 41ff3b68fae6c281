"""Failures that are all alike: the other trials would fail, too."""

from __future__ import annotations

import re

_PLACE = re.compile(
    r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in .*(?:\n(?! *File ")(?P<code> .*))?$', re.M
)
"""A frame of a traceback; the code is missing where its file cannot be read, as that of a notebook.
"""
_FOREIGN = (
    "-packages/",
    "/lib/python",
    "/dasktune/trainer/",
    "/dasktune/_worker/",
    "/dasktune/types.py",
)


class AlikeFailures:
    """Counts the failures of a run until one of its trials reports, or fails otherwise.

    Failures are alike that have the same exception at the same line of the user's code.

    Examples
    --------
    >>> failures = AlikeFailures()
    >>> failures.add("KeyError: 'lr'", "")
    >>> failures.add("KeyError: 'lr'", "")
    >>> failures.count, failures.place
    (2, "KeyError: 'lr'")
    >>> failures.reported()
    >>> failures.count
    0
    """

    def __init__(self) -> None:
        self.count = 0
        self.place = ""
        """The message of the last failure, with the line of the user's code."""
        self._kind: tuple[str, str] | None = None
        self._is_over = False

    def add(self, message: str, traceback: str) -> None:
        """Count the failure of a trial."""
        line = user_line(traceback)
        kind = message.partition(":")[0], line
        if self._is_over or self._kind not in (None, kind):
            self.reported()
            return
        self._kind, self.count = kind, self.count + 1
        self.place = f"{message} ({line})" if line else message

    def reported(self) -> None:
        """Note that a trial has reported, or that failures differ: they are not all alike."""
        self._is_over, self.count = True, 0


def user_line(traceback: str) -> str:
    r"""Return the last line of the user's own code in a traceback, with its place; or nothing.

    Examples
    --------
    >>> user_line('  File "/home/me/tune.py", line 3, in build\n    hp["lr"]\nKeyError: 1')
    'tune.py:3: hp["lr"]'
    >>> user_line('  File "/tmp/123.py", line 3, in build\n  File "/lib/python/re.py", line 9, in')
    '123.py:3'
    """
    own_lines = [
        match
        for match in _PLACE.finditer(traceback)
        if not any(part in match["file"] for part in _FOREIGN)
    ]
    if not own_lines:
        return ""
    last = own_lines[-1]
    file = re.split(r"[/\\]", last["file"])[-1]
    place = f"{file}:{last['line']}"
    return f"{place}: {last['code'].strip()}" if last["code"] else place
