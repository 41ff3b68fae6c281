"""Packages whose names are imported on first use, and packages that users call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from dasktune._garbage import without_collections


def import_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package that imports its names on first use.

    Parameters
    ----------
    package
        The package's ``__name__``.

    Examples
    --------
    >>> import_on_use("example", {"sqrt": "math"})("sqrt")(9.0)
    3.0
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with without_collections():
            module = import_module(homes[name])
        # A package that users call, such as dasktune.simulate, is the name itself.
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return get


def method_of(home: str) -> Callable[..., Any]:
    """Return a method that is defined in a later layer, and is imported when it is called.

    So a class shows itself as a picture in a notebook, or writes its report, without an import of
    the pictures or the page.

    Parameters
    ----------
    home
        Module and function: ``module:function``. The function gets the object, then the arguments.

    Examples
    --------
    >>> class Name(str):
    ...     quoted = method_of("shlex:quote")
    >>> Name("two words").quoted()
    "'two words'"
    """
    module, _, name = home.partition(":")

    def method(self: Any, *arguments: Any) -> Any:
        return getattr(import_module(module), name)(self, *arguments)

    return method


def make_callable(package: str, function: Callable[..., Any]) -> None:
    """Make a package, such as ``dasktune.simulate``, callable as one of its functions."""

    class CallableModule(ModuleType):
        """A package that is also a function."""

        __call__ = staticmethod(function)

    sys.modules[package].__class__ = CallableModule
