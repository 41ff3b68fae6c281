"""The members of classes that count for the fingerprint, as they are now.

A class is more than its class statement: attributes and methods are set, replaced and deleted
later, by hand, by decorators, by metaclasses. So the members of the class itself count, except
those that Python or its library makes from the class statement: these differ between versions
of Python, and the statement counts anyway. What dasktune keeps in a class does not count.
"""

from __future__ import annotations

import abc
import functools
import inspect
import re
import typing
from abc import ABCMeta
from collections.abc import Iterator
from enum import Enum
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from dasktune.trainer.base import HARMLESS, OWN

_MADE_BY_PYTHON = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"),
        *("__firstlineno__", "__static_attributes__", "__type_params__", "__classcell__"),
        "__slotnames__",  # pickling an object notes it in its class
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__conditional_annotations__", "__classdictcell__", "__dataclass_params__"),
        # Abstract and generic classes, and protocols.
        *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__"),
        *("_is_protocol", "_is_runtime_protocol", "__protocol_attrs__"),
        *("__callable_proto_members_only__", "__non_callable_proto_members__"),
    }
)
"""Names of members that follow from the class statement; a new version may bring more."""

_LIBRARY = ("collections", "dataclasses", "enum", "typing")
"""Modules whose functions become methods of the classes that they make."""

_SUNDER = re.compile(r"_[^_].*_")
_TUPLE_GETTER = type(vars(inspect.FullArgSpec)["args"])
_KEPT_BY_LIBRARY = frozenset(
    {
        *("__wrapped__", "cache_parameters", "register", "dispatch", "registry", "_clear_cache"),
        *("__module__", "__name__", "__qualname__", "__doc__", "__type_params__"),
        *("__annotations__", "__annotate__"),
    }
)
"""Attributes that `functools` sets on functions."""

_COMPREHENSION = re.compile(r"<(listcomp|setcomp|dictcomp|genexpr)>\.(<locals>\.)?")


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the counting members of a class by name, in the order of their names."""
    values = frozenset(kind.__members__) if issubclass(kind, Enum) else frozenset()
    for name, member in sorted(vars(kind).items()):
        if name in values:
            yield name, _enum_member(member)
        elif not name.startswith((OWN, HARMLESS)) and not _is_made_by_python(kind, name, member):
            yield name, member


def _is_made_by_python(kind: type, name: str, member: Any) -> bool:
    if name in _MADE_BY_PYTHON or typing.is_typeddict(kind):
        return True
    if isinstance(member, (MemberDescriptorType, GetSetDescriptorType, _TUPLE_GETTER)):
        return True  # `__slots__` and `_fields` name them
    if issubclass(kind, Enum) and _SUNDER.fullmatch(name):
        return True
    function = function_of(member)
    return name[:1] == "_" and function is not None and function.__module__ in _LIBRARY


def name_of(function: FunctionType) -> str:
    """Return the qualified name of a function; versions of Python differ in comprehensions."""
    return _COMPREHENSION.sub("", function.__code__.co_qualname)


def attributes_of(function: Any) -> list[tuple[str, Any]]:
    """Return the attributes that were set on a function, in the order of their names."""
    attributes = getattr(function, "__dict__", {})
    names = attributes.keys() - _KEPT_BY_LIBRARY - {HARMLESS}
    return sorted((name, attributes[name]) for name in names)


def field_of(field: Any) -> list[tuple[str, Any]]:
    """Return the parts of a field of a data class that decide what the class does."""
    names = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
    return [(name, getattr(field, name)) for name in names]


def is_generated(kind: type, name: str, function: FunctionType) -> bool:
    """Return whether a data class or a named tuple made a method from text."""
    is_made = "__dataclass_fields__" in vars(kind) or hasattr(kind, "_fields")
    return is_made and name[:2] == "__" and function.__code__.co_filename == "<string>"


def function_of(member: Any) -> FunctionType | None:
    """Return the function of a method, a property or the like, or None."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, member)
    inner = inspect.unwrap(member) if callable(member) else member
    return inner if isinstance(inner, FunctionType) else None


def functions_of(kind: type) -> dict[str, FunctionType]:
    """Return the functions of a class's own methods and properties by name."""
    functions = ((name, function_of(member)) for name, member in vars(kind).items())
    return {name: function for name, function in functions if function is not None}


def parts_of(member: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the kind of a descriptor of Python and its functions; None for anything else."""
    match member:
        case staticmethod() | classmethod():
            return type(member).__name__, (member.__func__,)
        case property():
            return "property", (member.fget, member.fset, member.fdel)
        case functools.cached_property():
            return "cached property", (member.func,)
        case functools.singledispatchmethod():
            return "dispatching method", (member.dispatcher,)
        case functools.partialmethod():
            arguments = (*member.args, *member.keywords.values())
            return f"partial method {list(member.keywords)}", (member.func, *arguments)
        case _:
            return None


def registered_with(kind: type) -> list[type]:
    """Return the classes that were registered with an abstract class, in a stable order."""
    if not isinstance(kind, ABCMeta):
        return []
    known = [reference() for reference in abc._get_dump(kind)[0]]  # type: ignore[attr-defined]
    classes = [each for each in known if each is not None]
    return sorted(classes, key=lambda each: (each.__module__, each.__qualname__))


def _enum_member(member: Enum) -> tuple[Any, dict[str, Any]]:
    """Return value and other attributes of a member."""
    others = {name: value for name, value in sorted(vars(member).items()) if name[:1] != "_"}
    return member.value, others
