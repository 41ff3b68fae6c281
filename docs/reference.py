"""The public names of dasktune, where the API reference describes them, and what has no words.

A name is public if a page of docs/api lists its module and the module lists the name; so is each
member of a public class that has no underscore at the front.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

PAGES = Path(__file__).parent / "api"


@cache
def modules() -> tuple[str, ...]:
    """Return the modules that the reference describes, the shortest path first."""
    texts = [page.read_text() for page in PAGES.glob("*.md")]
    listed = {name for text in texts for name in re.findall(r"{public} (\S+)", text)}
    return tuple(sorted(listed, key=lambda name: (name.count("."), name)))


def public_names(module: str) -> list[str]:
    """Return the names of a module's ``__all__``, or else those that it defines; no modules."""
    home = import_module(module)
    own = [
        name
        for name, value in vars(home).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    parts = {part.name for part in iter_modules(getattr(home, "__path__", []))}
    listed = getattr(home, "__all__", own)
    return [name for name in listed if not name.startswith("__") and name not in parts]


def value_of(path: str) -> Any:
    """Return the value of a module and a name, such as ``dasktune.Study``."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@cache
def homes() -> dict[str, str]:
    """Return the path at which each public name is described: the shortest path of its value."""
    first: list[tuple[str, Any]] = []
    described: dict[str, str] = {}
    for module in modules():
        for name in public_names(module):
            path = f"{module}.{name}"
            value = value_of(path)
            home = next((other for other, same in first if same is value), path)
            described[path] = home
            if home == path and callable(value):
                first.append((path, value))
    return described


def documented() -> dict[str, bool]:
    """Return whether each public name and member has words of its own, by its path.

    Members that a class inherits count there if the reference leaves out their own class.
    """
    words: dict[str, bool] = {}
    described = {
        value for path in homes().values() for value in [value_of(path)] if inspect.isclass(value)
    }
    for path in dict.fromkeys(homes().values()):
        value = value_of(path)
        words[path] = not callable(value) or bool(inspect.getdoc(value))
        if inspect.isclass(value):
            for name in members(value, described):
                words[f"{path}.{name}"] = has_words(value, name)
    return words


def members(owner: type, described: set[type]) -> Iterator[str]:
    """Yield the public members of a class that the reference must describe with it."""
    seen = set()
    for base in own_bases(owner):
        names = {*vars(base), *vars(base).get("__annotations__", {})}
        if base is owner or base not in described:
            seen |= {name for name in names if not name.startswith("_")}
    yield from sorted(seen)


def own_bases(owner: type) -> list[type]:
    """Return a class and those of its bases that are dasktune's."""
    return [base for base in owner.__mro__ if base.__module__.startswith("dasktune")]


def has_words(owner: type, name: str) -> bool:
    """Return whether a class, or a base of it, says what a member is."""
    sections = "|".join(("Parameters", "Attributes"))
    value = inspect.getattr_static(owner, name, None)
    if inspect.isroutine(value) and inspect.getdoc(value):
        return True
    for base in own_bases(owner):
        if name in described_in_body(base.__module__).get(base.__qualname__, ()):
            return True
        for section in re.split(rf"^ *(?:{sections})\n *-+\n", base.__doc__ or "", flags=re.M)[1:]:
            if re.search(rf"^ *(?:\w+, )*{name}(?:, \w+)*$", section, re.MULTILINE):
                return True
    return False


@cache
def described_in_body(module: str) -> dict[str, set[str]]:
    """Return the members with a docstring, or a text behind them, of each class of a module."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    named: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            named[node.name] = set(with_words(node))
    return named


def with_words(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a class whose definition has a docstring or a text behind it."""
    for part, following in zip(node.body, [*node.body[1:], None], strict=True):
        match part, following:
            case ((ast.FunctionDef() | ast.AsyncFunctionDef() as function), _) if ast.get_docstring(
                function
            ):
                yield function.name
            case (
                (ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)])),
                ast.Expr(ast.Constant(str())),
            ):
                yield name
