"""The environment of a training (versions and device), recorded with each checkpoint."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

from dasktune import __version__


def environment(device: str) -> dict[str, object]:
    """Return the versions and the device of a training in this process; JSON.

    Versions are those of the installed packages, whether imported or not; None for a missing
    package.
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
