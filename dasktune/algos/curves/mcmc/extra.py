"""The packages of the extra ``curves``, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dasktune.errors import ConfigurationError


def emcee() -> Any:
    """Return the module of the ensemble sampler; `ConfigurationError` if it is missing."""
    return _imported("emcee")


def optimize() -> Any:
    """Return ``scipy.optimize``; `ConfigurationError` if it is missing."""
    return _imported("scipy.optimize")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigurationError(
            f"CurveEnsemble needs {package}: pip install 'dasktune[curves]'"
        ) from error
