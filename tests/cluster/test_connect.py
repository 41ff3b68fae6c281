"""Schedulers that are there, encrypted or not, and whatever else answers at an address."""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster
from distributed.security import Security

from dasktune._cluster.connect import Scheduler, address_in
from dasktune.errors import ClusterError, ConfigurationError

PATIENCE = 30.0
"""Seconds within which it is said what is wrong."""


@contextmanager
def served(handler: Callable[[socket.socket], object]) -> Iterator[int]:
    """Answer connections on loopback, each in a thread; give the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handler(self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def keys(folder: Path) -> dict[str, Path]:
    """Return a CA, a certificate of it and the key, as files."""
    made = Security.temporary()
    folder.mkdir()
    texts = {
        "ca": made.tls_ca_file,
        "certificate": made.tls_client_cert,
        "key": made.tls_client_key,
    }
    for name, text in texts.items():
        (folder / f"{name}.pem").write_text(text)
    return {name: folder / f"{name}.pem" for name in texts}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return keys(tmp_path_factory.mktemp("tls") / "mine")


@contextmanager
def cluster(files: dict[str, Path] | None) -> Iterator[LocalCluster]:
    """Give a cluster without workers, encrypted with files."""
    security = Security()
    if files is not None:
        sides = ("scheduler", "client", "worker")
        own = {f"tls_{one}_cert": str(files["certificate"]) for one in sides}
        own |= {f"tls_{one}_key": str(files["key"]) for one in sides}
        security = Security(tls_ca_file=str(files["ca"]), require_encryption=True, **own)
    with LocalCluster(
        n_workers=0,
        processes=False,
        host="127.0.0.1",
        protocol="tcp://" if files is None else "tls://",
        dashboard_address="127.0.0.1:0",
        security=security,
    ) as made:
        yield made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be patient with a silent address for a moment only."""
    monkeypatch.setattr("dasktune._cluster.connect.HELLO_SECONDS", 0.5)


def refusal(scheduler: Scheduler) -> str:
    """Return the error message for an address without such a scheduler."""
    began = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        scheduler.client()
    assert time.monotonic() - began < PATIENCE
    text = str(caught.value)
    assert text.startswith(f"cannot reach the scheduler {scheduler.address}: ")
    return text


def test_a_scheduler_is_reached() -> None:
    with cluster(None) as there, Scheduler(address=there.scheduler_address).client() as client:
        assert client.scheduler_info()["type"] == "Scheduler"


def test_an_encrypted_scheduler_is_reached_with_the_right_files(files: dict[str, Path]) -> None:
    with (
        cluster(files) as there,
        Scheduler(address=there.scheduler_address, **files).client() as client,
    ):
        assert client.scheduler.address.startswith("tls://")
        assert client.scheduler_info()["type"] == "Scheduler"


