"""Ports for servers that are started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.chaos.ports import free_port


@pytest.mark.parametrize(("kernels", "below"), [("15000 60999", 20_000), ("32768 60999", 32_768)])
def test_free_ports_differ_and_lie_below_the_kernels_range(
    tmp_path: Path, kernels: str, below: int
) -> None:
    (tmp_path / "range").write_text(kernels)
    ports = [free_port(tmp_path / "range") for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(10_000 <= port < below for port in ports)


def test_there_are_ports_where_the_kernel_takes_all(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("1024 65535")
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port(tmp_path / "range")))
