"""A proxy before an S3 server whose requests meet the fate that a test chooses for each."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Literal

Fate = (
    Literal["passes", "is reset", "is cut", "loses its answer", "is torn", "is swallowed"] | bytes
)
"""What becomes of a request.

A reset comes before the server has seen anything, a cut after half of what was sent; a lost
answer is cut after the server has done everything, a torn one in its middle. Bytes are the
answer that the proxy gives.
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `number` counts from 0."""

    number: int
    method: str
    target: str
    nbytes: int

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and "list-type" in self.target


def answer(status: int, code: str, more: str = "", *headers: str) -> bytes:
    """Return an error in the words of S3."""
    body = f"<Error><Code>{code}</Code><Message>{code} it is</Message>{more}</Error>".encode()
    lines = (
        f"HTTP/1.1 {status} {code}",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_OURS = ("connection", "expect")
"""Fields of a request that are not the server's concern."""

SLOW_DOWN = answer(503, "SlowDown")


class Proxy:
    """Passes requests on, one connection for each; runs in a thread of its own.

    Parameters
    ----------
    port
        Of the server, on loopback.
    """

    PASSES: ClassVar[Callable[[Request], Fate]] = staticmethod(lambda request: "passes")

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.fate: Callable[[Request], Fate] = self.PASSES
        self.requests: list[Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        begin = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(begin, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        story: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines)
        sizes = [int(value) for name, value in fields.items() if name.lower() == "content-length"]
        method, target, _ = first.split(" ")
        request = Request(len(self.requests), method, target, sum(sizes))
        self.requests.append(request)
        if any(name.lower() == "expect" for name in fields):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(request.nbytes)
        kept = [f"{name}: {fields[name]}" for name in fields if name.lower() not in _OURS]
        sent = "\r\n".join([first, *kept, "Connection: close", "", ""]).encode() + body
        match self.fate(request):
            case bytes(given):
                writer.write(given)
                await writer.drain()
            case "is reset":
                _reset(writer)
            case "is cut":
                with suppress(ConnectionError):
                    await self._forward(sent, len(body) // 2 + 1)
                _reset(writer)
            case "loses its answer":
                await self._forward(sent)
                _reset(writer)
            case "is torn":
                whole = await self._forward(sent)
                writer.write(whole[: len(whole) - len(whole) // 2])
                await writer.drain()
            case "is swallowed":
                await reader.read()
            case "passes":
                writer.write(await self._forward(sent))
                await writer.drain()

    async def _forward(self, sent: bytes, but_the_last: int = 0) -> bytes:
        """Return the server's answer; none if the last bytes are held back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            writer.write(sent[: len(sent) - but_the_last])
            await writer.drain()
            if but_the_last:
                _reset(writer)
                return b""
            return await reader.read()
        finally:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection the way a crashed machine does, without a good-bye."""
    found = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
