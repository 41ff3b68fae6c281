"""Keeping other packages of a process away from the trainer's random numbers."""

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
"""Packages that draw from Python's global generator, in their own threads, at any time.

Dask draws eight times a second in a process with an idle cluster; clients of object stores and
databases draw when they retry.
"""


def give_own_generator(packages: Collection[str] = PACKAGES) -> list[str]:
    """Give packages a copy of Python's `random`; return the names of the changed attributes.

    Otherwise their jitter, sampling and choices would move the global generator between two
    draws of the trainer, and training would not be reproducible bit for bit. The change applies
    to the loaded modules of this process.

    Examples
    --------
    >>> give_own_generator(["no_such_package"])
    []
    """
    own = _copy_of_random()
    shared = random.random.__self__  # type: ignore[attr-defined]
    changed = []
    for name, module in sys.modules.copy().items():
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
