"""Keeping the machinery of a process out of the trainer's random numbers."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from importlib.util import find_spec, module_from_spec
from types import ModuleType

PACKAGES = (
    *("dask", "distributed", "tornado"),
    *("aiohttp", "botocore", "gcsfs", "urllib3"),
    *("psycopg", "sqlalchemy", "tenacity"),
)
"""They draw from Python's global generator, in their own threads, at any time.

Dask does so eight times a second in a process with a cluster that does nothing; clients of object
storage and of databases do when they try again.
"""


def give_own_generator(packages: Collection[str] = PACKAGES) -> list[str]:
    """Let packages draw from a copy of Python's `random`; return what was changed.

    Jitter, sampling of sizes and choice of peers would otherwise move the global generator
    between two draws of the trainer, and no state could be made again bit for bit. Only
    modules that are loaded change; this process only.

    Examples
    --------
    >>> give_own_generator(["no_such_package"])
    []
    """
    own = _copy_of_random()
    shared = random.random.__self__  # type: ignore[attr-defined]
    changed = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in packages:
            continue
        for attribute, value in list(vars(module).items()):
            if value is random:
                setattr(module, attribute, own)
            elif getattr(value, "__self__", None) is shared:
                setattr(module, attribute, getattr(own, value.__name__))
            else:
                continue
            changed.append(f"{name}.{attribute}")
    return changed


def _copy_of_random() -> ModuleType:
    """Return a second `random` module, with a global generator of its own."""
    spec = find_spec("random")
    if spec is None or spec.loader is None:
        raise ImportError("the module random cannot be found")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
