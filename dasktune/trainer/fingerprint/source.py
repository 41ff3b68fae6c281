"""The source of functions and classes in a canonical form, equal for equal behaviour.

Comments, docstrings, blank lines, indentation, line breaks, quotes, redundant brackets and
trailing commas do not change the canonical form. It is made from the syntax tree, which has
none of them, and is the same in every version of Python.
"""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import linecache
import sys
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dasktune.trainer.base import HARMLESS
from dasktune.trainer.fingerprint.data import json_digest
from dasktune.trainer.fingerprint.dynamic import REFLECTIONS
from dasktune.trainer.fingerprint.named_files import file_names, read_calls
from dasktune.trainer.fingerprint.written import NOTHING_WRITTEN, WrittenGlobals, written_in
from dasktune.trainer.parsing import parsed

_Place = tuple[str, int]
_Callable = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Statement = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_KINDS = ("staticmethod", "classmethod", "property")
_IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")
_FUTURES = reduce(
    or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """A name that an import statement binds at run time.

    Parameters
    ----------
    module
        The module as written, with the dots of a relative import.
    attribute
        The imported attribute; None for the module itself.
    """

    name: str
    module: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The source of one function, class or module.

    Parameters
    ----------
    names
        The outside names that it reads, as dotted chains: ``("np", "tanh")``.
    imports
        The imports that it makes at run time.
    imported_names
        The chains that begin with an imported name.
    global_names
        The names that it looks up as ``globals()["name"]``.
    reflections
        Its ways to read code as data, such as ``__subclasses__``.
    settings
        The attributes that statements of its module set, as dotted chains.
    calls
        The functions that statements of its module call, as dotted chains.
    written
        The global names that a function writes.
    reads
        Of a function, the expressions for the paths of the files that it reads.
    file_names
        Of a function, texts that may be names of files.
    is_running
        Of a function, whether the source is that of its code. It is not if the file was changed
        after the import, or if another program has rewritten the code.
    methods
        Of a class, the last function of each name in its body; they do not count in the other
        fields, because a class may have other methods now.
    """

    canonical: Any
    names: tuple[tuple[str, ...], ...]
    imports: tuple[Import, ...] = ()
    imported_names: tuple[tuple[str, ...], ...] = ()
    global_names: tuple[str, ...] = ()
    reflections: tuple[str, ...] = ()
    settings: tuple[tuple[str, ...], ...] = ()
    calls: tuple[tuple[str, ...], ...] = ()
    written: WrittenGlobals = NOTHING_WRITTEN
    reads: tuple[ast.expr, ...] = ()
    file_names: tuple[str, ...] = ()
    is_running: bool = True
    decorators: int = 0
    methods: Mapping[str, Piece] = field(default_factory=dict)


class Sources:
    """Finds definitions in files, and reads each file once.

    A file must not have changed between its import and the first time that it is read here. Later
    the source of running code is the one that was read first: a change of the file changes
    nothing until it is imported again, which makes other code objects.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File | None] = {}
        self._texts: dict[tuple[str, str], _File] = {}

    def piece(self, thing: FunctionType | type) -> Piece | None:
        """Return the source of a function or class, or None."""
        if isinstance(thing, type):
            return self._class_piece(thing)
        code = thing.__code__
        file = self._file_of(code, code.co_filename, thing.__globals__)
        node = None if file is None else _function_node(file, code)
        if file is None or node is None:
            return None
        if _running_text(code) is not None:
            return _piece(node, file)
        is_running = file.has_code(node, code)
        if is_running:
            _note_running(code, file.text)
        return replace(_piece(node, file), is_running=is_running)

    def definition(
        self, code: CodeType, namespace: dict[str, Any] | None = None
    ) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
        """Return the syntax tree of running code; None if its source is unknown or has changed."""
        file = self.file(code.co_filename, namespace)
        node = None if file is None else _function_node(file, code)
        if file is None or node is None:
            return None
        return node if file.has_code(node, code) else None

    def tree(self, code: CodeType, namespace: dict[str, Any] | None = None) -> ast.Module | None:
        """Return the syntax tree of the file of running code; None if its source is unknown."""
        file = self.file(code.co_filename, namespace)
        return None if file is None else file.tree

    def module(self, module: ModuleType) -> Piece | None:
        """Return the source of a module; of a package, with all modules in it."""
        folders = [Path(folder) for folder in getattr(module, "__path__", ())]
        files = {
            path.relative_to(folder).as_posix(): str(path)
            for folder in folders
            for path in folder.rglob("*.py")
        }
        if not folders and (own := getattr(module, "__file__", None)) is not None:
            if (file := self._file_of(module, own)) is None:
                return None
            _note_running(module, file.text)
            trees = [("", file.tree)]
        else:
            trees = [
                (name, file.tree) for name in sorted(files) if (file := self.file(files[name]))
            ]
        if not trees:
            return None
        chains = {chain for _, tree in trees for chain in _chains(tree)}
        imported = {(item.name,) for _, tree in trees for item in _imports(tree)}
        return Piece(
            canonical=[[name, canonical(tree)] for name, tree in trees],
            names=tuple(sorted(chains | imported)),
            settings=tuple(sorted({chain for _, tree in trees for chain in _settings(tree)})),
            calls=tuple(sorted({chain for _, tree in trees for chain in _calls(tree)})),
            written=written_in(trees[0][1]) if len(trees) == 1 else NOTHING_WRITTEN,
        )

    def file_digest(self, module: ModuleType, file: str | None = None) -> str | None:
        """Return the digest of the code in the file of a module, or None if it cannot be read.

        Parameters
        ----------
        file
            The file to read if the module is not loaded; None takes the module's own.
        """
        name = file or getattr(module, "__file__", None)
        if name is None or not name.endswith(".py"):
            return None
        read = self.file(name) if file else self._file_of(module, name)
        if read is None:
            return None
        if file is None:
            _note_running(module, read.text)
        return json_digest(canonical(read.tree))

    def _class_piece(self, thing: type) -> Piece | None:
        for method in _own_methods(thing):
            code = method.__code__
            file = self._file_of(code, code.co_filename, method.__globals__)
            if file is not None and (node := file.class_node(thing, code.co_firstlineno)):
                return _piece(node, file)
        for name in _files_of(thing):
            file = self._file_of(thing, name)
            if file is not None and (node := file.class_node(thing, None)):
                _note_running(thing, file.text)
                return _piece(node, file)
        return None

    def _file_of(
        self,
        thing: CodeType | type | ModuleType,
        name: str,
        namespace: dict[str, Any] | None = None,
    ) -> _File | None:
        """Return the file of a running thing as it was when its source was first read."""
        text = _running_text(thing)
        return self.file(name, namespace) if text is None else self._text(text, name)

    def _text(self, text: str, name: str) -> _File:
        if (text, name) not in self._texts:
            self._texts[text, name] = _parsed(text, name)
        return self._texts[text, name]

    def file(self, name: str, namespace: dict[str, Any] | None = None) -> _File | None:
        """Return the parsed file of a name; None if its source is unknown."""
        if name not in self._files:
            linecache.checkcache(name)
            lines = linecache.getlines(name, namespace)
            self._files[name] = self._text("".join(lines), name) if lines else None
        return self._files[name]


