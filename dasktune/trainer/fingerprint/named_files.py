"""The files that own code reads by a name that its source or its config shows.

``yaml.safe_load(open("net.yaml"))`` in `build` decides what is trained, and no source of the
trainer shows what the file holds. Calls that read a file are found in the source. Where the path
is a text, a constant, an item of the config or made of these, the file is known before anything
is trained, and its content counts.
"""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

MOST_BYTES = 1 << 20
"""Size up to which the content of a file counts."""

_READERS = frozenset(
    {
        *("read_text", "read_bytes", "load", "loadtxt", "genfromtxt", "fromfile", "memmap"),
        *("FileIO", "load_file", "loadmat", "imread", "open_dataset"),
    }
)
"""Names of functions and methods that read the file of their first argument, or of their object."""

SOURCES = (".py", ".pyc", ".pyi", ".so", ".pyd")
"""Endings of the names of files that are no data."""

_NAME = re.compile(r"[^\n\0*?<>|]{0,200}\.[A-Za-z0-9_]{1,12}")
_PATH_ATTRIBUTES = ("parent", "name", "stem")


def read_calls(node: ast.AST) -> tuple[ast.expr, ...]:
    """Return the expressions for the paths that the calls in a definition read.

    Examples
    --------
    >>> tree = ast.parse("yaml.safe_load(open('net.yaml')); open('log.txt', 'a')")
    >>> [path_of(path, {}, {}) for path in read_calls(tree)]
    ['net.yaml']
    """
    return tuple(path for item in ast.walk(node) for path in _read_path(item))


def file_names(node: ast.AST) -> tuple[str, ...]:
    """Return the texts in a definition that may be names of files."""
    texts = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
    return tuple(
        sorted({text for text in texts if isinstance(text, str) and _NAME.fullmatch(text)})
    )


def covered_files(paths: Iterable[str], ignored: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the existing files among paths whose content may count, and their sizes in bytes.

    Parameters
    ----------
    ignored
        Files and folders that do not count.
    """
    folders = [*ignored]
    for path in sorted({*paths}):
        whole = os.path.abspath(path)
        if path.endswith(SOURCES) or any(is_below(whole, folder) for folder in folders):
            continue
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status.st_size


def left_out(trainer_class: type, config: Mapping[str, object]) -> list[str]:
    """Return the files and folders that do not count: those of ``ignored_config``, and others."""
    ignored = getattr(trainer_class, "ignored_config", ())
    named = [
        value
        for key, value in config.items()
        if key in ignored and value and isinstance(value, str)
    ]
    return [*map(os.path.abspath, named), "/proc", "/sys"]


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is that of a folder, or of something in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def path_of(
    expression: ast.expr, scope: Mapping[str, Any], config: Mapping[str, Any]
) -> str | None:
    """Return the path that an expression makes, or None if only a run knows it.

    Parameters
    ----------
    expression
        As in `read_calls`.
    """
    value = _evaluated(expression, scope, config)
    return str(value) if isinstance(value, str | PurePath) and str(value) else None


def _read_path(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression for the path that a call reads."""
    if not isinstance(node, ast.Call):
        return
    first = node.args[0] if node.args else _keyword(node, "file", "path", "fname", "filename", "f")
    match node.func:
        case ast.Name(id="open"):
            if first is not None and _is_reading(node, place=1):
                yield first
        case ast.Attribute(attr="open", value=ast.Name(id="io" | "gzip" | "bz2" | "lzma" | "os")):
            if first is not None and _is_reading(node, place=1):
                yield first
        case ast.Attribute(attr="open", value=place):
            if _is_reading(node, place=0):
                yield place
        case ast.Attribute(attr="read_text" | "read_bytes", value=place):
            yield place
        case ast.Name(id=name) | ast.Attribute(attr=name):
            is_reader = name in _READERS or name.startswith("read_")
            is_path = not isinstance(first, ast.Call) or _is_path_call(first)
            is_read_only = _keyword(node, "mode") is None or _is_reading(node, place=99)
            if is_reader and first is not None and is_path and is_read_only:
                yield first


def _is_path_call(node: ast.Call) -> bool:
    match node.func:
        case ast.Name(id="Path" | "str") | ast.Attribute(attr="Path" | "join" | "joinpath"):
            return True
    return False


def _keyword(node: ast.Call, *names: str) -> ast.expr | None:
    return next((item.value for item in node.keywords if item.arg in names), None)


def _is_reading(node: ast.Call, *, place: int) -> bool:
    """Return whether a call of ``open`` reads; a mode that is not known may write."""
    mode = node.args[place] if len(node.args) > place else _keyword(node, "mode")
    if mode is None:
        return True
    return isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbtUc")


def _evaluated(node: ast.AST, scope: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return the text or path of an expression, or None if only a run knows it."""

    def inner(part: ast.AST) -> Any:
        return _evaluated(part, scope, config)

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            value = scope.get(name)
            return value if isinstance(value, str | PurePath) else None
        case ast.Subscript(value=place, slice=ast.Constant(value=str(key))) if _is_config(place):
            value = config.get(key)
            return value if isinstance(value, str) else None
        case ast.Call(
            func=ast.Attribute(attr="get", value=place), args=[ast.Constant(value=str(key)), *_]
        ) if _is_config(place):
            value = config.get(key)
            return value if isinstance(value, str) else None
        case ast.Call(
            func=ast.Attribute(attr="join" | "joinpath" | "Path", value=place), args=parts
        ):
            values = [inner(part) for part in parts]
            if isinstance(start := inner(place), PurePath):
                values = [start, *values]
            known = [value for value in values if value is not None]
            return Path(*known) if known and len(known) == len(values) else None
        case ast.Call(func=ast.Name(id="Path" | "str"), args=[part]):
            value = inner(part)
            return None if value is None else Path(value)
        case ast.Call(func=ast.Attribute(attr="resolve" | "absolute" | "expanduser", value=place)):
            value = inner(place)
            return Path(value).expanduser() if value is not None else None
        case ast.Call(
            func=ast.Attribute(attr="dirname" | "abspath" | "realpath") as call, args=[part]
        ):
            value = inner(part)
            if value is None:
                return None
            return os.path.dirname(value) if call.attr == "dirname" else os.path.abspath(value)
        case ast.Attribute(value=place, attr=name) if name in _PATH_ATTRIBUTES:
            value = inner(place)
            return getattr(value, name) if isinstance(value, PurePath) else None
        case ast.Attribute():
            return _attribute(node, scope)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            start, end = inner(left), inner(right)
            return None if start is None or end is None else Path(start) / end
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            start, end = inner(left), inner(right)
            both = isinstance(start, str) and isinstance(end, str)
            return start + end if both else None
    return None


def _is_config(node: ast.AST) -> bool:
    """Return whether an expression is the trainer's config: ``self.config``, ``run.config``."""
    match node:
        case ast.Attribute(attr="config") | ast.Name(id="config"):
            return True
    return False


def _attribute(node: ast.Attribute, scope: Mapping[str, Any]) -> Any:
    """Return a text or path that is an attribute of a module, or of a class of its own."""
    match node.value:
        case ast.Name(id=name):
            holder = scope.get(name)
            members = vars(holder) if hasattr(holder, "__dict__") else {}
            value = members.get(node.attr)
            return value if isinstance(value, str | PurePath) else None
    return None
