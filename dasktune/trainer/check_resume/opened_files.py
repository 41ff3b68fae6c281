"""The files that own code opens for reading in a process of the check.

Python tells an audit hook of each file that its own functions open. A file counts if own code
opens it, directly or through a package: ``json.loads(path.read_text())``, ``numpy.load(path)``.
Formats that a library opens in C or Rust (HDF5, Parquet, safetensors) are not seen, nor is what
other processes open.

Left out are source and byte code, files of the system (/proc, /sys), and files that the training
has written itself.
"""

from __future__ import annotations

import os
import sys
import time
from types import FrameType
from typing import Any

from dasktune.trainer.fingerprint.named_files import SOURCES
from dasktune.trainer.fingerprint.read_files import OpenedFile
from dasktune.trainer.opening import is_of_own_code, writes

_MOST_PATHS = 10_000

_OF_SYSTEM = ("/proc/", "/sys/")
"""Begin the paths of files that say how the machine is just now."""


class OpenedFiles:
    """Watches this process from now on, until `read`: Python cannot remove an audit hook.

    Parameters
    ----------
    package
        Top-level name of the trainer's module: its code is own code also where it is installed.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._paths: dict[str, bool] = {}
        self._written: set[str] = set()
        self._start: int | None = None
        self._is_over = False
        self._folder = os.getcwd()
        sys.addaudithook(self._hook)

    def begin(self) -> None:
        """Note that training begins: a file with a later time is written by the training."""
        self._start = time.time_ns()

    def read(self) -> list[OpenedFile]:
        """Return the files that own code has read and not written; no further ones are noted."""
        self._is_over = True
        return self.so_far()

    def so_far(self) -> list[OpenedFile]:
        """Return the files that own code has read and not written, in the order of reading."""
        paths = [*self._paths]  # another thread may just add one
        kept = [path for path in paths if path not in self._written]
        return [
            (os.path.relpath(path, self._folder), True)
            if self._paths[path] and path.startswith(self._folder + os.sep)
            else (path, False)
            for path in kept
        ]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or self._is_over:
            return
        try:
            if event == "os.rename":
                self._written.add(os.path.abspath(os.fsdecode(arguments[1])))
            else:
                self._note(*arguments, frame=sys._getframe(1))
        except (OSError, TypeError, ValueError):  # it would be an error of the user's call
            return

    def _note(self, path: object, mode: object, flags: object, *, frame: FrameType) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor
        name = os.fsdecode(path)
        whole = os.path.abspath(name)
        if writes(mode, flags):
            self._written.add(whole)
            return
        if whole.startswith(_OF_SYSTEM):
            return
        is_known = whole in self._paths or len(self._paths) == _MOST_PATHS
        if is_known or name.endswith(SOURCES) or not is_of_own_code(frame, self._package):
            return
        if self._start is None or os.stat(whole).st_mtime_ns < self._start:
            self._paths[whole] = not os.path.isabs(name)
