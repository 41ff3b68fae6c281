"""Ports for servers that are started again."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where the kernel takes the ports of outgoing connections from."""


def free_port() -> int:
    """Return a port of loopback that nothing listens on, and that no connection takes meanwhile.

    A server that is down for a moment would lose one of the kernel's own range: to any connection
    that goes out, and to a client that tries to reach the server there, and meets itself.
    """
    below = int(RANGE.read_text().split()[0]) if RANGE.exists() else 32768
    while True:
        port = random.SystemRandom().randrange(10_000, below)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
