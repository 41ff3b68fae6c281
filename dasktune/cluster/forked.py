"""The last import of the fork server: it makes its workers like new interpreters.

Nothing else may import it.
"""

from __future__ import annotations

import atexit
import gc
import os
from multiprocessing import util

import numpy as np

_SERVER = os.getpid()


def _begin() -> None:
    """Give a worker its own state of NumPy's global generator.

    A worker that forks, itself, leaves it alone: a data loader may rely on it.
    """
    if os.getppid() == _SERVER:
        np.random.seed()


def _plan_end(_: object) -> None:
    """Have a worker call at its end what its libraries, or the user, asked Python to call."""
    if os.getppid() == _SERVER:
        util.Finalize(None, atexit._run_exitfuncs, exitpriority=-1)


os.register_at_fork(after_in_child=_begin)
util.register_after_fork(atexit, _plan_end)
gc.freeze()  # modules are never garbage: workers need not look through them