class _File:
    """The syntax tree of a file, and the code objects of its definitions; they do not change.

    Attributes
    ----------
    pieces
        The pieces that were read, by their node.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self._name = text, name
        self.tree = parsed(text)
        compiled = compile(self.tree, name, "exec", dont_inherit=True)
        self.pieces: dict[ast.AST, Piece] = {}
        self.classes = list(_classes(self.tree, ""))
        self.functions: dict[_Place, list[_Callable]] = defaultdict(list)
        for node in ast.walk(self.tree):
            if isinstance(node, _Callable):
                self.functions[_place(node)].append(node)
        self.settings = tuple(sorted(set(_settings(self.tree))))
        self.calls = tuple(sorted(set(_calls(self.tree))))
        self._codes: dict[_Place, list[CodeType]] = defaultdict(list)
        for code in _codes(compiled):
            self._codes[code.co_name, code.co_firstlineno].append(code)

    def codes_at(self, node: _Definition) -> Sequence[CodeType]:
        """Return the code objects that were compiled from a definition."""
        return self._codes.get(_place(node), ())

    def has_code(self, node: _Definition, running: CodeType) -> bool:
        """Return whether running code was compiled from a definition.

        IPython compiles the statements of a cell one by one. A function that calls
        ``time.sleep`` has other instructions where ``import time`` was compiled with it.
        """
        content = code_content(running)
        if any(code_content(code) == content for code in self.codes_at(node)):
            return True
        (statement,) = (each for each in self.tree.body if _holds_node(each, node))
        alone = ast.Module(body=[statement], type_ignores=[])
        flags = running.co_flags & _FUTURES  # those of an earlier cell
        compiled = compile(alone, self._name, "exec", flags, dont_inherit=True)
        place = _place(node)
        return any(
            code_content(code) == content
            for code in _codes(compiled)
            if (code.co_name, code.co_firstlineno) == place
        )

    def class_node(self, thing: type, line: int | None) -> ast.ClassDef | None:
        """Return the last class of a name; with a line, the last one around that line."""
        nodes = [node for name, node in self.classes if name == thing.__qualname__]
        if line is not None:
            nodes = [node for node in nodes if node.lineno <= line <= (node.end_lineno or line)]
        return nodes[-1] if nodes else None


_MOST_RUNNING = 50_000
_RUNNING: dict[int, tuple[weakref.ref[Any], object, str]] = {}
"""The text of the file of a code object, a class without methods, or a module, by its identity.

