"""The folder from which a study's relative paths start: that of the file that defines the study.

A study file defines `study` and `tuner`; any other script that runs defines the study itself. So
`python FILE`, `dasktune run FILE` and `import FILE; FILE.study()` mean the same store from any
working directory. A notebook has no file: its paths start from the working directory. So do those
of other programs (`python -m`, a test runner), whose own folder is not that of the study.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

_STUDY_FILE: ContextVar[Path | None] = ContextVar("study_file", default=None)
"""The study file that a command runs in this context."""


@contextmanager
def running_file(path: Path) -> Iterator[None]:
    """Make a study file's folder the start of relative paths, whoever calls `create_study`."""
    token = _STUDY_FILE.set(path.absolute())
    try:
        yield
    finally:
        _STUDY_FILE.reset(token)


def runs_study_file() -> bool:
    """Return whether a command now runs the code of a study file."""
    return _STUDY_FILE.get() is not None


def study_folder() -> Path | None:
    """Return the folder of the study file or script that creates a study; None without one."""
    file = _STUDY_FILE.get() or _calling_study_file(sys._getframe(1))
    if file is not None:
        return file.parent
    main = sys.modules.get("__main__")
    file_name = getattr(main, "__file__", None)
    # A module run by `python -m` has a spec; an installed command has no name that ends in .py.
    if not file_name or getattr(main, "__spec__", None) or Path(file_name).suffix != ".py":
        return None
    return Path(file_name).absolute().parent


def _calling_study_file(frame: FrameType | None) -> Path | None:
    """Return the innermost file among the callers that defines `study` and `tuner`."""
    while frame is not None:
        is_module = frame.f_code.co_name == "<module>"  # its last lines may not have run yet
        names = frame.f_code.co_names if is_module else frame.f_globals
        if (
            "study" in names
            and "tuner" in names
            and (path := Path(frame.f_code.co_filename)).is_file()
        ):
            return path.absolute()
        frame = frame.f_back
    return None


def from_folder(folder: Path | None, place: str) -> str:
    """Return a path or URL with the folder before a relative path.

    A path in the working directory's own folder stays as it is.

    Examples
    --------
    >>> from_folder(Path("/lab"), "runs/net"), from_folder(Path("/lab"), "s3://bucket/net")
    ('/lab/runs/net', 's3://bucket/net')
    >>> from_folder(Path("/lab"), "sqlite:///net.db"), from_folder(None, "runs/net")
    ('sqlite:////lab/net.db', 'runs/net')
    >>> from_folder(Path.cwd(), "runs/net"), from_folder(Path("/lab"), "~/runs")
    ('runs/net', '~/runs')
    """
    if folder is None or _is_same(folder, Path.cwd()):
        return place
    if place.startswith("sqlite") and "://" in place:
        return _sqlite_from(folder, place)
    if "://" in place or place.startswith("~") or place == ":memory:":
        return place
    return str(folder / place)


def _sqlite_from(folder: Path, place: str) -> str:
    try:
        url = make_url(place)
    except ArgumentError:
        return place
    if url.database in (None, "", ":memory:") or url.database.startswith("file:"):
        return place
    return url.set(database=str(folder / url.database)).render_as_string(hide_password=False)


def _is_same(folder: Path, other: Path) -> bool:
    return folder.resolve() == other.resolve()
