"""Study files: Python files that define a study and a tuner.

``study`` and ``tuner`` are objects, or functions that return them. Values given as
``--config key=value`` become keyword arguments of the functions, each of those that takes
the key.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from dasktune.errors import ConfigurationError, DasktuneError, refuse, unknown
from dasktune.storage.redaction import redacted

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner
    from dasktune.study.study import Study

Made = TypeVar("Made")

PARTS = ("study", "tuner")
"""What a study file must define."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study file that was loaded.

    Parameters
    ----------
    path
        Where it is.
    module
        What it became.
    config
        Values for its functions by name.
    """

    path: Path
    module: ModuleType
    config: Mapping[str, object] = field(default_factory=dict)

    def study(self) -> Study:
        """Return the study; creates or opens it."""
        from dasktune.study.study import Study

        return self._make("study", Study)

    def tuner(self) -> Tuner:
        """Return the tuner."""
        from dasktune.algos.base import Tuner

        return self._make("tuner", Tuner)  # type: ignore[type-abstract]

    def _make(self, part: str, kind: type[Made]) -> Made:
        found = getattr(self.module, part)
        if _is_function(found):
            taken = _arguments(found)
            given = {
                name: value for name, value in self.config.items() if taken is None or name in taken
            }
            with _blaming(self.path):
                found = found(**given)
        if not isinstance(found, kind):
            raise ConfigurationError(
                f"{self.path}: {part} must be a {kind.__name__} or a function that returns one, "
                f"got {found!r}"
            )
        return found


def load(path: Path, settings: Iterable[str] = ()) -> StudyFile:
    """Return a study file, its code run.

    Parameters
    ----------
    path
        Where it is; its folder is where it may import from.
    settings
        ``key=value``, the value as JSON or else taken as text.

    Raises
    ------
    ConfigurationError
        If the file cannot be run, does not define `PARTS`, or takes no such key; with the
        line of the file.
    """
    if not path.is_file():
        raise ConfigurationError(f"the study file must be a Python file, got {str(path)!r}")
    config = parse_config(settings)
    module = _run(path.resolve())
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:
        found = ", ".join(_public(module)) or "nothing"
        raise ConfigurationError(
            f"{path} must define study and tuner, or functions of those names; "
            f"{' and '.join(missing)} cannot be found among {found}"
        )
    taken = [_arguments(getattr(module, part)) for part in PARTS]
    if None not in taken:
        known = {name for names in taken if names is not None for name in names}
        refuse(f"{path}: {unknown('config key', key, known)}" for key in config if key not in known)
    return StudyFile(path=path, module=module, config=config)


def parse_config(settings: Iterable[str]) -> dict[str, object]:
    """Return the values of ``key=value`` by key.

    Raises
    ------
    ConfigurationError
        If one has no key or no equals sign.

    Examples
    --------
    >>> parse_config(["epochs=3", "data=images.npz", "sizes=[8, 16]"])
    {'epochs': 3, 'data': 'images.npz', 'sizes': [8, 16]}
    """
    pairs = [setting.partition("=") for setting in settings]
    refuse(
        f"a config value must be given as key=value, got {''.join(pair)!r}"
        for pair in pairs
        if not (pair[0].isidentifier() and pair[1])
    )
    return {key: _value(text) for key, _, text in pairs}


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def _run(path: Path) -> ModuleType:
    """Import a file under a name of its own; its folder comes first where it imports from."""
    name = _module_name(path)
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ConfigurationError(f"the study file must be a Python file, got {str(path)!r}")
    module = module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Where classes of the file say they come from: pickle and inspect look there.
    sys.modules[name] = module
    with _blaming(path):
        loader.exec_module(module)
    return module


def _module_name(path: Path) -> str:
    """Return the file's own name, or one that hides no other module."""
    name = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    found = None if name in sys.stdlib_module_names else find_spec(name)
    is_free = found is None or found.origin == str(path)
    return name if is_free and name not in sys.stdlib_module_names else f"study_{name}"


def _public(module: ModuleType) -> list[str]:
    """Return the public names of a module but those of other modules."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]


def _is_function(found: object) -> bool:
    return callable(found) and not isinstance(found, type)


def _arguments(found: Callable[..., object]) -> frozenset[str] | None:
    """Return the names that a function can be given; None if it takes any."""
    if not _is_function(found):
        return frozenset()
    parameters = inspect.signature(found).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in parameters if one.kind in by_name)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Say of an error in a study file where in the file it is, in place of our own frames."""
    try:
        yield
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}"
        line = (error.text or "").strip()
        text = f"{where}: {type(error).__name__}: {error.msg}: {line}"
        raise ConfigurationError(redacted(text)) from error
    except ConfigurationError as error:
        text = "\n" * (len(error.problems) > 1) + str(error)
        raise ConfigurationError(redacted(f"{_place(error, path)}: {text}")) from error
    except DasktuneError:
        raise
    # A file of the user's may raise anything, and it is theirs to mend.
    except Exception as error:
        text = traceback.format_exception_only(error)[-1].strip()
        raise ConfigurationError(redacted(f"{_place(error, path)}: {text}")) from error


def _place(error: BaseException, path: Path) -> str:
    """Return file and line of the innermost frame in a file of the user's folder."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.resolve().parent]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else str(path)
