"""Files that own code has written since the trainer was built, and has read afterwards.

Such a file is a part of the training that no state has. Its content is noted with each state: where
it is another one, the trainer cannot go on. A log, which nothing reads, is no such file.

A trainer that adds to a file which was there before, and reads it, would get what others have left.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from dasktune.errors import TrainerError
from dasktune.storage.tensors import digest_of
from dasktune.trainer.base import harmless_of, is_harmless
from dasktune.trainer.opening import is_of_own_code, writes
from dasktune.trainer.proof.texts import PartText
from dasktune.trainer.turns import THREAD_NAME

FILE = "file "
"""Begins the paths of files."""

_MOST_NBYTES = 2**20
"""Larger files count by their size alone."""


_CALLERS = frozenset({"dasktune.trainer.lifecycle", "dasktune.trainer.turns"})
"""Modules that call trainers and training functions."""

_TRAINING: ContextVar[object] = ContextVar("training")
"""Tells the trainer of a training function, whose thread gets the context of the trainer's."""


class WrittenFiles:
    """Watches which files of this process own code writes and then reads.

    There is one for a process, since Python cannot remove an audit hook.
    """

    def __init__(self) -> None:
        self._package: str | None = None
        self._harmless: tuple[str, ...] = ()
        self._training: object = None
        self._thread = 0
        self._written: set[str] = set()
        self._read: dict[str, None] = {}
        self._left: set[str] = set()
        """The files that others have left, and to which own code adds."""
        self._begun: dict[str, str] = {}
        """The texts of the databases that others have left."""
        self._own: set[str] = set()

    def begin(self, trainer_class: type) -> None:
        """Forget what earlier trainers have written."""
        if self._package is None:
            sys.addaudithook(self._hook)
        self._package = (trainer_class.__module__ or "").partition(".")[0]
        self._harmless = harmless_of(trainer_class)
        self._training = object()
        self._thread = threading.get_ident()
        _TRAINING.set(self._training)
        self._written, self._read, self._left, self._own = set(), {}, set(), set()
        self._begun = {}

    def note_own(self, path: str) -> None:
        """Note that a file is as the trainer that saved the loaded state has left it."""
        self._own.add(path)

    def paths(self) -> list[str]:
        """Return the files that were written and then read, in the order of reading."""
        return [*self._read]

    def _is_training(self) -> bool:
        """Return whether this is the thread of the trainer, or that of its training function."""
        if threading.get_ident() == self._thread:
            return True
        is_of_function = threading.current_thread().name == THREAD_NAME
        return is_of_function and _TRAINING.get(None) is self._training

    def _note_database(self, path: str) -> None:
        """Note a database: SQLite itself opens the file, and who connects may write and read."""
        if not self._is_own(sys._getframe(2)):
            return
        text = str(text_of_file(path))
        if path not in self._written and path not in self._own and text != _MISSING:
            self._begun[path] = text
        elif self._begun.get(path, text) != text:
            self._left.add(path)  # what this trial has written lies beside what was there
        self._written.add(path)
        self._read[path] = None

    def _is_own(self, frame: FrameType) -> bool:
        """Return whether the trainer's code opens a file itself: packages have files of their own.

        What else the process does, such as a user's script after a training, is none of it.
        """
        is_own = is_of_own_code(frame, self._package or "", is_direct=True)
        return is_own and _is_of_training(frame)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "sqlite3.connect") or not self._is_training():
            return  # other threads of the process do other work
        if not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        try:
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if event == "sqlite3.connect":
                self._note_database(path)
            elif not writes(*arguments[1:]):
                if path not in self._written or not self._is_own(sys._getframe(1)):
                    return
                self._read[path] = None
            elif self._is_own(sys._getframe(1)):
                if path not in self._written | self._own and _adds(path, arguments[1]):
                    self._left.add(path)
                self._written.add(path)
                return
        except (OSError, TypeError, ValueError):  # it would be an error of the user's call
            return
        if path in self._left and not is_harmless(f"{FILE}{path}", self._harmless):
            raise TrainerError(
                f"{path} was there before this trial. The trial adds to it and reads it, so its "
                "metrics would depend on other trials: give each trial a file of its own; or if no "
                f'result depends on it, name "{FILE}{path}" in harmless_differences'
            )


def _is_of_training(frame: FrameType | None) -> bool:
    """Return whether a trainer was called on the way to a frame."""
    while frame is not None and frame.f_globals.get("__name__") not in _CALLERS:
        frame = frame.f_back
    return frame is not None


def _adds(path: str, mode: object) -> bool:
    """Return whether a file that has a content keeps it where it is opened to write."""
    is_kept = isinstance(mode, str) and not set(mode) & set("wx")
    return is_kept and os.path.exists(path) and os.path.getsize(path) > 0


WRITTEN_FILES = WrittenFiles()


def place_of(value: Any) -> str:
    """Return the absolute path that a text or path may mean; empty if it is none."""
    text = value
    if isinstance(value, PartText):
        match = _PATH.fullmatch(value)
        text = ast.literal_eval(match[1]) if match else ""
    if not isinstance(text, str) or os.sep not in text or len(text) > _LONGEST or "\0" in text:
        return ""
    return os.path.abspath(text)


_PATH = re.compile(r"(?:Posix|Windows)Path (?:Posix|Windows)Path\((.*)\)")
_LONGEST = 4096
_IN = " in "
_MISSING = "missing"


class FileText(PartText):
    """The text of a file that tells where it lies; it is kept as it is."""


def text_of_named(path: str, places: Mapping[str, str]) -> PartText:
    """Return the text of a file, with the part of the trainer that names it or a folder above it.

    Each process may have a folder of its own, such as a temporary one.
    """
    folder = path
    while folder not in places and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    text = text_of_file(path)
    if folder not in places:
        return text
    return FileText(f"{text}{_IN}{os.path.relpath(path, folder)}{_IN}{places[folder]}")


def is_as_before(path: str, was: str, now: Mapping[str, str]) -> bool:
    """Return whether a file has the content that `text_of_named` has told, where it lies now.

    Parameters
    ----------
    now
        The paths of files and folders by the part of the trainer that names them.
    """
    content, *named = was.split(_IN, 2)
    if named and named[1] in now:
        path = os.path.normpath(os.path.join(now[named[1]], named[0]))
    return content == str(text_of_file(path))


def text_of_file(path: str) -> PartText:
    """Return a text of the content of a file now; another one for a missing file."""
    try:
        nbytes = os.stat(path).st_size
        if nbytes > _MOST_NBYTES:
            return PartText(f"of {nbytes} bytes")
        return PartText(digest_of(Path(path).read_bytes()))
    except OSError:
        return PartText(_MISSING)
