"""Ctrl-C and SIGTERM while a study runs: what runs is saved first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dasktune.study import Study

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A terminal's ctrl-C, and what batch systems send."""

SAVING = b"\nsaving what runs; interrupt again to give that up\n"


@contextmanager
def interruptible(study: Study) -> Iterator[None]:
    """Let the first signal stop the study gently and the second one at once.

    A signal may come in the middle of a transaction or of a message to a worker, so the
    first one only asks the study to stop. Where nothing is to be saved, it ends all at once.

    Raises
    ------
    KeyboardInterrupt
        At the end, if there was a signal.
    """
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not study.stop():
            raise KeyboardInterrupt
        asked = True
        # Not through sys.stderr, in which the signal may have come.
        os.write(2, SAVING)

    before = [(number, signal.signal(number, on_signal)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt
