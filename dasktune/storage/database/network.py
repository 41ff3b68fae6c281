"""Whether a file lies on a network file system, on which SQLite's locks do not hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

logger = logging.getLogger(__name__)

NETWORK = frozenset(
    {
        *("9p", "afp", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "fhgfs", "gfs", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs"),
        *("pvfs2", "smb2", "smb3", "smbfs", "webdav"),
        *("fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""Kinds of file systems that several machines may have mounted, as `/proc/mounts` says them."""


class Mount(Protocol):
    """Where something is mounted, and its kind, as psutil tells it."""

    @property
    def mountpoint(self) -> str:
        """The folder."""

    @property
    def fstype(self) -> str:
        """The kind of file system."""


Mounts = Callable[[], Iterable[Mount]]


def all_mounts() -> Iterable[Mount]:
    """Return all that is mounted on this machine."""
    import psutil

    found: Iterable[Mount] = psutil.disk_partitions(all=True)
    return found


def network_kind(path: Path, mounts: Mounts = all_mounts) -> str | None:
    """Return the kind of network file system that a path is on; None if it is on no such."""
    place = path.absolute().parent.resolve() / path.name
    holding = [one for one in mounts() if place.is_relative_to(one.mountpoint)]
    # Of several at one place, the last one hides the others.
    kind, deepest = "", -1
    for mount in holding:
        depth = len(Path(mount.mountpoint).parts)
        if depth >= deepest:
            kind, deepest = mount.fstype, depth
    return kind if kind.lower() in NETWORK else None


class Warner:
    """Warns once of each SQLite file on a network file system."""

    def __init__(self, mounts: Mounts = all_mounts) -> None:
        self._mounts = mounts
        self._known: set[Path] = set()

    def look_at(self, file: Path) -> None:
        """Warn of a file if there is reason to, and it was not looked at before."""
        if file in self._known:
            return
        self._known.add(file)
        kind = network_kind(file, self._mounts)
        if kind is not None:
            logger.warning(
                "database %s is on a network file system (%s), where SQLite's locks do not hold "
                "and it may be destroyed: give a file on a local disk, database='/local/x.db', "
                "or PostgreSQL for several machines, database='postgresql+psycopg://...'",
                file,
                kind,
            )


warner = Warner()
"""What this process has warned of."""
