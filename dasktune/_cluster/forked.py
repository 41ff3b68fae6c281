"""The last import of the fork server: it makes its workers like new interpreters.

Nothing else may import it.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import stat
from contextlib import suppress
from multiprocessing import util

import numpy as np

from dasktune._cluster.fork_server import REPLACED

_SERVER = os.getpid()


def _begin() -> None:
    """Give a worker its own state of NumPy's global generator.

    Processes that a worker forks keep its state: a data loader may rely on it.
    """
    if os.getppid() == _SERVER:
        np.random.seed()


def _plan_end(_: object) -> None:
    """Make a worker call, at its end, the `atexit` functions of its libraries and its user."""
    if os.getppid() == _SERVER:
        util.Finalize(None, _end, exitpriority=-1)


def _end() -> None:
    atexit._run_exitfuncs()
    for value in gc.get_objects():  # forked processes lose the end of open files
        if issubclass(type(value), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with suppress(Exception):
                # Another thread may hold a pipe for ever.
                if stat.S_ISREG(os.fstat(value.fileno()).st_mode):
                    value.flush()


def _end_server() -> None:
    """End the server at once: to take its modules down lasts a second after the driver's end."""
    if os.getpid() == _SERVER:
        os._exit(0)


restored = os.environ.pop(REPLACED, "{}")  # absent if Python has replaced a lost server
for name, value in json.loads(restored).items():
    del os.environ[name]
    if value is not None:
        os.environ[name] = value
os.register_at_fork(after_in_child=_begin)
atexit.register(_end_server)
util.register_after_fork(atexit, _plan_end)
gc.freeze()  # modules are never garbage: workers need not look through them
gc.enable()
