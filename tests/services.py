"""Real servers for tests, on loopback, each with ports and a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.chaos.ports import free_port
from tests.holding import wait_until

CEPH_PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

CEPH_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = true
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
mon data avail crit = 1
mon data avail warn = 1
mon osd min up ratio = 0
paxos propose interval = 0.05
log file = {folder}/$name.log
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
run dir = {folder}
ms bind ipv6 = false
ms mon client mode = crc
ms mon service mode = crc
ms mon cluster mode = crc
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd class load list = *
osd class default list = *
[client.rgw.a]
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw enable usage log = false
rgw dynamic resharding = false
rgw override bucket index max shards = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """Where an S3 server listens on loopback, and who may use it."""

    port: int
    key: str = "dasktune-key"
    secret: str = "dasktune-secret"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the variables that send any client there, or to a proxy in front of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self) -> str:
        """Make a bucket that no one else uses and return its name."""
        import boto3

        name = f"tests-{uuid.uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()
        return name


@contextmanager
def moto() -> Iterator[S3Server]:
    """Run an S3 server in a thread of this process; it answers as AWS does."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield S3Server(port=server.get_host_and_port()[1])
    finally:
        server.stop()


def postgresql_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, which Debian keeps out of the PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([*map(str, places), *os.get_exec_path()])
    program = shutil.which("initdb", path=path)
    return None if program is None else Path(program).parent


class PostgreSQL:
    """A server in a folder of its own, reached by a socket there: no port can collide."""

    def __init__(self, folder: Path, programs: Path, settings: Mapping[str, str]) -> None:
        self.url = f"postgresql+psycopg://dasktune@/postgres?host={folder}"
        self._folder, self._programs = folder, programs
        given = "".join(f" -c {name}={value}" for name, value in settings.items())
        self._options = f"-F -k {folder} -c listen_addresses={given}"
        # The server refuses to be root.
        self._owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._owner = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(folder, "postgres", "postgres")

    def make(self) -> None:
        """Make its files."""
        self._call(
            "initdb", "-U", "dasktune", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = str(self._folder / "log")
        self._call("pg_ctl", "-w", "-l", log, "-o", self._options, "start")

    def crash(self) -> None:
        """End all its processes at once."""
        self._call("pg_ctl", "-m", "immediate", "stop")

    def _call(self, program: str, *options: str) -> None:
        command = [self._programs / program, "-D", self._folder / "data", *options]
        log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        subprocess.run(command, check=True, cwd=self._folder, timeout=60, **log, **self._owner)


@contextmanager
def postgresql(**settings: str) -> Iterator[PostgreSQL]:
    """Run a PostgreSQL server with further settings."""
    programs = postgresql_programs()
    if programs is None:
        pytest.fail("a test that needs PostgreSQL must be marked postgresql")
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    try:
        server = PostgreSQL(folder, programs, settings)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder)


def missing_programs() -> list[str]:
    """Return which programs of Ceph are not installed."""
    return [name for name in CEPH_PROGRAMS if not shutil.which(name)]


@contextmanager
def ceph() -> Iterator[S3Server]:
    """Run Ceph's object gateway on one monitor and one storage daemon, all in memory."""
    folder = Path(tempfile.mkdtemp(prefix="ceph-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield _Ceph(folder, stack).start()


class _Ceph:
    """The processes of one Ceph cluster."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def start(self) -> S3Server:
        server = S3Server(port=free_port())
        fsid, monitor_port = str(uuid.uuid4()), free_port()
        text = CEPH_CONFIGURATION.format(
            folder=self._folder, fsid=fsid, monitor_port=monitor_port, port=server.port
        )
        (self._folder / "ceph.conf").write_text(text)
        for name in ("mon", "osd", "rgw"):
            (self._folder / name).mkdir()
        self._start_monitor(fsid, monitor_port)
        self._start_storage()
        self._serve("radosgw", "-n", "client.rgw.a")
        names = ("--uid", "tests", "--display-name", "tests")
        keys = ("--access-key", server.key, "--secret", server.secret)
        self._call("radosgw-admin", "-n", "client.rgw.a", "user", "create", *names, *keys)
        _wait(lambda: urlopen(f"http://127.0.0.1:{server.port}/", timeout=5).close())
        return server

    def _start_monitor(self, fsid: str, port: int) -> None:
        monitors = self._folder / "monmap"
        address = ("--addv", "a", f"[v2:127.0.0.1:{port}]")
        self._call("monmaptool", "--create", *address, "--fsid", fsid, str(monitors))
        self._call("ceph-mon", "-i", "a", "--mkfs", "--monmap", str(monitors))
        self._serve("ceph-mon", "-i", "a")
        _wait(lambda: self._call("ceph", "--connect-timeout", "2", "mon", "stat"))

    def _start_storage(self) -> None:
        name = str(uuid.uuid4())
        self._call("ceph", "osd", "new", name)
        self._call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", name)
        self._serve("ceph-osd", "-i", "0")

    def _command(self, program: str, *options: str) -> list[str]:
        where = [] if program == "monmaptool" else ["-c", str(self._folder / "ceph.conf")]
        return [program, *where, *options]

    def _call(self, program: str, *options: str) -> None:
        command = self._command(program, *options)
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self._folder)

    def _serve(self, program: str, *options: str) -> None:
        # Not even a test run that is killed leaves a server behind.
        dies_with_us = ("setpriv", "--pdeathsig", "KILL")
        command = [*dies_with_us, *self._command(program, *options, "-f")]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, cwd=self._folder, start_new_session=True, **quiet)
        self._stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # all it has lies in memory
    process.wait()


def _wait(look: Callable[[], object], seconds: float = 60.0) -> None:
    """Look until it does not fail any more."""

    def answers() -> bool:
        try:
            look()
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    wait_until(answers, seconds=seconds)


def scheduler_in(file: Path) -> str:
    """Return the address in a scheduler's file once it is whole; Dask's client waits 0.1 s."""
    addresses: list[str] = []

    def look() -> bool:
        with suppress(OSError, ValueError):
            addresses.append(str(json.loads(file.read_text())["address"]))
        return bool(addresses)

    wait_until(look)
    return addresses[0]
