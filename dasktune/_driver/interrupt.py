"""Ctrl-C and SIGTERM while a study runs: what runs is saved first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dasktune._engine.timeouts import LOST_INTERRUPT_SECONDS

DEFAULTS: Mapping[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""A terminal's ctrl-C, and what batch systems send; with what Python does about them."""

SAVING = b"\nsaving what runs; interrupt again to give that up\n"


@contextmanager
def interruptible(
    stop: Callable[[], bool], last_line: Callable[[], str] | None = None
) -> Iterator[None]:
    """Stop a study gently at the first signal, and at once at the second.

    A signal may come in the middle of a transaction or of a message to a worker, so the first one
    only asks the study to stop. If nothing runs, it ends the program at once.

    Dask runs a function of its own at each garbage collection. Python drops an exception that is
    raised in it, so an interrupt that is lost there is sent again.

    Only the main thread receives signals: in any other this does nothing. A handler that the
    program has installed for a signal stays as it is; so does a signal that it ignores.

    `stop` asks what runs to save and to end, and returns whether anything ran. `last_line` returns
    the line to write to standard error before the `KeyboardInterrupt` is raised at the end.
    """
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not stop():
            raise KeyboardInterrupt
        asked = True
        # Not through sys.stderr, in which the signal may have come.
        os.write(2, SAVING)

    is_main = threading.current_thread() is threading.main_thread()
    signals = [
        number
        for number, default in DEFAULTS.items()
        if is_main and signal.getsignal(number) is default
    ]
    before = sys.unraisablehook

    def on_dropped(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            threading.Timer(LOST_INTERRUPT_SECONDS, os.kill, (os.getpid(), signals[0])).start()
        else:
            before(dropped)

    for number in signals:
        signal.signal(number, on_signal)
    if signals:
        sys.unraisablehook = on_dropped
    try:
        yield
    finally:
        if signals:
            sys.unraisablehook = before
        for number in signals:
            signal.signal(number, DEFAULTS[number])
    if asked:
        if last_line is not None:
            sys.stderr.write(f"{last_line()}\n")
        raise KeyboardInterrupt
