"""The files that own code opens for reading while it runs.

Python tells an audit hook of each file that its own functions open. A file counts if own code has
opened it, directly or through a package (``yaml.safe_load(open(path))``, ``numpy.load(path)``).
Formats that a library opens in C or Rust (HDF5, Parquet, safetensors) are not seen.

Left out are source files and byte code, the files of Python and of installed packages, temporary
files, ``/proc`` and ``/sys``, and files that are opened for writing.

    with recording(trainer_class, ignored=ignored_paths(trainer_class, config)) as recorder:
        trainer.build(hp)
    recorder.files()  # {"data/net.yaml": OpenedFile(nbytes=120, digest="61e4d2...")}
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

from dasktune.errors import ConfigurationError
from dasktune.trainer.fingerprint.data import data_digest
from dasktune.trainer.fingerprint.installed import is_library_folder

MOST_BYTES = 1 << 20
"""Size up to which a file has a digest."""

_CODE = (".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth", ".egg-link")
_SYSTEM = ("/proc", "/sys", "/dev/null", "/dev/urandom", "/dev/random", "/etc")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MOST_FRAMES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file as it was read.

    Parameters
    ----------
    nbytes
        Its size; -1 for a file that is gone.
    digest
        As of `dasktune.trainer.data_digest`; None for a file of more than `MOST_BYTES`, and for
        one that is gone.
    """

    nbytes: int
    digest: str | None


class FileRecorder:
    """Collects the files that own code opens; made by `recording`.

    Parameters
    ----------
    folder
        Folder of the trainer's code: paths below it are relative to it.
    ignored
        Files and folders that do not count.
    thread
        Identifier of the thread whose files count; None for all threads.
    """

    def __init__(
        self, folder: str | None, ignored: Iterable[str] = (), thread: int | None = None
    ) -> None:
        self._folder = folder
        self._ignored = tuple(map(os.path.abspath, ignored))
        self._thread = thread
        self._paths: set[str] = set()

    def note(self, path: str, frame: FrameType | None) -> None:
        """Note a file that is opened for reading, if own code opens it.

        Parameters
        ----------
        path
            As it was given to ``open``.
        frame
            The one that opens the file.
        """
        if self._thread is not None and threading.get_ident() != self._thread:
            return
        whole = os.path.abspath(path)
        if whole in self._paths or self._is_left_out(whole):
            return
        if _is_opened_by_own_code(frame):
            self._paths.add(whole)

    def _is_left_out(self, path: str) -> bool:
        is_beside_code = self._folder is not None and _is_below(path, self._folder)
        temporary = () if is_beside_code else (tempfile.gettempdir(),)
        folders = (*_SYSTEM, *self._ignored, *temporary)
        if any(_is_below(path, folder) for folder in folders):
            return True
        return is_library_folder(os.path.dirname(path))

    def files(self) -> dict[str, OpenedFile]:
        """Return the files by path, with the digests of their contents now.

        A path below the folder of the code is relative to that folder, any other is absolute.
        """
        described = [(path, _described(path)) for path in sorted(self._paths)]
        return {_shown(path, self._folder): file for path, file in described if file is not None}


@contextmanager
def recording(
    trainer_class: type, *, ignored: Iterable[str] = (), all_threads: bool = False
) -> Iterator[FileRecorder]:
    """Record the files that own code opens while the context lasts.

    Contexts may be nested, and may be open in several threads.

    Parameters
    ----------
    trainer_class
        The trainer: the folder of its module is that of the code.
    ignored
        Files and folders that do not count, such as those that the trainer's ``ignored_config``
        names.
    all_threads
        Whether files count that other threads open, such as those of a loader of data.
    """
    _install()
    thread = None if all_threads else threading.get_ident()
    recorder = FileRecorder(code_folder(trainer_class), ignored, thread)
    with _LOCK:
        _ACTIVE.append(recorder)
    try:
        yield recorder
    finally:
        with _LOCK:
            _ACTIVE.remove(recorder)


def digests_now(paths: Collection[str], trainer_class: type) -> dict[str, OpenedFile]:
    """Return files as they are now, by their paths as `FileRecorder.files` returned them.

    A file that is gone has the size -1.

    Parameters
    ----------
    trainer_class
        The trainer whose code opened them.
    """
    folder = code_folder(trainer_class)
    now = {path: _described(os.path.join(folder or "", path)) for path in paths}
    gone = OpenedFile(nbytes=-1, digest=None)
    return {path: gone if file is None else file for path, file in now.items()}


def changed_files(before: Mapping[str, OpenedFile], now: Mapping[str, OpenedFile]) -> list[str]:
    """Return the names of the files that differ; files without a digest differ by their size.

    Examples
    --------
    >>> one, other = (OpenedFile(nbytes=1, digest=digest) for digest in ("a", "b"))
    >>> changed_files({"x": one, "y": one}, {"x": other, "y": one})
    ['x']
    """
    return sorted(name for name, file in before.items() if name in now and now[name] != file)


def ignored_paths(trainer_class: type, config: Mapping[str, object]) -> list[str]:
    """Return the paths in the config that the trainer's ``ignored_config`` names."""
    names = getattr(trainer_class, "ignored_config", ())
    return [value for name, value in config.items() if name in names and isinstance(value, str)]


def code_folder(trainer_class: type) -> str | None:
    """Return the folder of the trainer's module, of a notebook the working directory."""
    module = sys.modules.get(trainer_class.__module__)
    file = getattr(module, "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if file else os.getcwd()


_ACTIVE: list[FileRecorder] = []
_LOCK = threading.Lock()
_IS_INSTALLED = threading.Event()


def _install() -> None:
    """Add the hook of this process; Python cannot remove one, so there is one only."""
    with _LOCK:
        if not _IS_INSTALLED.is_set():
            sys.addaudithook(_hook)
            _IS_INSTALLED.set()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _ACTIVE:
        return
    path, mode, flags = arguments
    if not isinstance(path, str | bytes | os.PathLike) or _writes(mode, flags):
        return
    try:
        name = os.fsdecode(path)
        if name.endswith(_CODE):
            return
        for recorder in [*_ACTIVE]:
            recorder.note(name, sys._getframe(1))
    except (OSError, ValueError):  # an error here would be that of the user's call
        return


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return not set(mode) <= set("rbtU")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _is_opened_by_own_code(frame: FrameType | None) -> bool:
    """Return whether the innermost frame that is no library's is own code that runs.

    A file that is read while a module is imported belongs to the import.
    """
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return False
        if not name.startswith("<frozen ") and not _is_library_file(name):
            return not str(frame.f_globals.get("__name__", "")).startswith("dasktune")
        frame = frame.f_back
    return False


@cache
def _is_library_file(name: str) -> bool:
    """Return whether a file of code is Python's or an installed package's."""
    if name.startswith("<"):
        return not name.startswith(("<ipython", "<stdin"))
    return is_library_folder(os.path.dirname(os.path.realpath(name)))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _described(path: str) -> OpenedFile | None:
    """Return a plain file as it is now; None if the path has another kind of thing."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        digest = data_digest(path) if status.st_size <= MOST_BYTES else None
    except (OSError, ConfigurationError):
        return None
    return OpenedFile(nbytes=status.st_size, digest=digest)


def _shown(path: str, folder: str | None) -> str:
    if folder is not None and path.startswith(folder + os.sep):
        return os.path.relpath(path, folder).replace(os.sep, "/")
    return path
