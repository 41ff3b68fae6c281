"""Calling what users hand over (classes and functions) with hyper-parameters by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.types import Value

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_of(
    maker: Callable[..., Any], values: Mapping[str, Value], config: Mapping[str, object]
) -> dict[str, Any]:
    """Return the values, and the entries of config, that the parameters of a maker name.

    A maker with ``**others`` gets all values.

    Raises
    ------
    ConfigurationError
        If a required parameter gets nothing.

    Examples
    --------
    >>> arguments_of(lambda lr, folder, width=8: 0, {"lr": 0.1, "seed": 1}, {"folder": "data"})
    {'folder': 'data', 'lr': 0.1}
    """
    parameters = inspect.signature(maker).parameters.values()
    named = {each.name: each for each in parameters if each.kind in _NAMED}
    given = {**config, **values}
    for name, each in named.items():
        if each.default is each.empty and name not in given:
            raise ConfigurationError(
                f"{name_of(maker)} needs {name!r}, which is neither a hyper-parameter nor in "
                f"config; there are {', '.join(sorted(given)) or 'none'}"
            )
    taken = {name: value for name, value in given.items() if name in named}
    return {**taken, **values} if _takes_all(maker) else taken


def refuse_unknown(values: Mapping[str, Value], *makers: Callable[..., Any]) -> None:
    """Refuse a hyper-parameter that is the parameter of no maker.

    Raises
    ------
    ConfigurationError
        If there is one.

    Examples
    --------
    >>> refuse_unknown({"lr": 0.1}, lambda lr: 0, lambda folder: 0)
    """
    if any(map(_takes_all, makers)):
        return
    known = [(name_of(maker), [*inspect.signature(maker).parameters]) for maker in makers]
    for name in sorted(values.keys() - {name for _, names in known for name in names}):
        takers = "; ".join(f"{maker} takes {', '.join(names)}" for maker, names in known)
        raise ConfigurationError(f"nothing takes the hyper-parameter {name!r}: {takers}")


def name_of(maker: Callable[..., Any]) -> str:
    """Return the name of a class or function, for messages."""
    return getattr(maker, "__qualname__", repr(maker))


def is_same(first: object, second: object) -> bool:
    """Return whether two values are the same for state keys: of one type, and equal.

    Examples
    --------
    >>> is_same(1, 1), is_same(1, 1.0)
    (True, False)
    """
    return type(first) is type(second) and bool(first == second)


def refuse_ineffective(changed: Mapping[str, Value], used: Collection[str], where: str) -> None:
    """Refuse a value that changes while nothing takes it over.

    Raises
    ------
    ConfigurationError
        If there is one.
    """
    for name in sorted(changed.keys() - set(used)):
        raise ConfigurationError(
            f"the value of {name!r} changes, and nothing takes it over: no optimizer has it as an "
            f"option, and {where}; keep it constant"
        )


def reads(kind: type, name: str, *, apart_from: frozenset[str]) -> bool:
    """Return whether the user's methods of a class, apart from some, name an attribute.

    Examples
    --------
    >>> class Net:
    ...     def __init__(self, width):
    ...         self.width = width
    ...     def loss(self):
    ...         return self.hparams["weight"]
    >>> [reads(Net, name, apart_from=frozenset({"__init__"})) for name in ("width", "weight")]
    [False, True]
    """
    return any(
        _names(member.__code__, name)
        for base in kind.__mro__
        if not base.__module__.startswith(("torch", "lightning", "pytorch_lightning"))
        for key, member in vars(base).items()
        if isinstance(member, FunctionType) and key not in apart_from
    )


def _names(code: CodeType, name: str) -> bool:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return name in code.co_names or name in code.co_consts or any(_names(c, name) for c in inner)


def _takes_all(maker: Callable[..., Any]) -> bool:
    parameters = inspect.signature(maker).parameters.values()
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
