"""Limits of the page's server: anyone on the host may connect to it, and hold the connection.

The server closes a connection that sends nothing in time. Where there are too many, the oldest one
without the token makes room for a new one. So readers with the token get an answer while others
hold all the connections that they can.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream

MOST_CONNECTIONS = 64
"""The most open connections; a quarter of the process's descriptors if those are fewer."""

NOISY = ("asyncio", "tornado.application", "tornado.general", "dasktune._dashboard.server")
"""Loggers to which anyone who connects can write."""


class OpenConnections:
    """The open connections, those with the token last."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or _most_connections()
        self._streams: dict[IOStream, bool] = {}
        """Whether a request with the token has come, by connection."""

    def add(self, stream: IOStream) -> None:
        """Receive a new connection; close an older one if there are too many."""
        if len(self._streams) >= self._most:
            self._streams = {each: has for each, has in self._streams.items() if not each.closed()}
        if len(self._streams) >= self._most:
            strangers = (each for each, has_token in self._streams.items() if not has_token)
            oldest = next(strangers, next(iter(self._streams)))
            del self._streams[oldest]
            oldest.close()
        self._streams[stream] = False

    def trust(self, stream: IOStream) -> None:
        """Note that a request with the token has come."""
        self._streams.pop(stream, None)
        self._streams[stream] = True


def _most_connections() -> int:
    """Return the most open connections that this process can have."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_CONNECTIONS
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if descriptors < 0 else min(MOST_CONNECTIONS, descriptors // 4)


class LimitedServer(HTTPServer):
    """A server with a limited number of connections."""

    connections: OpenConnections

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a new connection."""
        self.connections.add(stream)
        super().handle_stream(stream, address)


class _Counted(logging.Filter):
    """Lets the first record of a place in the code pass, the 10th, the 100th and so on."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        place = record.pathname, record.lineno
        self._counts[place] += 1
        count = self._counts[place]
        if count > 1:
            record.msg, record.args = f"{record.getMessage()} ({count:,} times so far)", None
        return str(count).strip("0") == "1"


@contextmanager
def counted_logs() -> Iterator[None]:
    """Log what repeats as a count: whoever connects could fill the disk with lines."""
    counted = _Counted()
    loggers = [logging.getLogger(name) for name in NOISY]
    for logger in loggers:
        logger.addFilter(counted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(counted)
