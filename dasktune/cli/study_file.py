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
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from dasktune._study.folder import running_file
from dasktune.errors import ConfigurationError, DasktuneError, refuse, unknown
from dasktune.storage.redaction import redacted

if TYPE_CHECKING:
    from dasktune._study.config import StudyConfig
    from dasktune._study.study import Study
    from dasktune.algos.base import Tuner

Made = TypeVar("Made")

PARTS = ("study", "tuner")
"""What a study file must define."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A loaded study file.

    Parameters
    ----------
    config
        Arguments for its functions, by name.
    """

    path: Path
    module: ModuleType
    config: Mapping[str, object] = field(default_factory=dict)

    def study(self) -> Study:
        """Return the study; creates or opens it."""
        from dasktune._study.study import Study

        return self._make("study", Study)

    def tuner(self) -> Tuner:
        """Return the tuner."""
        from dasktune.algos.base import Tuner

        return self._make("tuner", Tuner)  # type: ignore[type-abstract]

    def _make(self, part: str, kind: type[Made]) -> Made:
        made = getattr(self.module, part)
        if _is_function(made):
            known = _arguments(made)
            given = {
                name: value for name, value in self.config.items() if known is None or name in known
            }
            with _running(self.path):
                made = made(**given)
        if not isinstance(made, kind):
            raise ConfigurationError(
                f"{self.path}: {part} must be a {kind.__name__} or a function that returns one, "
                f"got {made!r}"
            )
        return made


MOST_NBYTES = 2**24
"""Bytes of the largest study file. A larger one is probably data, which Python would load whole."""


def load(path: Path, settings: Iterable[str] = ()) -> StudyFile:
    """Return a study file, its code run.

    Parameters
    ----------
    path
        The file; it may import from its folder.
    settings
        ``key=value``; a value that is no JSON is text.

    Raises
    ------
    ConfigurationError
        If the file cannot be run, does not define `PARTS`, or takes no such key; with the
        line of the file.
    """
    if not path.is_file():
        raise ConfigurationError(f"no such file: {str(path)!r}; it must be a study file")
    if (nbytes := path.stat().st_size) > MOST_NBYTES:
        raise ConfigurationError(
            f"a study file must have at most {MOST_NBYTES:,} bytes, got {nbytes:,} in "
            f"{str(path)!r}; give the Python file that defines study and tuner"
        )
    config = parse_config(settings)
    path = path.resolve()  # before the file runs, which may change the working folder
    module = _run(path)
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:
        names = ", ".join(_public(module)) or "nothing"
        raise ConfigurationError(
            f"{path} must define study and tuner, or functions of those names; "
            f"{' and '.join(missing)} cannot be found among {names}"
        )
    taken = [_arguments(getattr(module, part)) for part in PARTS]
    if None not in taken:
        known = {name for names in taken if names is not None for name in names}
        refuse(f"{path}: {unknown('config key', key, known)}" for key in config if key not in known)
    return StudyFile(path=path, module=module, config=config)


def config_in(path: Path, settings: Iterable[str] = ()) -> StudyConfig:
    """Return the configuration of the study that a file would create or open.

    Raises
    ------
    ConfigurationError
        If `load` refuses the file, it creates no study, or the study's store has moved.
    """
    from dasktune._study.create import config_of

    config = config_of(lambda: load(path, settings).study())
    if config is None:
        raise ConfigurationError(
            f"{path} does not call create_study; give its storage folder instead"
        )
    return config


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
    """Import a file as a module of its own; its folder comes first on the import path."""
    name = _module_name(path)
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ConfigurationError(f"the study file must be a Python file, got {str(path)!r}")
    module = module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Pickle and inspect look up classes of the file under the name of its module.
    sys.modules[name] = module
    with _running(path):
        loader.exec_module(module)
    return module


def _module_name(path: Path) -> str:
    """Return the name of the file, or another one if it would hide a module."""
    name = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
    spec = None if name in sys.stdlib_module_names else find_spec(name)
    is_free = spec is None or spec.origin == str(path)
    return name if is_free and name not in sys.stdlib_module_names else f"study_{name}"


def _public(module: ModuleType) -> list[str]:
    """Return the public names of a module, without imported modules."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    ]


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _arguments(function: Callable[..., object]) -> frozenset[str] | None:
    """Return the keyword arguments of a function; None if it takes any."""
    if not _is_function(function):
        return frozenset()
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(each.name for each in parameters if each.kind in by_name)


@contextmanager
def _running(path: Path) -> Iterator[None]:
    """Run code of a study file as a script: its paths start there, and its errors have its line.

    It sees no arguments of this command, and what it prints goes to standard error: a command may
    print JSON.
    """
    arguments = sys.argv
    try:
        with running_file(path), redirect_stdout(sys.stderr):
            sys.argv = [str(path)]
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
    except SystemExit as error:
        place = _place(error, path)
        raise ConfigurationError(
            redacted(
                f"{place}: a study file must not end the program, got exit({error.code!r}); put "
                'what is only for `python FILE` below `if __name__ == "__main__":`'
            )
        ) from error
    # A user's file may raise anything, and the user has to mend it.
    except Exception as error:
        text = traceback.format_exception_only(error)[-1].strip()
        raise ConfigurationError(redacted(f"{_place(error, path)}: {text}")) from error
    finally:
        sys.argv = arguments


def _place(error: BaseException, path: Path) -> str:
    """Return file and line of the innermost frame in a file of the user's folder.

    The code of the line is left out where it is a part of a longer expression.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent == path.resolve().parent]
    if not own:
        return str(path)
    last = own[-1]
    place = f"{last.filename}:{last.lineno}"
    return f"{place}: {last.line}" if last.end_lineno == last.lineno else place
