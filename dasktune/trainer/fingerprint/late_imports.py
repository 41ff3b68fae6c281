"""The own modules that a trainer imports when it runs: workers must have the same files.

Code that travels by value takes along what it refers to, but not what its functions import when
they run. A worker takes these modules from its own disk, or has loaded them for an earlier study.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from types import ModuleType

from dasktune.trainer.fingerprint.source import Sources

_SEEN: dict[str, str] = {}
"""The digests that modules had in this process when they were looked at first, by name."""


def digests_of(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """Return the digests of the code of modules by name, of the packages around them, too."""
    sources = Sources()
    names = {name for module in modules for name in _with_packages(module)}
    digests = {
        name: sources.file_digest(sys.modules[name]) for name in sorted(names & sys.modules.keys())
    }
    return {name: digest for name, digest in digests.items() if digest is not None}


def differing_modules(digests: Mapping[str, str]) -> Iterator[str]:
    """Yield the modules whose code is another one in this process, with their files.

    A module that is not here is left out: its import says so.

    Parameters
    ----------
    digests
        As `digests_of` returned them in the other process.
    """
    sources = Sources()
    for name in sorted(digests):
        loaded = sys.modules.get(name)
        file = getattr(loaded, "__file__", None) if loaded is not None else _file_of(name)
        if file is None:
            continue
        if loaded is not None and name in _SEEN:
            digest: str | None = _SEEN[name]
        elif loaded is not None:
            digest = sources.file_digest(loaded)
        else:
            digest = sources.file_digest(ModuleType(name), file)
        if digest is None:
            continue
        if digest != digests[name]:
            yield f"{name} ({file})"
        else:
            _SEEN[name] = digest


def _with_packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _file_of(name: str) -> str | None:
    try:
        spec = find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    return None if spec is None or not spec.has_location else spec.origin
