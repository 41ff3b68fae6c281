"""Files that only their user reads: databases, logs and reports hold what trainers print."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_DEFAULT_ACL = "system.posix_acl_default"


def open_private(path: str, flags: int) -> int:
    """Open a file, as an `opener` of `open`; a new one is only for its user.

    A folder with the set-group-ID bit or a default ACL belongs to a group: its new files have the
    mode that the folder and the umask give them.
    """
    return os.open(path, flags, 0o666 if _is_of_group(Path(path).absolute().parent) else 0o600)


def _is_of_group(folder: Path) -> bool:
    """Return whether a folder was set up for a group of users."""
    with suppress(OSError):
        if folder.stat().st_mode & stat.S_ISGID:
            return True
        if hasattr(os, "getxattr"):
            return bool(os.getxattr(folder, _DEFAULT_ACL))
    return False
