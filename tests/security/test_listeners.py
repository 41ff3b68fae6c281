"""Tests of who can connect: this host to a local run; with TLS, holders of the key."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from distributed import Client
from distributed.security import Security

import dasktune as dt
from dasktune.slurm import slurm_client
from tests.slurm_server import Slurm
from tests.toy_trainers import Still

pytestmark = pytest.mark.cluster


def listening() -> dict[int, set[str]]:
    """Return the addresses at which this process and its children listen, by process."""
    me, found = psutil.Process(), {}
    for one in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            ports = one.net_connections(kind="inet")
            found[one.pid] = {at.laddr.ip for at in ports if at.status == psutil.CONN_LISTEN}
    return found


class Looking(dt.Callback):
    """Looks who listens while a study runs."""

    def __init__(self) -> None:
        self.seen: dict[int, set[str]] = {}

    def on_report(self, *_: object) -> None:
        self.seen = listening()


def test_a_local_run_listens_on_loopback_alone(tmp_path: Path) -> None:
    before, looking = listening(), Looking()
    study = dt.create_study(Still, name="still", storage=tmp_path, metric="loss")
    tuner = dt.algos.Grid(dt.Space(lr=[1, 2]), max_steps=2)
    study.optimize(tuner, workers=2, progress=False, callbacks=[looking])
    study.close()
    here = looking.seen.pop(os.getpid())
    assert here - before[os.getpid()] <= {"127.0.0.1"}
    assert "127.0.0.1" in here, "the scheduler"
    new = {pid: found for pid, found in looking.seen.items() if pid not in before}
    assert sum(map(bool, new.values())) == 2, "the workers"
    assert set().union(*new.values()) == {"127.0.0.1"}


@pytest.fixture
def encrypted(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a client of one encrypted worker, which is a job."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    with slurm_client(interface="lo", encrypt=True, memory="200MB") as client:
        client.wait_for_workers(1, timeout=60)
        yield client
    assert not [one for one in tmp_path.rglob(".dask*") if one.is_file()], "no key is left"


@pytest.mark.slurm
@pytest.mark.filterwarnings("ignore")  # of connections that are refused
def test_who_has_not_the_key_of_a_run_cannot_reach_its_jobs(
    encrypted: Client, tmp_path: Path
) -> None:
    workers = encrypted.scheduler_info(n_workers=-1)["workers"]
    addresses = [encrypted.scheduler.address, *workers]  # type: ignore[union-attr]
    assert len(addresses) == 2
    for address in addresses:
        assert address.startswith("tls://127.0.0.1:")
        plain = address.replace("tls://", "tcp://")
        with pytest.raises(OSError, match=r"Timed out|closed|refused|[Cc]onnect"):
            Client(plain, timeout=3).close()
        with pytest.raises(OSError, match=r"certificate|Timed out|closed|[Cc]onnect"):
            Client(address, security=Security.temporary(), timeout=3).close()
    assert encrypted.submit(int, 3).result(30) == 3, "and those inside go on"
    found = [one for one in tmp_path.rglob("*") if one.is_file()]
    keys = [one for one in found if b"PRIVATE KEY" in one.read_bytes()]
    assert keys, "the workers have it from a file"
    assert {stat.S_IMODE(one.stat().st_mode) for one in keys} == {0o600}
    script = encrypted.cluster.job_script()  # type: ignore[union-attr]
    assert str(keys[0].parent) in script
    for text in (script, *map(" ".join, commands())):
        assert "PRIVATE" not in text
        assert "BEGIN CERTIFICATE" not in text


def commands() -> list[list[str]]:
    """Return the command lines of all processes of this host."""
    return [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]


def test_listeners_would_be_seen(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("0.0.0.0", 0)):
        assert "0.0.0.0" in listening()[os.getpid()]