The second item is the specification of a module: it is another one after the module was loaded
again.
"""


def _note_running(thing: CodeType | type | ModuleType, text: str) -> None:
    """Remember the text of the file of a thing, and forget the oldest one if there are many."""
    if len(_RUNNING) >= _MOST_RUNNING:
        del _RUNNING[next(iter(_RUNNING))]
    _RUNNING[id(thing)] = weakref.ref(thing), getattr(thing, "__spec__", None), text


def _running_text(thing: CodeType | type | ModuleType) -> str | None:
    """Return the text that was remembered for a thing, or None."""
    known = _RUNNING.get(id(thing))
    if known is None or known[0]() is not thing or known[1] is not getattr(thing, "__spec__", None):
        return None
    return known[2]


@lru_cache(maxsize=16)
def _parsed(text: str, name: str) -> _File:
    """Return the file of this text: the studies of a process mostly share few files."""
    return _File(text, name)


def code_content(code: CodeType) -> list[Any]:
    """Return the instructions, names and constants of a code object, without its lines."""
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    return [code.co_code.hex(), names, [_code_constant(value) for value in code.co_consts]]


def _code_constant(value: Any) -> Any:
    match value:
        case CodeType():
            return code_content(value)
        case tuple():
            return [_code_constant(item) for item in value]
        case frozenset():
            return sorted(map(repr, value))
        case _:
            return repr(value)


def _files_of(thing: type) -> list[str]:
    """Return the files that may define a class without methods: its module, or all cells."""
    path = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if path is not None:
        return [path]
    # The names that IPython gives to the cells of a notebook; the latest cell comes first.
    cells = ("<ipython-input", "ipykernel")
    return [name for name in reversed(linecache.cache) if any(cell in name for cell in cells)]


def canonical(node: object) -> Any:
    """Return a syntax tree as nested lists of strings.

    Examples
    --------
    >>> first = canonical(ast.parse("f( 'a',  1, )  # why"))
    >>> second = canonical(ast.parse('f("a", 0x1)'))
    >>> first == second
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
            # Versions of Python differ in their empty fields.
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
    """Return the parts of an f-string, with texts joined: versions of Python cut differently."""
    merged: list[ast.expr] = []
    for value in values:
        last = merged[-1] if merged else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            merged[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            merged.append(value)
    return merged


def _does_nothing(node: object) -> bool:
    """Return whether a statement is `pass` or a string, such as a docstring."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.Pass)


def _own_methods(thing: type) -> Iterator[FunctionType]:
    """Yield the methods that the class itself defines; they know the place of their source."""
    for member in vars(thing).values():
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
        if (
            isinstance(function, FunctionType)
            and function.__qualname__ == f"{thing.__qualname__}.{function.__name__}"
            # The methods of a named tuple are from another module.
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
        elif not isinstance(child, ast.expr):
            yield from _classes(child, prefix)


def _function_node(file: _File, code: CodeType) -> _Callable | None:
    """Return the function that a code object was compiled from."""
    nodes = file.functions.get((code.co_name, code.co_firstlineno), [])
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    # Several lambdas in one line: the innermost that holds all of the code.
    places = [place for place in code.co_positions() if place[2] is not None and place[3]]
    holding = [node for node in nodes if all(_holds(node, place) for place in places)]
    return holding[-1] if holding else None


def _holds(node: ast.AST, place: tuple[int | None, ...]) -> bool:
    """Return whether a node holds an instruction at (first line, last line, columns)."""
    first, last, start, stop = (part or 0 for part in place)
    begin = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    end = (getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0))
    return begin <= (first, start) and (last, stop) <= end


def _holds_node(statement: ast.stmt, node: ast.AST) -> bool:
    return any(each is node for each in ast.walk(statement))


def _place(node: _Definition) -> _Place:
    """Return name and first line as in the code object of a node."""
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min([node.lineno, *(item.lineno for item in node.decorator_list)])


def _piece(node: ast.AST, file: _File) -> Piece:
    if node not in file.pieces:
        file.pieces[node] = _read_piece(node, file)
    return file.pieces[node]


def _read_piece(node: ast.AST, file: _File) -> Piece:
    if isinstance(node, ast.ClassDef):
        return _class_source(node, file)
    codes = file.codes_at(node) if isinstance(node, _Definition) else ()
    decorators = [item for item in getattr(node, "decorator_list", []) if not _is_kind(item)]
    piece = _read(node, codes)
    return replace(
        piece,
        settings=file.settings,
        calls=file.calls,
        written=written_in(node),
        reads=read_calls(node),
        file_names=file_names(node),
        decorators=len(decorators),
    )


def _class_source(node: ast.ClassDef, file: _File) -> Piece:
    """Return the source of a class without its functions, which come apart, and inner classes."""
    body = [
        item for item in node.body if not isinstance(item, _Statement) and not _is_harmless(item)
    ]
    functions = {item.name: item for item in node.body if isinstance(item, _Function)}
    inner = {_place(item) for item in node.body if isinstance(item, _Statement)}
    codes = [code for code in file.codes_at(node) if code.co_name == node.name]
    kept = [part for code in codes for part in _codes(code, without=inner)]
    rest = ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": body})
    methods = {name: _piece(function, file) for name, function in functions.items()}
    piece = _read(rest, kept, deep=False)
    return replace(piece, settings=file.settings, calls=file.calls, methods=methods)


def _is_harmless(statement: ast.stmt) -> bool:
    """Return whether a statement of a class only names what may differ after loading."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name == HARMLESS
    return False


def _read(node: ast.AST, codes: Iterable[CodeType], *, deep: bool = True) -> Piece:
    """Return the source of a node; `codes` tell which names come from outside."""
    parts = [part for code in codes for part in (_codes(code) if deep else [code])]
    read = _read_outside(node) | {name for part in parts for name in _read_by(part)}
    imports = tuple(_imports(node))
    imported = {item.name for item in imports}
    chains = sorted(set(_chains(node)))
    return Piece(
        canonical=canonical(node),
        names=tuple(chain for chain in chains if chain[0] in read),
        imports=imports,
        imported_names=tuple(chain for chain in chains if chain[0] in imported),
        global_names=tuple(sorted(set(_global_names(node)))),
        reflections=tuple(sorted(set(_reflections(node)))),
    )


def _settings(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the attributes that module-level statements set: ``numpy.tanh = f``."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                continue
            case ast.Attribute(ctx=ast.Store()) if chain := _chain(child):
                yield chain
            case ast.Call(
                func=ast.Name(id="setattr"), args=[place, ast.Constant(value=str(name)), _]
            ) if chain := _chain(place):
                yield (*chain, name)
        yield from _settings(child)


def _calls(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Yield the functions that module-level statements call for their effect: ``seed(1)``."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                continue
            case ast.Expr(value=ast.Call(func=function)) if chain := _chain(function):
                yield chain
        yield from _calls(child)


def _is_kind(decorator: ast.expr) -> bool:
    """Return whether a decorator makes a kind of method, and no wrapper."""
    return isinstance(decorator, ast.Name) and decorator.id in _KINDS


def _global_names(node: ast.AST) -> Iterator[str]:
    """Yield each ``name`` of ``globals()["name"]``."""
    for item in ast.walk(node):
        match item:
            case ast.Subscript(
                value=ast.Call(func=ast.Name(id="globals"), args=[]),
                slice=ast.Constant(value=str(name)),
            ):
                yield name


def _reflections(node: ast.AST) -> Iterator[str]:
    """Yield the names of attributes in which code is data, and ``globals`` in general."""
    calls = 0
    for item in ast.walk(node):
        match item:
            case ast.Attribute(attr=name) | ast.Name(id=name) if (
                name in REFLECTIONS and name != "globals"
            ):
                yield name
            case ast.Name(id="globals"):
                calls += 1
    if calls > len(list(_global_names(node))):
        yield "globals"


def _imports(node: ast.AST) -> Iterator[Import]:
    for item in ast.walk(node):
        if isinstance(item, ast.ImportFrom):
            module = "." * item.level + (item.module or "")
            for name in item.names:
                yield Import(name=name.asname or name.name, module=module, attribute=name.name)
        elif isinstance(item, ast.Import):
            for name in item.names:
                yield Import(name=name.asname or name.name.partition(".")[0], module=name.name)


def _codes(code: CodeType, without: Collection[_Place] = ()) -> Iterator[CodeType]:
    """Yield a code object and those inside it, but for the definitions at these places."""
    yield code
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if (constant.co_name, constant.co_firstlineno) not in without:
            yield from _codes(constant)


def _read_by(code: CodeType) -> set[str]:
    """Return the outside names that code reads."""
    return {
        str(instruction.argval)
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith(_READS)
    }


def _read_outside(node: ast.AST) -> set[str]:
    """Return the names in decorators, bases and defaults of a definition."""
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
    """Yield the names in a node, with their attributes, as chains."""
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
