"""Importing a framework, or saying how to install it."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dasktune.errors import ConfigurationError


def framework(package: str, *, extra: str) -> Any:
    """Return the module of a framework.

    Parameters
    ----------
    package
        Its import name, such as ``"xgboost"``.
    extra
        The extra of dasktune that installs it.

    Raises
    ------
    ConfigurationError
        If it is not installed.

    Examples
    --------
    >>> framework("math", extra="torch").sqrt(9.0)
    3.0
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ConfigurationError(_missing(package, extra)) from error


def refuse_missing(package: str, *, extra: str) -> None:
    """Refuse a framework that is missing; it is only looked for, which is faster than an import.

    Parameters
    ----------
    package
        Its import name.
    extra
        The extra of dasktune that installs it.

    Raises
    ------
    ConfigurationError
        If it is not installed.
    """
    if package not in sys.modules and find_spec(package) is None:
        raise ConfigurationError(_missing(package, extra))


def _missing(package: str, extra: str) -> str:
    return f"{package} must be installed: pip install 'dasktune[{extra}]'"
