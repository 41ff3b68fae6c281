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
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PARSING = threading.Lock()
"""Python counts the depth of a tree that is being made for all threads together in 3.11."""

_Place = tuple[str, int]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A name that an import statement binds where it runs.

    Parameters
    ----------
    name
        What it is called from there on.
    module
        The module as it is written, dots of a relative import included.
    attribute
        What is taken from the module; None for the module itself.
    """

    name: str
    module: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One function, class or module as it is written.

    Parameters
    ----------
    canonical
        Its syntax as lists and strings.
    names
        What it reads from outside itself, as dotted chains: ``("np", "tanh")``.
    imports
        What it imports when it runs.
    imported_names
        The chains that begin with what it imports.
    """

    canonical: Any
    names: tuple[tuple[str, ...], ...]
    imports: tuple[Import, ...] = ()
    imported_names: tuple[tuple[str, ...], ...] = ()


class Sources:
    """Finds definitions in files, each of which is read once.

    The file must be as it was when it was imported, as for everything that shows source.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File | None] = {}

    def piece(self, thing: FunctionType | type) -> Piece | None:
        """Return the source of a function or class; None if there is none to be found."""
        if isinstance(thing, type):
            return self._class_piece(thing)
        file = self._file(thing.__code__.co_filename, thing.__globals__)
        node = None if file is None else _function_node(file, thing.__code__)
        return None if file is None or node is None else _piece(node, file)

    def module(self, module: ModuleType) -> Piece | None:
        """Return the source of a module, that of a package with all modules in it."""
        folders = [Path(folder) for folder in getattr(module, "__path__", ())]
        files = {
            found.relative_to(folder).as_posix(): str(found)
            for folder in folders
            for found in folder.rglob("*.py")
        }
        if not folders and (path := getattr(module, "__file__", None)) is not None:
            files = {"": path}
        trees = [(name, one.tree) for name in sorted(files) if (one := self._file(files[name]))]
        chains = {chain for _, tree in trees for chain in _chains(tree)}
        imported = {(one.name,) for _, tree in trees for one in _imports(tree)}
        return (
            Piece(
                canonical=[[name, canonical(tree)] for name, tree in trees],
                names=tuple(sorted(chains | imported)),
            )
            if trees
            else None
        )

    def _class_piece(self, thing: type) -> Piece | None:
        for method in _own_methods(thing):
            code = method.__code__
            file = self._file(code.co_filename, method.__globals__)
            if file is not None and (node := file.class_node(thing, code.co_firstlineno)):
                return _piece(node, file)
        for name in _files_of(thing):
            file = self._file(name)
            if file is not None and (node := file.class_node(thing, None)):
                return _piece(node, file)
        return None

    def _file(self, name: str, namespace: dict[str, Any] | None = None) -> _File | None:
        if name not in self._files:
            linecache.checkcache(name)
            lines = linecache.getlines(name, namespace)
            self._files[name] = _File("".join(lines), name) if lines else None
        return self._files[name]


class _File:
    """The syntax tree of a file, and what its definitions compile to."""

    def __init__(self, text: str, name: str) -> None:
        with _PARSING:
            self.tree = ast.parse(text)
            compiled = compile(self.tree, name, "exec", dont_inherit=True)
        self.classes = list(_classes(self.tree, ""))
        self.functions: dict[_Place, list[ast.AST]] = defaultdict(list)
        for node in ast.walk(self.tree):
            if isinstance(node, _Definition) and not isinstance(node, ast.ClassDef):
                self.functions[_place(node)].append(node)
        self.codes: dict[_Place, list[CodeType]] = defaultdict(list)
        for code in _codes(compiled):
            self.codes[code.co_name, code.co_firstlineno].append(code)

    def class_node(self, thing: type, line: int | None) -> ast.ClassDef | None:
        """Return the class of a name, the last one; with a line, the one around it."""
        found = [node for name, node in self.classes if name == thing.__qualname__]
        if line is not None:
            found = [node for node in found if node.lineno <= line <= (node.end_lineno or line)]
        return found[-1] if found else None


def _files_of(thing: type) -> list[str]:
    """Return the files in which a class without methods may be: its module's, or any cell."""
    path = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if path is not None:
        return [path]
    # As IPython names the cells of a notebook; the last one that was run comes first.
    cells = ("<ipython-input", "ipykernel")
    return [name for name in reversed(linecache.cache) if any(one in name for one in cells)]


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
            [name, canonical(value)]
            for name, value in ast.iter_fields(node)
            # Empty fields come and go between versions of Python.
            if name not in _IGNORED_FIELDS and value is not None and value != []
        ]
        return [type(node).__name__, *fields]
    if isinstance(node, list):
        return [canonical(item) for item in node if not _does_nothing(item)]
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


def _does_nothing(node: object) -> bool:
    """Return whether a statement is `pass` or a text that stands alone, as docstrings do."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.Pass)


def _own_methods(thing: type) -> Iterator[FunctionType]:
    """Yield the methods that bear the name of their class: they know where their source is."""
    for member in vars(thing).values():
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
        if (
            isinstance(function, FunctionType)
            and function.__qualname__ == f"{thing.__qualname__}.{function.__name__}"
            # Those of a named tuple were written elsewhere.
            and function.__module__ == thing.__module__
        ):
            yield function


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


def _function_node(file: _File, code: CodeType) -> ast.AST | None:
    """Return the function that a code object was compiled from."""
    found = file.functions.get((code.co_name, code.co_firstlineno), [])
    if len(found) < 2:
        return found[0] if found else None
    # Several lambdas in one line: the innermost of those that hold all of the code.
    places = [place for place in code.co_positions() if place[2] is not None and place[3]]
    holding = [node for node in found if all(_holds(node, place) for place in places)]
    return holding[-1] if holding else None


def _holds(node: ast.AST, place: tuple[int | None, ...]) -> bool:
    """Return whether an instruction at first and last line, first and last column is in a node."""
    first, last, start, stop = (part or 0 for part in place)
    begin = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    return begin <= (first, start) and (last, stop) <= end


def _place(node: _Definition) -> _Place:
    """Return name and first line, as the code object of the node has them."""
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min([node.lineno, *(item.lineno for item in node.decorator_list)])


def _piece(node: ast.AST, file: _File) -> Piece:
    codes = file.codes[_place(node)] if isinstance(node, _Definition) else []
    read = _read_outside(node) | {name for code in codes for name in _read_by(code)}
    imports = tuple(_imports(node))
    imported = {one.name for one in imports}
    chains = sorted(set(_chains(node)))
    return Piece(
        canonical=canonical(node),
        names=tuple(chain for chain in chains if chain[0] in read),
        imports=imports,
        imported_names=tuple(chain for chain in chains if chain[0] in imported),
    )


def _imports(node: ast.AST) -> Iterator[Import]:
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom):
            module = "." * one.level + (one.module or "")
            for name in one.names:
                yield Import(name=name.asname or name.name, module=module, attribute=name.name)
        elif isinstance(one, ast.Import):
            for name in one.names:
                yield Import(name=name.asname or name.name.partition(".")[0], module=name.name)


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
