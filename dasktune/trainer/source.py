"""The source of functions and classes, reduced to what decides what they do.

Two sources that differ in comments, docstrings, blank lines, indentation, line breaks,
quotes, brackets that change nothing or trailing commas that make no tuple have one
canonical form, the same in every version of Python. It is made from the syntax tree,
where none of those exist.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from dasktune.errors import ConfigurationError

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One function or class as it is written.

    Parameters
    ----------
    canonical
        Its syntax as lists and strings.
    names
        What it reads from outside itself, as dotted chains: ``("np", "tanh")``.
    """

    canonical: Any
    names: tuple[tuple[str, ...], ...]


class Sources:
    """Finds definitions in files, each of which is read once.

    The file must be as it was when it was imported, as for everything that shows source.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[ast.Module, CodeType]] = {}

    def piece(self, thing: FunctionType | type) -> Piece:
        """Return the source of a function or class.

        Raises
        ------
        ConfigurationError
            If there is none, as for what was typed into an interpreter.
        """
        file = _file_of(thing)
        if file is None or (parsed := self._parsed(file, thing)) is None:
            raise _no_source(thing, file)
        tree, compiled = parsed
        node = _class_node(tree, thing) if isinstance(thing, type) else _function_node(tree, thing)
        if node is None:
            raise _no_source(thing, file)
        return Piece(canonical=canonical(node), names=_names(node, compiled))

    def _parsed(self, file: str, thing: Any) -> tuple[ast.Module, CodeType] | None:
        if file not in self._files:
            linecache.checkcache(file)
            lines = linecache.getlines(file, getattr(thing, "__globals__", None))
            if not lines:
                return None
            tree = ast.parse("".join(lines))
            self._files[file] = tree, compile(tree, file, "exec", dont_inherit=True)
        return self._files[file]


def canonical(node: object) -> Any:
    """Return a syntax tree as nested lists of strings.

    Examples
    --------
    >>> one = canonical(ast.parse("f( 'a',  1, )  # why"))
    >>> two = canonical(ast.parse('f("a", 0x1)'))
    >>> one == two
    True
    """
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *(canonical(part) for part in _merged(node.values))]
    if isinstance(node, ast.AST):
        fields = [
            [name, canonical(_without_docstring(node, name, value))]
            for name, value in ast.iter_fields(node)
            # Empty fields come and go between versions of Python.
            if name not in _IGNORED_FIELDS and value is not None and value != []
        ]
        return [type(node).__name__, *fields]
    if isinstance(node, list):
        return [canonical(item) for item in node if not isinstance(item, ast.Pass)]
    return node if isinstance(node, str) else repr(node)


def _constant(value: Any) -> list[str]:
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    return [type(value).__name__, value if isinstance(value, str) else str(value)]


def _merged(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string with neighbouring texts joined and empty ones left out.

    Versions of Python cut them differently.
    """
    merged: list[ast.expr] = []
    for value in values:
        last = merged[-1] if merged else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            merged[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged


def _without_docstring(node: ast.AST, name: str, value: Any) -> Any:
    holders = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    if name != "body" or not isinstance(node, holders) or ast.get_docstring(node) is None:
        return value
    return value[1:]


def _file_of(thing: FunctionType | type) -> str | None:
    if not isinstance(thing, type):
        return thing.__code__.co_filename
    if (method := _own_method(thing)) is not None:
        return method.__code__.co_filename
    return getattr(sys.modules.get(thing.__module__), "__file__", None)


def _own_method(thing: type) -> FunctionType | None:
    """Return a method that was written in the class: it knows file and line of its source."""
    for member in vars(thing).values():
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
        if (
            isinstance(function, FunctionType)
            and function.__qualname__ == f"{thing.__qualname__}.{function.__name__}"
            # Generated ones, as a dataclass has, lie in "<string>".
            and linecache.getlines(function.__code__.co_filename, function.__globals__)
        ):
            return function
    return None


def _class_node(tree: ast.Module, thing: type) -> ast.ClassDef | None:
    found = [node for name, node in _classes(tree, "") if name == thing.__qualname__]
    method = _own_method(thing)
    if method is not None:
        line = method.__code__.co_firstlineno
        found = [node for node in found if node.lineno <= line <= (node.end_lineno or line)]
    return found[-1] if found else None


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes below a node with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _classes(child, prefix)


def _function_node(tree: ast.Module, thing: FunctionType) -> ast.AST | None:
    code = thing.__code__
    for node in ast.walk(tree):
        if isinstance(node, _Definition) and _place(node) == (code.co_name, code.co_firstlineno):
            return node
    return None


def _place(node: _Definition) -> tuple[str, int]:
    """Return name and first line, as the code object of the node has them."""
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min([node.lineno, *(item.lineno for item in node.decorator_list)])


def _names(node: ast.AST, compiled: CodeType) -> tuple[tuple[str, ...], ...]:
    read = _read_outside(node) | {
        name
        for code in _codes(compiled)
        if isinstance(node, _Definition) and (code.co_name, code.co_firstlineno) == _place(node)
        for name in _read_by(code)
    }
    return tuple(sorted({chain for chain in _chains(node) if chain[0] in read}))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read_by(code: CodeType) -> set[str]:
    """Return the names that code, or code within it, does not define itself."""
    return {
        str(instruction.argval)
        for part in _codes(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname.startswith(_READS)
    }


def _read_outside(node: ast.AST) -> set[str]:
    """Return the names read where the definition stands: decorators, bases, defaults."""
    parts: list[ast.AST | None] = [*getattr(node, "decorator_list", [])]
    if isinstance(node, ast.ClassDef):
        parts += [*node.bases, *node.keywords]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        parts += [*node.args.defaults, *node.args.kw_defaults]
    return {
        item.id
        for part in parts
        if part is not None
        for item in ast.walk(part)
        if isinstance(item, ast.Name)
    }


def _chains(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the names in a node with the attributes that are taken of them."""
    chain = _chain(node)
    if chain:
        yield chain
        return
    for child in ast.iter_child_nodes(node):
        yield from _chains(child)


def _chain(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (start := _chain(node.value)):
        return (*start, node.attr)
    return ()


def _no_source(thing: Any, file: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"the source of {thing.__qualname__} cannot be read (it is said to be in {file!r}); "
        "define it in a file or a notebook cell, so that a change of it can be noticed"
    )
