"""Configs as users give them: mappings, and objects that are the same as a mapping."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

from dasktune.errors import ConfigurationError, plain, refuse, shown, text_of
from dasktune.sequences.values import converted

MOST_NESTED: Final = 100
"""How deep mappings, lists and such objects may be nested in a config."""


def plain_config(trainer: object, config: Any) -> dict[str, object]:
    """Return the config of a trainer as JSON values, as far as these are the same without loss.

    Dataclasses, attrs classes, models of pydantic, argparse's namespaces and OmegaConf's configs
    become dicts, and numbers of NumPy Python's. What cannot be converted stays as it is: the
    fingerprint refuses it, unless the trainer's ``ignored_config`` names it.

    Raises
    ------
    ConfigurationError
        If it has no values by name, is nested too deep, or lacks a value.

    Examples
    --------
    >>> plain_config(None, argparse.Namespace(depth=3, rates=(0.1, 0.2)))
    {'depth': 3, 'rates': (0.1, 0.2)}
    """
    if config is None:
        return {}
    values = _opened(config)
    if not isinstance(values, Mapping):
        raise ConfigurationError(
            f"config must be a mapping, got {shown(config)}; write config={{'name': value, ...}}"
        )
    ignored, known = getattr(trainer, "ignored_config", ()), dict[int, tuple[Any, object]]()
    return {
        name: value if name in ignored else _plain(value, known, MOST_NESTED)
        for name, value in values.items()
    }


def config_remedy(value: object) -> str:
    """Return the remedy for a value of a config that is not plain JSON."""
    if isinstance(value, PurePath):
        return "write it as text, such as str(path)"
    if isinstance(value, Enum):
        kind = type(value).__name__
        return f"write its name {value.name!r}, and take {kind}[name] in the trainer"
    if isinstance(value, set | frozenset):
        return "write a list, such as sorted(values)"
    if hasattr(value, "tolist"):
        return "write a list, such as values.tolist()"
    if callable(value):
        return "write its name as text, and look it up in the trainer"
    return "write its values as numbers, texts, lists and dicts"


def _plain(value: Any, known: dict[int, tuple[Any, object]], depth: int) -> object:
    """Return a value of a config; `known` has the holders that were converted, by their ids."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if id(value) in known:  # a list that is in two places, each in two places, and so on
        return known[id(value)][1]
    made, opened = converted(value), _opened(value)
    if depth == 1 and isinstance(opened, Mapping | list | tuple):
        raise ConfigurationError(
            f"config must be nested at most {MOST_NESTED} deep and must not hold itself, got more"
        )
    if isinstance(opened, Mapping):
        made = {name: _plain(item, known, depth - 1) for name, item in opened.items()}
    elif type(opened) in (list, tuple):
        made = type(opened)(_plain(item, known, depth - 1) for item in opened)
    known[id(value)] = value, made
    return made


def _opened(value: Any) -> Any:
    """Return the values by name of an object that has no more than these; others as they are."""
    kind = type(value)
    if kind.__module__.startswith("omegaconf."):
        return _of_omegaconf(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if attributes := getattr(kind, "__attrs_attrs__", ()):
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    if callable(getattr(kind, "model_dump", None)):  # of pydantic
        try:
            return value.model_dump()
        except Exception as error:
            raise ConfigurationError(
                f"config must be a model that model_dump() makes plain, got "
                f"{type(error).__name__}: {plain(text_of(error))}"
            ) from error
    if isinstance(value, argparse.Namespace | SimpleNamespace):
        return vars(value)
    return value


def _of_omegaconf(value: Any) -> Any:
    """Return a config of OmegaConf as dicts and lists, with its interpolations resolved."""
    omegaconf = sys.modules["omegaconf"]
    try:
        values = omegaconf.OmegaConf.to_container(value, resolve=True)
    except (omegaconf.errors.OmegaConfBaseException, ValueError) as error:
        raise ConfigurationError(
            f"config must be resolvable by OmegaConf, got {type(error).__name__}: "
            f"{plain(str(error))}"
        ) from error
    refuse(
        f"{path} must have a value, got '???': OmegaConf has none for it yet"
        for path in _missing(values, "config")
    )
    return values


def _missing(value: Any, path: str) -> list[str]:
    """Return the places of values that OmegaConf lacks."""
    if isinstance(value, dict):
        return [lost for name in value for lost in _missing(value[name], f"{path}[{name!r}]")]
    if isinstance(value, list):
        items = enumerate(value)
        return [lost for place, item in items for lost in _missing(item, f"{path}[{place}]")]
    return [path] if isinstance(value, str) and value == "???" else []
