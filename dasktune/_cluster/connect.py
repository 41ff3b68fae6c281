"""Clients of a running scheduler; encrypted, unless the user allows a plain connection."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from distributed import Client
from distributed.comm.addressing import parse_host_port
from distributed.core import rpc
from distributed.security import Security

from dasktune._engine.timeouts import (
    CLIENT_SECONDS,
    GUESS_SECONDS,
    HELLO_SECONDS,
    HOST_CONNECT_SECONDS,
)
from dasktune.errors import ClusterError, ConfigurationError, refuse

SCHEMES = ("tls", "tcp")

HELLO = b"pickle-protocol"
"""Part of the first bytes that every Dask server sends to a new connection."""

ENOUGH = 4096
"""Number of bytes that hold HELLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """The address of a running scheduler, and the security of the connection.

    Raises
    ------
    ConfigurationError
        If an argument is invalid: all problems at once.
    """

    address: str
    """``tls://host:port``, or ``tcp://host:port``."""
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    """PEM files for ``tls://``: whose certificates are trusted, this side's, and its key. What Dask
    is configured with (``distributed.comm.tls``) if all are None."""
    insecure: bool = False
    """Also use ``tcp://`` beyond this host: whoever reaches the scheduler runs code there."""

    def __post_init__(self) -> None:
        refuse([*self._address_problems(), *self._file_problems()])

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        host, port = parse_host_port(self.address.partition("://")[2])
        return str(host), int(port)

    def security(self) -> Security:
        """Return the security settings for Dask; unusable files raise a `ConfigurationError`."""
        names = {"tls_ca_file": self.ca, "tls_client_cert": self.certificate}
        names["tls_client_key"] = self.key
        given = {name: os.fspath(path) for name, path in names.items() if path is not None}
        security = Security(**given, require_encryption=True) if given else Security()
        try:
            context = security.get_connection_args("client")["ssl_context"]
        except (OSError, ValueError) as error:  # errors of ssl are among them
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

        Raises a `ConfigurationError` if TLS cannot use the files, and a `ClusterError` if no
        scheduler answers there within about 15 seconds; the message names the answer.
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
        context: ssl.SSLContext = security.get_connection_args("client")["ssl_context"]
        return context

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

    Raises a `ConfigurationError` if there is none.
    """
    try:
        return str(json.loads(Path(file).read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            "scheduler-file must be what 'dask scheduler --scheduler-file' has written, got "
            f"{os.fspath(file)!r}: {error}"
        ) from error


async def _kind(address: str, security: Security) -> str:
    """Return the type of the Dask server at an address."""
    arguments = security.get_connection_args("client")
    server = rpc(address, timeout=HOST_CONNECT_SECONDS, connection_args=arguments)
    try:
        identity = await asyncio.wait_for(server.identity(), HELLO_SECONDS)
    except TimeoutError as error:
        raise ClusterError(f"it does not answer for {HELLO_SECONDS:g} s") from error
    finally:
        await server.close_rpc()
    return str(identity["type"])


def _is_loopback(host: str) -> bool:
    """Return whether only this host can reach a host; true for an unknown host."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return True
    return all(ip_address(each.partition("%")[0]).is_loopback for each in addresses)


# ------------------------------------------------------------- the server at an address
#
# Checked before Dask connects: Dask would wait long for a silent server, and would read the
# first bytes of another protocol as a length.


def check_hello(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Refuse an address without a Dask server, by a `ClusterError` that names what answers there.

    `context` has the trusted certificates, and this side's; None without encryption.
    """
    try:
        received = _first_bytes(host, port, context, HELLO_SECONDS)
    except ssl.SSLError as error:
        raise ClusterError(_why_not_encrypted(host, port, error)) from error
    except socket.gaierror as error:
        raise ClusterError(f"the host {host} is not known: {error.strerror}") from error
    except OSError as error:
        raise ClusterError(f"nothing answers there: {error}") from error
    if HELLO not in received:
        raise ClusterError(_what_else(host, port, context, received))


def _first_bytes(
    host: str, port: int, context: ssl.SSLContext | None, patience: float, question: bytes = b""
) -> bytes:
    """Return the first bytes from a server; empty if it is silent for `patience` seconds."""
    deadline = time.monotonic() + patience
    with socket.create_connection((host, port), HOST_CONNECT_SECONDS) as plain:
        plain.settimeout(patience)
        with plain if context is None else context.wrap_socket(plain) as connection:
            connection.sendall(question)
            received = b""
            with suppress(TimeoutError):
                while HELLO not in received and len(received) < ENOUGH:
                    connection.settimeout(max(0.01, deadline - time.monotonic()))
                    more = connection.recv(ENOUGH)
                    if not more:
                        break
                    received += more
            return received


def _why_not_encrypted(host: str, port: int, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (is it the right CA?)"
    if "ALERT" in str(error.reason):
        return f"it refuses this side's certificate: {_in_words(error)}"
    if HELLO in _first_bytes_quickly(host, port):
        return "a scheduler without encryption answers there: tcp://"
    return f"what answers there does not speak TLS ({_in_words(error)})"


def _what_else(host: str, port: int, context: ssl.SSLContext | None, received: bytes) -> str:
    """Return the kind of a server that is not Dask, in words."""
    if context is None and not received and _speaks_tls(host, port):
        return (
            "what answers there speaks TLS: tls://, with the files of --tls-ca, --tls-cert and "
            "--tls-key"
        )
    received = received or _first_bytes_quickly(host, port, context, b"GET / HTTP/1.0\r\n\r\n")
    if received.startswith(b"HTTP/"):
        return (
            f"an HTTP server answers there ({_first_line(received)}); the port of a scheduler is "
            "often 8786, 8787 that of its dashboard"
        )
    if received:
        return f"what answers there is no scheduler of Dask: it says {_first_line(received)!r}"
    return "something listens there, and says nothing"


def _first_bytes_quickly(
    host: str, port: int, context: ssl.SSLContext | None = None, question: bytes = b""
) -> bytes:
    with suppress(OSError):
        return _first_bytes(host, port, context, GUESS_SECONDS, question)
    return b""


def _speaks_tls(host: str, port: int) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        _first_bytes(host, port, anyone, GUESS_SECONDS)
    except ssl.SSLError as error:
        return "ALERT" in str(error.reason)  # a TLS server refuses a client with an alert
    except OSError:
        return False
    return True


def _first_line(received: bytes) -> str:
    return received.splitlines()[0][:60].decode("ascii", "replace")


def _in_words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
