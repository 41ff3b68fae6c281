"""Ways of code to reach what no reference shows; the fingerprint lists them as gaps."""

from __future__ import annotations

import builtins
import gc
import importlib
import os
import runpy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_IMPORTS_BY_NAME = "imports by name; name what it imports in depends_on"
_RUNS_TEXT = "runs text as code; change version when that changes"
_READS_ENVIRONMENT = "reads the environment; pass what decides results in config"
_READS_BY_NAME = "finds code by name; name what it finds in depends_on"
_DYNAMIC: tuple[tuple[Any, str], ...] = (
    (importlib.import_module, _IMPORTS_BY_NAME),
    (builtins.__import__, _IMPORTS_BY_NAME),
    (builtins.eval, _RUNS_TEXT),
    (builtins.exec, _RUNS_TEXT),
    (runpy.run_path, _RUNS_TEXT),
    (runpy.run_module, _RUNS_TEXT),
    (sys.modules, _READS_BY_NAME),
    (gc.get_objects, _READS_BY_NAME),
    (os.environ, _READS_ENVIRONMENT),
    (os.getenv, _READS_ENVIRONMENT),
)
"""Objects whose effects cannot be followed, and the remedy."""

_PLACES = (importlib, os, builtins, sys, runpy, gc)

REFLECTIONS: Mapping[str, str] = {
    "globals": _READS_BY_NAME,
    "__subclasses__": _READS_BY_NAME,
    "__globals__": _READS_BY_NAME,
    "__doc__": "documentation does not count; change version when it changes",
    "__annotations__": "only annotations in the source count; name others in depends_on",
    "__code__": "code as data does not count; change version when it changes",
    "__closure__": "code as data does not count; change version when it changes",
}
"""Names by which code reads code as data, and the remedy."""


_SEEDS = "it seeds a generator once for each process, not for each trial; seed it in build()"
_THREADS = "workers have their own number of threads; set it in build()"
_EFFECTS: tuple[tuple[str, str, str], ...] = (
    ("random", "seed", _SEEDS),
    ("numpy.random", "seed", _SEEDS),
    ("numpy.random", "set_state", _SEEDS),
    ("torch", "manual_seed", _SEEDS),
    ("torch.random", "manual_seed", _SEEDS),
    ("torch", "set_num_threads", _THREADS),
)
"""Module and name of functions that change the process in a way that cannot be compared."""


def effect_of(thing: Any, *, seeds_count: bool) -> tuple[str, str] | None:
    """Return the name and the remedy of a function that changes the process of a trainer.

    Parameters
    ----------
    thing
        What statements of a module call when it is imported.
    seeds_count
        Whether seeds have an effect: dasktune seeds all generators for some trainers.
    """
    for module, name, why in _EFFECTS:
        function = getattr(sys.modules.get(module), name, None)
        # The methods of a generator are other objects each time.
        if function is not None and thing == function and (seeds_count or why is not _SEEDS):
            return f"setting {module}.{name}", why
    return None


def dynamic_uses(chain: tuple[str, ...], scope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the part of a dotted name that has effects which cannot be followed, and the remedy."""
    thing = scope.get(chain[0], getattr(builtins, chain[0], None))
    for end, name in enumerate((*chain[1:], ""), start=1):
        for dynamic, why in _DYNAMIC:
            if thing is dynamic:
                yield ".".join(chain[:end]), why
        if not any(thing is place for place in _PLACES):
            return
        thing = getattr(thing, name, None)
