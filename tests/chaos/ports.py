"""Ports for servers that are started again."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Where the kernel takes the ports of outgoing connections from."""


FIRST, ROOM = 10_000, 10_000
"""The first port that is given, and how many at least: some of the kernel's own, if need be."""

BLOCK = 50
"""Ports that one process has to itself: no other one takes a port before its server has it."""

_claims: list[socket.socket] = []
_drawn: dict[int, Iterator[int]] = {}
"""The ports that are left of this process's block, by the number of ports in all."""


def free_port(kernels: Path = RANGE) -> int:
    """Return a free loopback port outside the kernel's range for outgoing connections.

    A server that is down for a moment would lose one of the kernel's own range: to any connection
    that goes out, and to a client that tries to reach the server there, and meets itself. No
    process is given a port twice, and no two processes at work are given the same one.

    Parameters
    ----------
    kernels
        The file with the kernel's range.
    """
    below = int(kernels.read_text().split()[0]) if kernels.exists() else 32_768
    room = max(ROOM, below - FIRST)
    while True:
        port = next(_drawn.get(room, iter(())), None)
        if port is None:
            _drawn[room] = iter(_new_block(room))
            continue
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port


def _new_block(room: int) -> range:
    """Return ports that no other process draws from, as long as this one lives."""
    while True:
        first = FIRST + BLOCK * secrets.randbelow(room // BLOCK)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0dasktune-ports-{first}")  # such a name is gone with its process
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return range(first, first + BLOCK)
