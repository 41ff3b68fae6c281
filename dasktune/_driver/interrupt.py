"""Ctrl-C, SIGTERM and SIGHUP while a study runs: what runs is saved first."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from dasktune._engine.timeouts import LOST_INTERRUPT_SECONDS

DEFAULTS: Mapping[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    **({signal.SIGHUP: signal.SIG_DFL} if hasattr(signal, "SIGHUP") else {}),
}
"""The signals that stop a study, each with Python's own handler.

Ctrl-C sends SIGINT, batch systems send SIGTERM, and a terminal that closes (an ssh session that
ends) sends SIGHUP. Windows has no SIGHUP.
"""

_HANG_UP = getattr(signal, "SIGHUP", None)

SAVING = b"\nsaving what runs, if a stage has begun; interrupt again to give that up\n"


def _leave_terminal() -> None:
    """Send the output to `os.devnull` if its terminal is closed: writes would raise errors."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


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
    program has installed for a signal stays as it is; so does a signal that it ignores, as SIGHUP
    under nohup.

    `stop` asks what runs to save and to end, and returns whether anything ran. `last_line` returns
    the line to write to standard error before the `KeyboardInterrupt` is raised at the end.
    """
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == _HANG_UP:
            _leave_terminal()
            if asked:
                return  # the kernel and the shell may both send it
        if asked or not stop():
            raise KeyboardInterrupt
        asked = True
        with suppress(OSError):  # the terminal may be gone
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
            with suppress(OSError):
                sys.stderr.write(f"{last_line()}\n")
        raise KeyboardInterrupt
