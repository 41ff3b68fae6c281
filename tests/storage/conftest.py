"""S3 servers for the tests of stores, each behind the variables that any client reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.services import S3Server
from tests.storage.proxy import Proxy

SERVERS = (
    pytest.param("moto", marks=pytest.mark.s3),
    pytest.param("ceph", marks=pytest.mark.ceph),
)


@pytest.fixture
def point_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what sends this process's S3 clients to a server, or a proxy before it."""
    from s3fs import S3FileSystem

    def point(server: S3Server, port: int | None = None, **more: str) -> None:
        for name, value in {**server.environment(port), **more}.items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()

    yield point
    S3FileSystem.clear_instance_cache()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, point_at: Callable[..., None]) -> S3Server:
    """Return each S3 server in turn; this process's clients go there."""
    found: S3Server = request.getfixturevalue(request.param)
    point_at(found)
    return found


@pytest.fixture
def proxy(server: S3Server, point_at: Callable[..., None]) -> Iterator[Proxy]:
    """Return a proxy before the server; this process's clients go there."""
    with Proxy(server.port) as found:
        point_at(server, found.port)
        yield found
