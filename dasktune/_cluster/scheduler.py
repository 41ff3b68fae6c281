"""Plugins of dasktune on the scheduler of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakSet

from distributed import Client, SchedulerPlugin

import dasktune

logger = logging.getLogger(__name__)

_ANSWERED: WeakSet[Client] = WeakSet()
"""Clients whose schedulers have answered that they can have plugins: each is asked once."""


def add_plugin(client: Client, make: Callable[[], SchedulerPlugin], seconds: float) -> bool:
    """Add a plugin of dasktune to the scheduler of a client; return whether it is there.

    It is not where dasktune is missing or another version, or where the scheduler runs no code
    of clients. Only the debug log tells that, since nothing depends on it.
    """
    version = dasktune.__version__

    def can_have_plugins() -> bool:
        # Defined here so that it travels by value: dasktune may be missing over there.
        import importlib

        try:
            package = importlib.import_module("dasktune")
        except ImportError:
            return False
        # A folder of that name is a module, too.
        return getattr(package, "__version__", None) == version

    async def ask() -> bool:
        if client not in _ANSWERED:
            if not await client.run_on_scheduler(can_have_plugins):
                return False
            _ANSWERED.add(client)
        await client.register_plugin(make())
        return True

    try:
        return bool(client.sync(ask, callback_timeout=seconds))
    except Exception as error:  # noqa: BLE001 - whatever fails there is no reason to fail here
        logger.debug("the scheduler cannot have a plugin of dasktune: %s", error)
        return False
