"""Ports for servers that are started again."""

from __future__ import annotations

import secrets
import socket
from itertools import count
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where the kernel takes the ports of outgoing connections from."""


FIRST, ROOM = 10_000, 10_000
"""The first port that is given, and how many at least: some of the kernel's own, if need be."""

_drawn = count(secrets.randbelow(ROOM))


def free_port(kernels: Path = RANGE) -> int:
    """Return a free loopback port outside the kernel's range for outgoing connections.

    A server that is down for a moment would lose one of the kernel's own range: to any connection
    that goes out, and to a client that tries to reach the server there, and meets itself. No port
    is given twice before all were.

    Parameters
    ----------
    kernels
        The file with the kernel's range.
    """
    below = int(kernels.read_text().split()[0]) if kernels.exists() else 32_768
    room = max(ROOM, below - FIRST)
    while True:
        port = FIRST + next(_drawn) % room
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
