"""Failures of user code: what they leave of a process, and words that can be sent and kept."""

from __future__ import annotations

import sys
import traceback as tracebacks
from collections.abc import Iterator

from dasktune.errors import text_of
from dasktune.storage.redaction import redacted

LONGEST_MESSAGE = 500
LONGEST_TRACEBACK = 20_000
"""Characters that are kept: the last ones of a traceback."""

_SPOILING = (
    *("CUDA error:", "HIP error:", "CUBLAS_STATUS_", "CUDNN_STATUS_"),
    *("CUDA driver error:", "Triton Error [CUDA]", "CUDA_ERROR_", "cudaError"),
)
"""How messages of torch, Triton, JAX, CuPy and Numba name errors of a GPU and its libraries."""

_FULL = ("out of memory", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "OutOfMemoryError")
"""How they name that its memory is full, which leaves the process usable."""

_DAEMON = "daemonic processes are not allowed to have children"
"""What `multiprocessing` says in a worker that is a daemon."""

_DAEMON_REMEDY = (
    "; the workers of this cluster are daemons: set distributed.worker.daemon: false for them, or "
    "start them with --no-nanny"
)


def in_words(error: BaseException) -> dict[str, str]:
    """Return an error's last line as ``message`` and all that is known of it as ``traceback``.

    Both can be sent as UTF-8 and tell no secrets of this process.
    """
    try:
        message = tracebacks.format_exception_only(error)[-1].strip()
        lines = tracebacks.format_exception(error)
    except Exception:  # noqa: BLE001 - methods of the user's class break even Python's own words
        message = f"{type(error).__name__}: {text_of(error)}"
        lines = [*tracebacks.format_tb(error.__traceback__), message]
    is_daemon = any(_DAEMON in text_of(cause) for cause in _causes(error))
    remedy = _DAEMON_REMEDY if is_daemon else ""
    return {
        "message": f"{sendable(message)[: LONGEST_MESSAGE - len(remedy)]}{remedy}",
        "traceback": sendable("".join(lines))[-LONGEST_TRACEBACK:],
    }


def where(thread: int) -> str:
    """Return where a thread of this process is, as the lines of a traceback."""
    frame = sys._current_frames().get(thread)
    stack = [] if frame is None else tracebacks.format_stack(frame)
    return sendable("".join(["Where it was then:\n", *stack]))[-LONGEST_TRACEBACK:]


def sendable(text: str) -> str:
    """Return a text that can be sent and stored.

    File names may hold what is no UTF-8, and PostgreSQL stores no NUL.
    """
    return redacted(text).encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def spoils_process(error: BaseException) -> bool:
    """Return whether the process can train nothing more after an error.

    After most errors of a GPU, every later use of it fails in this process; but lack of memory is
    harmless.
    """
    for cause in _causes(error):
        names = " ".join(base.__name__ for base in type(cause).__mro__)
        is_of_gpu = "AcceleratorError" in names or any(text in text_of(cause) for text in _SPOILING)
        if is_of_gpu and not _is_full(cause):
            return True
    return False


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was full, of a GPU or of the process."""
    return any(isinstance(cause, MemoryError) or _is_full(cause) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it came from, each once: a user may have set a cycle."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__context__ if cause.__cause__ is None else cause.__cause__


def _is_full(error: BaseException) -> bool:
    names = " ".join(base.__name__ for base in type(error).__mro__)
    return any(text in f"{names} {text_of(error)}" for text in _FULL)
