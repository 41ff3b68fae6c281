"""The packages of the extra ``curves``, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dasktune.errors import ConfigurationError


def emcee() -> Any:
    """Return the module of the ensemble sampler.

    Raises
    ------
    ConfigurationError
        If it is not installed.
    """
    try:
        return import_module("emcee")
    except ImportError as error:
        raise _missing("emcee") from error


def optimize() -> Any:
    """Return ``scipy.optimize``.

    Raises
    ------
    ConfigurationError
        If it is not installed.
    """
    try:
        return import_module("scipy.optimize")
    except ImportError as error:
        raise _missing("scipy") from error


def _missing(name: str) -> ConfigurationError:
    return ConfigurationError(f"CurveEnsemble needs {name}: pip install dasktune[curves]")
