"""Clients of a scheduler that somebody else has started: encrypted, unless asked otherwise."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from distributed import Client
from distributed.comm.addressing import parse_host_port
from distributed.core import rpc
from distributed.security import Security

from dasktune.cluster.hello import CONNECT_SECONDS, HELLO_SECONDS, check_hello
from dasktune.errors import ClusterError, ConfigurationError, refuse

CLIENT_SECONDS = 10.0
"""How long a scheduler may take to accept a client."""

SCHEMES = ("tls", "tcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A scheduler that is there, and how it is talked to.

    Parameters
    ----------
    address
        ``tls://host:port``, or ``tcp://host:port``.
    ca, certificate, key
        PEM files for ``tls://``: whose certificates are trusted, this side's, and its key.
        What Dask is configured with (``distributed.comm.tls``) if all are None.
    insecure
        Also use ``tcp://`` beyond this host: whoever reaches the scheduler runs code there.

    Raises
    ------
    ConfigurationError
        If anything of this cannot be: all problems at once.
    """

    address: str
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        refuse([*self._address_problems(), *self._file_problems()])

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, port = parse_host_port(self.address.partition("://")[2])
        return str(host), int(port)

    def security(self) -> Security:
        """Return what Dask connects with.

        Raises
        ------
        ConfigurationError
            If the files are none that TLS can use.
        """
        names = {"tls_ca_file": self.ca, "tls_client_cert": self.certificate}
        names["tls_client_key"] = self.key
        given = {name: os.fspath(path) for name, path in names.items() if path is not None}
        security = Security(**given, require_encryption=True) if given else Security()
        try:
            context = security.get_connection_args("client")["ssl_context"]
        except (OSError, ValueError) as error:  # of ssl, too
            raise ConfigurationError(
                f"TLS cannot use {given or 'what Dask has'}: {error}"
            ) from error
        if context is None and self.address.startswith("tls://"):
            raise ConfigurationError(
                f"{self.address} must come with --tls-ca, --tls-cert and --tls-key, or with "
                "distributed.comm.tls in Dask's configuration"
            )
        return security

    def client(self) -> Client:
        """Return a client.

        Raises
        ------
        ConfigurationError
            If the files are none that TLS can use.
        ClusterError
            If no scheduler answers there, saying what does; within about 15 seconds.
        """
        security = self.security()
        try:
            check_hello(*self.place, self._context(security))
            kind = asyncio.run(_kind(self.address, security))
            if kind != "Scheduler":
                raise ClusterError(f"a {kind} of Dask answers there")
            return Client(self.address, security=security, timeout=CLIENT_SECONDS)
        except (ClusterError, OSError, ValueError, RuntimeError) as error:
            raise ClusterError(
                f"cannot reach the scheduler {self.address}: {str(error) or type(error).__name__}"
            ) from error

    def _context(self, security: Security) -> ssl.SSLContext | None:
        if not self.address.startswith("tls://"):
            return None
        found: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
        return found

    def _address_problems(self) -> Iterator[str]:
        scheme, separator, _ = self.address.partition("://")
        try:
            host, _ = self.place
        except ValueError:
            separator = ""
        if not separator or scheme not in SCHEMES:
            yield f"scheduler must be tls://host:port or tcp://host:port, got {self.address!r}"
        elif scheme == "tcp" and not self.insecure and not _is_loopback(host):
            yield (
                f"scheduler must be tls://..., got {self.address}: whoever reaches a scheduler "
                "without encryption runs code on it; --insecure uses it all the same"
            )

    def _file_problems(self) -> Iterator[str]:
        files = {"tls-ca": self.ca, "tls-cert": self.certificate, "tls-key": self.key}
        given = [name for name, path in files.items() if path is not None]
        if given and len(given) < len(files):
            missing = ", ".join(f"--{name}" for name in files if name not in given)
            yield f"--tls-ca, --tls-cert and --tls-key must be given together, {missing} is missing"
        if given and self.address.startswith("tcp://"):
            yield f"--{given[0]} is for tls://, got {self.address}"
        for name in given:
            path = files[name]
            if path is not None and not Path(path).is_file():
                yield f"--{name} must be a file, got {os.fspath(path)!r}"


def address_in(file: str | os.PathLike[str]) -> str:
    """Return the address in a file that ``dask scheduler --scheduler-file`` has written.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    try:
        return str(json.loads(Path(file).read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            "scheduler-file must be what 'dask scheduler --scheduler-file' has written, got "
            f"{os.fspath(file)!r}: {error}"
        ) from error


async def _kind(address: str, security: Security) -> str:
    """Return which of Dask's servers answers."""
    arguments = security.get_connection_args("client")
    server = rpc(address, timeout=CONNECT_SECONDS, connection_args=arguments)
    try:
        found = await asyncio.wait_for(server.identity(), HELLO_SECONDS)
    except TimeoutError as error:
        raise ClusterError(f"it does not answer for {HELLO_SECONDS:g} s") from error
    finally:
        await server.close_rpc()
    return str(found["type"])


def _is_loopback(host: str) -> bool:
    """Whether only this host can reach another; what is unknown nobody can."""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return all(ip_address(one.partition("%")[0]).is_loopback for one in found)
