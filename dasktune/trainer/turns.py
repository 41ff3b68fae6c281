"""A function that runs in turns with its caller: it pauses in its middle, and goes on there."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextvars import copy_context

from dasktune._engine.timeouts import INTERRUPT_LOOK_SECONDS

THREAD_NAME = "dasktune-turns"


class TurnsEnded(BaseException):
    """Raised where a function waits, once it shall never go on: its ``finally`` blocks run."""


class Turns:
    """A function in a thread of its own that runs only while its caller waits for it.

    Two threads, but one at a time: what the function does is in order with what the caller does.
    The function sees the context variables of the first caller.

    Parameters
    ----------
    body
        The function. It calls `pause` to let its caller go on.

    Examples
    --------
    >>> said = []
    >>> def body():
    ...     said.append("first")
    ...     turns.pause()
    ...     said.append("second")
    >>> turns = Turns(body)
    >>> turns.go_on(), said, turns.go_on(), said[1:]
    (True, ['first', 'second'], False, ['second'])
    """

    def __init__(self, body: Callable[[], None]) -> None:
        self._body: Callable[[], None] | None = body
        self._callers, self._bodys = threading.Lock(), threading.Lock()
        self._callers.acquire()
        self._bodys.acquire()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_over = self._is_closed = False

    def go_on(self) -> bool:
        """Run the function until it pauses; return whether it may go on then.

        An exception of the function is raised here.
        """
        if self._is_over:
            return False
        try:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=copy_context().run, args=(self._run,), name=THREAD_NAME, daemon=True
                )
                self._thread.start()
            else:
                self._bodys.release()
            # Python does not see a signal that comes just before a wait without a limit begins.
            while not self._callers.acquire(timeout=INTERRUPT_LOOK_SECONDS):
                pass
        except BaseException:
            self._interrupt()
            raise
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                # The traceback holds this call, which must not hold the error: the model in the
                # function's variables would live on until the garbage collection.
                del error
        return not self._is_over

    def pause(self) -> None:
        """Give the turn to the caller; the function calls this.

        Raises
        ------
        TurnsEnded
            If the function shall never go on.
        """
        if self._is_closed:
            raise TurnsEnded
        self._callers.release()
        self._bodys.acquire()
        if self._is_closed:
            raise TurnsEnded

    def close(self) -> None:
        """End the function where it pauses."""
        if self._is_over or self._is_closed:
            return
        self._is_closed = True
        if self._thread is None:
            self._is_over = True
            return
        self._bodys.release()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _interrupt(self) -> None:
        """End the function where it is, and wait for its end; a second interrupt does not wait.

        If it ran on, it would draw from the generators of whatever is trained next.
        """
        self._is_closed = True
        if self._thread is None or self._thread.ident is None:
            return  # it has not begun, and will not
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread.ident), ctypes.py_object(TurnsEnded)
        )
        self._thread.join()

    def _run(self) -> None:
        # The function often holds these turns: nothing must stay of it once it has ended.
        body, self._body = self._body, None
        try:
            if body is not None and not self._is_closed:
                body()
        except TurnsEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._error = error
        finally:
            del body
            self._is_over = True
            self._callers.release()
