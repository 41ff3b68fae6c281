"""Ports for servers that are started again."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.chaos import ports
from tests.chaos.ports import free_port


@pytest.mark.parametrize(("kernels", "below"), [("15000 60999", 20_000), ("32768 60999", 32_768)])
def test_free_ports_differ_and_lie_below_the_kernels_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, below: int
) -> None:
    monkeypatch.setattr(ports, "RANGE", tmp_path / "range")
    (tmp_path / "range").write_text(kernels)
    found = [free_port() for _ in range(200)]
    assert len(set(found)) == 200
    assert all(10_000 <= port < below for port in found)


def test_there_are_ports_where_the_kernel_takes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "RANGE", tmp_path / "range")
    (tmp_path / "range").write_text("1024 65535")
    with socket.socket() as one:
        one.bind(("127.0.0.1", free_port()))
