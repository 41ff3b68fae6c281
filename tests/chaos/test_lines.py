"""Lines carry, hold back and break off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.lines import HOST, Exchange, Line
from tests.chaos.ports import free_port

PATIENCE = 20.0
HELD = 0.2


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with Exchange() as one:
        yield one


@pytest.fixture
def echo() -> Iterator[int]:
    """Return the port of a server that sends back what it gets, in capitals."""
    server = socket.create_server((HOST, 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1024):
                    connection.sendall(data.upper())
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def connect(line: Line) -> socket.socket:
    return socket.create_connection((HOST, line.port), timeout=PATIENCE)


def test_a_line_carries_both_ways_and_ends_with_its_ends(exchange: Exchange, echo: int) -> None:
    line = Line(exchange, echo)
    with connect(line) as one, connect(line) as other:
        one.sendall(b"one")
        other.sendall(b"other")
        assert one.recv(10) == b"ONE"
        assert other.recv(10) == b"OTHER"
        one.shutdown(socket.SHUT_WR)
        assert one.recv(10) == b""
        other.sendall(b"still there")
        assert other.recv(20) == b"STILL THERE"
    line.close()


def test_what_is_held_back_comes_later(exchange: Exchange, echo: int) -> None:
    line = Line(exchange, echo)
    with connect(line) as one:
        one.sendall(b"a")
        assert one.recv(1) == b"A"
        line.hold()
        one.sendall(b"b")
        with connect(line) as late:
            late.sendall(b"c")
            for held in (one, late):
                held.settimeout(HELD)
                with pytest.raises(TimeoutError):
                    held.recv(1)
                held.settimeout(PATIENCE)
            line.release()
            assert one.recv(1) == b"B"
            assert late.recv(1) == b"C"
    line.close()


def test_line_reset_drops_connections_and_accepts_new_ones(exchange: Exchange, echo: int) -> None:
    line = Line(exchange, echo)
    with connect(line) as one:
        one.sendall(b"a")
        assert one.recv(1) == b"A"
        line.reset()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    with connect(line) as again:
        again.sendall(b"b")
        assert again.recv(1) == b"B"
    line.close()
    with pytest.raises(OSError), connect(line) as one:
        one.recv(1)


def test_a_line_to_nobody_breaks_off(exchange: Exchange) -> None:
    line = Line(exchange, free_port())
    with pytest.raises(ConnectionResetError), connect(line) as one:
        one.recv(1)
    line.close()
