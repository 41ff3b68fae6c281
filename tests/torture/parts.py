"""The parts of dasktune from which a simulated study is made; a planted bug replaces one."""

from __future__ import annotations

from dataclasses import dataclass

from dasktune._driver.attempts import Attempts
from dasktune._driver.history import History
from dasktune._driver.leases import Leasing
from dasktune._driver.orders import PendingOrders
from dasktune._driver.recorder import Recorder
from dasktune._driver.retention.evict import Evictor
from dasktune._driver.reuse import KnownStates
from dasktune._driver.shared_stages import SharedStages
from dasktune._engine.engine import Engine
from dasktune.graph.dispatch import Dispatcher
from dasktune.storage.database.kept_writes import KeptWrites
from tests.torture.files import MemoryFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The classes of the parts of a driver.

    Attributes
    ----------
    bug
        Name of the planted bug; the empty string for the parts that users run.
    """

    bug: str = ""
    dispatcher: type[Dispatcher] = Dispatcher
    engine: type[Engine] = Engine
    attempts: type[Attempts] = Attempts
    known_states: type[KnownStates] = KnownStates
    history: type[History] = History
    recorder: type[Recorder] = Recorder
    orders: type[PendingOrders] = PendingOrders
    evictor: type[Evictor] = Evictor
    leasing: type[Leasing] = Leasing
    sharing: type[SharedStages] = SharedStages
    kept: type[KeptWrites] = KeptWrites
    files: type[MemoryFiles] = MemoryFiles


PARTS = Parts()
"""The parts that users run."""
