"""The environment of a training (versions and device), recorded with each checkpoint."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata

from dasktune import __version__

NUMERICS = "numerics"
"""Name of the numeric class in the environment of a training on a worker."""


def environment(device: str) -> dict[str, object]:
    """Return the versions and the device of a training in this process; JSON.

    Versions are those of the installed packages, whether imported or not; None for a missing
    package.
    """
    return {
        "dasktune": __version__,
        "python": platform.python_version(),
        "numpy": installed_version("numpy"),
        "torch": installed_version("torch"),
        "device": device,
    }


def is_same_environment(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Return whether two trainings had the same versions and the same kind of device.

    The numeric class counts where both environments name one: older ones do not.

    Examples
    --------
    >>> first, second = {"numpy": "2.1", "device": "cuda:0"}, {"numpy": "2.1", "device": "cuda:1"}
    >>> is_same_environment(first, second)
    True
    >>> is_same_environment(first, {"numpy": "2.1", "device": "cpu"})
    False
    >>> is_same_environment({"numerics": "cuda A100"}, {"numerics": "cuda H100"})
    False
    """
    unnamed = {NUMERICS} if NUMERICS not in one or NUMERICS not in other else set()
    return _what_counts(one, unnamed) == _what_counts(other, unnamed)


def _what_counts(environment: Mapping[str, object], left_out: set[str]) -> dict[str, object]:
    device = str(environment.get("device", "")).partition(":")[0]
    parts = {**environment, "device": device}
    return {name: value for name, value in parts.items() if name not in left_out}


@cache
def installed_version(package: str) -> str | None:
    """Return the version of a package that is installed here, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
