"""A SQLite file on a network file system is warned of, once, with what to do."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from dasktune.storage.database import database as module
from dasktune.storage.database.database import Database
from dasktune.storage.database.network import Warner, all_mounts, network_kind


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
def test_the_nearest_mount_counts(mounts: list[tuple[str, str]], kind: str | None) -> None:
    found = network_kind(Path("/data/runs/x.db"), lambda: [Mount(*one) for one in mounts])
    assert found == kind


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounts = [Mount("/", "ext4"), Mount(str(tmp_path / "far"), "nfs")]
    assert network_kind(tmp_path / "near" / "x.db", lambda: mounts) == "nfs"


def test_this_machine_tells_its_mounts() -> None:
    assert any(one.mountpoint == "/" for one in all_mounts())


def test_it_is_said_once_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "warner", Warner(lambda: [Mount("/", "nfs4")]))
    with caplog.at_level(logging.WARNING, "dasktune"):
        for name in ("x.db", "x.db", "y.db"):
            Database(tmp_path / name).close()
        Database("sqlite://").close()
    assert len(caplog.messages) == 2
    first = caplog.messages[0]
    assert first.startswith(f"database {tmp_path}/x.db is on a network file system (nfs4)")
    assert "local disk" in first
    assert "PostgreSQL" in first
