"""Tests that people without the token cannot stop the live page, nor fill the disk with its log."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dasktune._dashboard.access import HEADER
from tests.dashboard.made_study import Made, made_database

pytestmark = pytest.mark.process

HELD = 300
"""Connections that a stranger holds: more than the page may have descriptors."""

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /api/change/stop/1 HTTP/1.1\r\n" + HOST
REQUESTS = {
    "silent": b"",
    "part of the headers": b"GET / HTTP/1.1\r\n" + HOST + b"X-Slow: a",
    "part of a body": POST + b"Content-Length: 9\r\n\r\n{",
    "kept alive": b"GET /api/studies HTTP/1.1\r\n" + HOST + b"\r\n",
    "huge headers": b"GET / HTTP/1.1\r\n" + HOST + b"X-Large: " + b"a" * 100_000,
    "huge body": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999\r\n\r\n",
    "no HTTP": b"\x16\x03\x01" + b"\xff\x00" * 500 + b"\r\n\r\n",
    "nested body": POST + b"Content-Length: 9\r\n\r\n[[[[[[[[[",
}
DEEP = "[" * 40_000 + "]" * 40_000


@dataclass(frozen=True)
class Page:
    """A live page in a process with 256 descriptors, and its log."""

    port: int
    token: str
    log: Path

    def ask(self, path: str) -> object:
        """Return the answer to a request with the token."""
        url = f"http://127.0.0.1:{self.port}/api/{path}"
        request = urllib.request.Request(url, headers={HEADER: self.token})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    file = made_database(folder, own=Made(trials=4))
    log = folder / "log"
    command = f"ulimit -n 256; exec {sys.executable} -m dasktune._dashboard"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        options = {"study": None, "port": 0, "allows_changes": True}
        process.stdin.write(json.dumps({**options, "database": str(file)}) + "\n")
        process.stdin.flush()
        address = json.loads(process.stdout.readline())["address"]
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]+)", address)
        assert match is not None
        yield Page(int(match[1]), match[2], log)
        process.stdin.close()
        process.wait(30)


@contextmanager
def held(port: int, request: bytes) -> Iterator[None]:
    """Hold connections that have sent a request, or a part of it."""
    with ExitStack() as stack:
        for _ in range(HELD):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            try:
                connection.sendall(request)
            except OSError:  # the page has closed it already
                continue
        yield


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_page_answers_while_strangers_hold_connections(page: Page, request_: bytes) -> None:
    before = page.log.stat().st_size
    with held(page.port, request_):
        for _ in range(3):
            assert len(page.ask("studies")["studies"]) == 1  # type: ignore[index]
    assert page.log.stat().st_size - before < 10_000, page.log.read_text()[-3000:]


def test_connection_with_the_token_outlives_those_of_strangers(page: Page) -> None:
    connection = HTTPConnection("127.0.0.1", page.port, timeout=30)
    for _ in range(2):
        connection.request("GET", "/api/studies", headers={HEADER: page.token})
        assert connection.getresponse().read()
        with held(page.port, b""):
            connection.request("GET", "/api/studies", headers={HEADER: page.token})
            assert connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize(
    "body", ["[" * 50_000, '{"a":' * 20_000, DEEP, "1" * 5_000, "\xff", "1e999"], ids=range(6)
)
def test_change_that_is_no_object_is_refused(page: Page, body: str) -> None:
    connection = HTTPConnection("127.0.0.1", page.port, timeout=30)
    headers = {HEADER: page.token, "Origin": f"http://127.0.0.1:{page.port}"}
    connection.request("POST", "/api/change/stop/1", body.encode("latin-1"), headers)
    answer = connection.getresponse()
    assert answer.status == 400
    assert "a change must be a JSON object" in answer.read().decode()
    connection.close()
