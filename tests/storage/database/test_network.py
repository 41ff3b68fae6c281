"""dasktune warns once of a SQLite file on a network file system, and names the remedy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from dasktune.storage.database.connection import all_mounts, network_kind
from dasktune.storage.database.database import Database


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ([("/", "ext4"), ("/data", "nfs4")], "nfs4"),
        ([("/", "nfs"), ("/data", "xfs")], None),
        ([("/", "ext4"), ("/data", "ext4"), ("/data/runs", "lustre")], "lustre"),
        ([("/", "ext4"), ("/data/runs/x.db", "nfs")], "nfs"),
        ([("/", "ext4"), ("/dat", "nfs")], None),
        ([("/", "ext4"), ("/data", "ext4"), ("/data", "cifs")], "cifs"),
        ([("/data", "cifs"), ("/data", "tmpfs"), ("/", "nfs")], None),
        ([("/", "fuse.sshfs")], "fuse.sshfs"),
        ([("/", "CIFS")], "CIFS"),
        ([("/", "overlay")], None),
        ([], None),
    ],
)
def test_network_kind_is_of_the_deepest_mount(
    mounts: list[tuple[str, str]], kind: str | None
) -> None:
    mounted = [Mount(*mount) for mount in mounts]
    assert network_kind(Path("/data/runs/x.db"), lambda: mounted) == kind


def test_network_kind_follows_links(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path / "far"), "nfs")]
    assert network_kind(tmp_path / "near" / "x.db", lambda: mounts) == "nfs"


def test_all_mounts_hold_the_root() -> None:
    assert any(mount.mountpoint == "/" for mount in all_mounts())


def test_database_on_a_network_warns_once_per_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounts = [Mount("/", "nfs4")]
    with caplog.at_level(logging.WARNING, "dasktune"):
        for name in ("x.db", "x.db", "y.db"):
            Database(tmp_path / name, mounts=lambda: mounts).close()
        Database("sqlite://", mounts=lambda: mounts).close()
    assert len(caplog.messages) == 2
    first = caplog.messages[0]
    assert first.startswith(f"database {tmp_path}/x.db is on a network file system (nfs4)")
    assert "local disk" in first
    assert "PostgreSQL" in first
