"""Fixtures for the tests of stores: S3 servers behind environment variables, small chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dasktune.storage import zarr_array
from dasktune.storage.buffers import ALIGNMENT
from tests.services import S3Server
from tests.storage.proxy import Proxy

SERVERS = (
    pytest.param("moto", marks=pytest.mark.s3),
    pytest.param("ceph", marks=pytest.mark.ceph),
)


@pytest.fixture
def point_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that sends this process's S3 clients to a server or to a proxy."""
    from s3fs import S3FileSystem

    def point(server: S3Server, port: int | None = None, **more: str) -> None:
        for name, value in {**server.environment(port), **more}.items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()

    yield point
    S3FileSystem.clear_instance_cache()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, point_at: Callable[..., None]) -> S3Server:
    """Return each S3 server in turn; this process's clients use it."""
    s3: S3Server = request.getfixturevalue(request.param)
    point_at(s3)
    return s3


@pytest.fixture
def proxy(server: S3Server, point_at: Callable[..., None]) -> Iterator[Proxy]:
    """Return a proxy before the server; this process's clients use it."""
    with Proxy(server.port) as running:
        point_at(server, running.port)
        yield running


@pytest.fixture
def cut_chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets the size of chunks, so that small arrays have several."""
    monkeypatch.setattr(zarr_array, "PAGE", ALIGNMENT)
    return lambda nbytes: monkeypatch.setattr(zarr_array, "CHUNK_BYTES", nbytes)
