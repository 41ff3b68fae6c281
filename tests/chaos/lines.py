"""The network between a worker and the rest: TCP connections that can be held up and reset."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

HOST = "127.0.0.1"
_CHUNK = 2**16
_NO_LINGER = struct.pack("ii", 1, 0)
"""With this a connection that is closed is reset (RST in place of FIN)."""

Found = TypeVar("Found")


class Exchange:
    """A thread that carries what lines carry; a context manager."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close all lines."""
        for line in self.lines:
            line.close()
        self.call(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Run a coroutine in the thread of the lines and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _cancel_all() -> None:
    """Cancel what carries data, and what that begins on its way."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Line:
    """A port of its own whose connections lead to another port of loopback.

    Parameters
    ----------
    exchange
        Who carries.
    target
        The other port. Nobody need listen there yet.
    """

    def __init__(self, exchange: Exchange, target: int) -> None:
        self.target = target
        self._exchange = exchange
        self._writers: set[asyncio.StreamWriter] = set()
        self._server, self._passes = exchange.call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]
        exchange.lines.append(self)

    async def _listen(self) -> tuple[asyncio.Server, asyncio.Event]:
        passes = asyncio.Event()
        passes.set()
        return await asyncio.start_server(self._accept, HOST, 0), passes

    def hold(self) -> None:
        """Hold all data back, as a host that stops answering does."""
        self._exchange.call(self._set(False))

    def release(self) -> None:
        """Pass data on again, held data first."""
        self._exchange.call(self._set(True))

    def reset(self) -> None:
        """Break off all connections; new ones can be made."""
        self._exchange.call(self._reset())

    def close(self) -> None:
        """Break off all connections, and take no more."""
        self._exchange.call(self._close())

    async def _set(self, passes: bool) -> None:
        if passes:
            self._passes.set()
        else:
            self._passes.clear()

    async def _reset(self) -> None:
        for writer in list(self._writers):
            _break_off(writer)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._join(reader, writer))
        # Also where it is cancelled before it has begun.
        task.add_done_callback(lambda _: _break_off(writer))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            await self._passes.wait()
            other, far = await asyncio.open_connection(HOST, self.target)
            self._writers.add(far)
            await asyncio.gather(self._carry(reader, far), self._carry(other, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    _break_off(one)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        await self._passes.wait()
        if writer.can_write_eof():
            writer.write_eof()


def _break_off(writer: asyncio.StreamWriter) -> None:
    wire = writer.get_extra_info("socket")
    with suppress(OSError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