def test_the_wrong_ca_is_named(files: dict[str, Path], tmp_path: Path) -> None:
    others = keys(tmp_path / "others")
    with cluster(files) as there:
        said = refusal(Scheduler(address=there.scheduler_address, **others))
        assert "its certificate is not trusted" in said
        # Its CA is trusted, but it does not trust ours.
        said = refusal(Scheduler(address=there.scheduler_address, **{**others, "ca": files["ca"]}))
        assert "it refuses this side's certificate" in said


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for what is asked of an address where each guess is answered."""
    monkeypatch.setattr("dasktune._cluster.connect.GUESS_SECONDS", PATIENCE)


@pytest.mark.usefixtures("hasty", "answered")
def test_a_scheduler_with_encryption_is_named(files: dict[str, Path]) -> None:
    with cluster(files) as there:
        plain = there.scheduler_address.replace("tls://", "tcp://")
        assert "speaks TLS: tls://, with the files of --tls-ca" in refusal(Scheduler(address=plain))


@pytest.mark.usefixtures("answered")
def test_a_scheduler_without_encryption_is_named(files: dict[str, Path]) -> None:
    with cluster(None) as there:
        encrypted = there.scheduler_address.replace("tcp://", "tls://")
        said = refusal(Scheduler(address=encrypted, **files))
        assert "a scheduler without encryption answers there: tcp://" in said


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_an_http_server_is_named(
    scheme: str, files: dict[str, Path], request: pytest.FixtureRequest
) -> None:
    if scheme == "tcp":
        request.getfixturevalue("answered")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        said = refusal(Scheduler(address=address, **(files if scheme == "tls" else {})))
    finally:
        server.shutdown()
        server.server_close()
    if scheme == "tcp":
        assert "an HTTP server answers there (HTTP/1.0 200 OK)" in said
        assert "8786" in said
    else:
        assert "does not speak TLS" in said


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda one: one.sendall(b"SSH-2.0-OpenSSH_9\r\n"), "it says 'SSH-2.0-OpenSSH_9'"),
        (lambda one: one.sendall(b"\xff" * 50_000), "no scheduler of Dask"),
        (lambda one: one.recv(1), "says nothing"),
        (lambda one: one.close(), "says nothing"),
    ],
    ids=["banner", "bytes", "question", "hanging up"],
)
def test_something_else_is_named(
    scheme: str,
    handler: Callable[[socket.socket], object],
    message: str,
    files: dict[str, Path],
) -> None:
    with served(handler) as port:
        address = f"{scheme}://127.0.0.1:{port}"
        said = refusal(Scheduler(address=address, **(files if scheme == "tls" else {})))
    assert message in said if scheme == "tcp" else "TLS" in said or "nothing" in said


@pytest.mark.usefixtures("hasty")
def test_connect_names_a_silent_port() -> None:
    with served(lambda one: threading.Event().wait(60)) as port:
        said = refusal(Scheduler(address=f"tcp://127.0.0.1:{port}"))
    assert "something listens there, and says nothing" in said


def test_nothing_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        said = refusal(Scheduler(address=f"tcp://127.0.0.1:{port}"))
    assert "nothing answers there" in said
    assert "refused" in said
    assert "is not known" in refusal(Scheduler(address="tcp://no-such-host.invalid:8786"))


def test_a_worker_is_no_scheduler() -> None:
    with cluster(None) as there:
        there.scale(1)
        there.sync(there._correct_state)
        (worker,) = there.workers.values()
        assert "a Worker of Dask answers there" in refusal(Scheduler(address=worker.address))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "tcp://192.0.2.1:8786"}, "whoever reaches a scheduler without encryption"),
        ({"address": "tcp://0.0.0.0:8786"}, "--insecure"),
        ({"address": "http://127.0.0.1:8787"}, "must be tls://host:port or tcp://host:port"),
        ({"address": "127.0.0.1"}, "must be tls://host:port or tcp://host:port"),
        ({"address": "tcp://127.0.0.1"}, "must be tls://host:port or tcp://host:port"),
        ({"address": "tls://127.0.0.1:1", "ca": "x"}, "--tls-cert, --tls-key is missing"),
        ({"address": "tls://127.0.0.1:1", "ca": "x"}, "--tls-ca must be a file, got 'x'"),
        ({"address": "tcp://127.0.0.1:1", "ca": "x"}, "--tls-ca is for tls://"),
    ],
)
def test_what_cannot_be_is_refused_at_once(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Scheduler(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.1.1"])
def test_loopback_needs_no_encryption(host: str) -> None:
    assert Scheduler(address=f"tcp://{host}:8786").place[1] == 8786


def test_beyond_loopback_needs_encryption_or_a_word() -> None:
    Scheduler(address="tcp://192.0.2.1:8786", insecure=True)
    Scheduler(address="tls://192.0.2.1:8786")


def test_tls_without_files_is_refused_and_so_are_wrong_ones(
    files: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="must come with --tls-ca"):
        Scheduler(address="tls://127.0.0.1:1").client()
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(ConfigurationError, match="TLS cannot use"):
        Scheduler(address="tls://127.0.0.1:1", **{**files, "key": tmp_path / "key.pem"}).client()


def test_the_files_may_be_those_of_dask(files: dict[str, Path]) -> None:
    tls = "distributed.comm.tls"
    settings = {f"{tls}.ca-file": str(files["ca"]), f"{tls}.client.key": str(files["key"])}
    settings[f"{tls}.client.cert"] = str(files["certificate"])
    with (
        cluster(files) as there,
        dask.config.set(settings),
        Scheduler(address=there.scheduler_address).client() as client,
    ):
        assert client.scheduler_info()["type"] == "Scheduler"


def test_a_scheduler_file_has_an_address(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"address": "tcp://127.0.0.1:8786"}')
    assert address_in(tmp_path / "s.json") == "tcp://127.0.0.1:8786"
    (tmp_path / "bad.json").write_text("[1]")
    for name in ("bad.json", "none.json"):
        with pytest.raises(ConfigurationError, match="--scheduler-file"):
            address_in(tmp_path / name)
