"""A process that is forked from the fork server and runs one function, without the user's script.

Python's own processes of the fork server read the user's script first, as workers must.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from typing import IO, Any


class ForkedProcess:
    """A process as `subprocess.Popen` gives it: a pipe as its input, its errors in a file.

    It leads a session of its own. `main` must be importable.

    Attributes
    ----------
    stdin
        The pipe.
    pid
        Its number.
    parent
        The number of its parent, the server.
    returncode
        How it ended; None while it runs.
    """

    def __init__(self, main: Callable[[], None], *, errors: IO[bytes]) -> None:
        server: Any = forkserver
        read, write = os.pipe()
        leads, is_leader = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(write, "wb")
        self.returncode: int | None = None
        try:
            given = [read, errors.fileno(), is_leader]
            self._status, data = server.connect_to_new_process(given)
        except BaseException:
            self.stdin.close()
            os.close(leads)
            raise
        finally:
            os.close(read)
            os.close(is_leader)
        with ExitStack() as failed, os.fdopen(leads, "rb") as session:
            failed.callback(os.close, self._status)
            failed.callback(self.stdin.close)
            with os.fdopen(data, "wb") as file:
                pickle.dump({}, file)  # Python's server reads two objects
                pickle.dump(_Child(main, os.getcwd()), file)
            self.pid: int = server.read_signed(self._status)
            session.read()  # until it leads its session, or has ended: it can be killed by that
            failed.pop_all()
        self.parent: int = server._forkserver._forkserver_pid

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; a `subprocess.TimeoutExpired` says that it still runs."""
        if self.returncode is None:
            if not connection.wait([self._status], timeout):
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            server: Any = forkserver
            try:
                self.returncode = server.read_signed(self._status)
            except EOFError:  # the server is gone, and so is the process
                self.returncode = -1
            os.close(self._status)
        return self.returncode or 0


@dataclass(frozen=True, slots=True)
class _Child:
    """The order to a forked process, which calls `_bootstrap`."""

    main: Callable[[], None]
    folder: str

    def _bootstrap(self, parent_sentinel: int) -> int:
        server: Any = forkserver
        given, errors, is_leader = server.get_inherited_fds()
        os.setsid()
        os.close(is_leader)
        for descriptor, place in ((given, 0), (os.open(os.devnull, os.O_WRONLY), 1), (errors, 2)):
            os.dup2(descriptor, place)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = [""]
        try:
            os.chdir(self.folder)
            self.main()
        except BaseException:  # noqa: BLE001 - the parent has its text and the exit code
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0
