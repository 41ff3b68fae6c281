"""What a state is trained with beside its own code: recorded with each checkpoint."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from dasktune import __version__


def environment(device: str) -> dict[str, object]:
    """Return the versions and the device that training here uses; JSON.

    Versions are those that are installed, None for what is not: what happens to have been
    imported in a process says nothing about what training will import.
    """
    return {
        "dasktune": __version__,
        "python": platform.python_version(),
        "numpy": _installed("numpy"),
        "torch": _installed("torch"),
        "device": device,
    }


@cache
def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
