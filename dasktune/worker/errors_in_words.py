"""Failures of user code: what they leave of a process, and words that can be sent and kept."""

from __future__ import annotations

import sys
import traceback as tracebacks

from dasktune.storage.redaction import redacted

LONGEST_MESSAGE = 500
LONGEST_TRACEBACK = 20_000
"""Characters that are kept: the last ones of a traceback."""

_SPOILING = ("CUDA error:", "HIP error:", "CUBLAS_STATUS_", "CUDNN_STATUS_")
"""How torch's messages name errors of a GPU and its libraries."""


def in_words(error: BaseException) -> dict[str, str]:
    """Return an error's last line as ``message`` and all that is known of it as ``traceback``.

    Both can be sent as UTF-8 and tell no secrets of this process.
    """
    message = tracebacks.format_exception_only(error)[-1].strip()
    lines = tracebacks.format_exception(error)
    return {
        "message": sendable(message)[:LONGEST_MESSAGE],
        "traceback": sendable("".join(lines))[-LONGEST_TRACEBACK:],
    }


def where(thread: int) -> str:
    """Return where a thread of this process is, as the lines of a traceback."""
    frame = sys._current_frames().get(thread)
    stack = [] if frame is None else tracebacks.format_stack(frame)
    return sendable("".join(["Where it was then:\n", *stack]))[-LONGEST_TRACEBACK:]


def sendable(text: str) -> str:
    """Return a text that can be sent: file names may hold what is no UTF-8."""
    return redacted(text).encode("utf-8", "backslashreplace").decode()


def spoils_process(error: BaseException) -> bool:
    """Say whether an error leaves a process in which nothing can be trained any more.

    After most errors of a GPU, all that touches it fails in this process. Memory that does not
    suffice is no such error.
    """
    found: BaseException | None = error
    while found is not None:
        names = {one.__name__ for one in type(found).__mro__}
        if "OutOfMemoryError" not in names and (
            "AcceleratorError" in names or any(text in str(found) for text in _SPOILING)
        ):
            return True
        found = found.__cause__ or found.__context__
    return False
