"""What answers at the address of a scheduler, found out before Dask talks to it.

Dask itself would wait for long, or take the first bytes of anything for a length.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

from dasktune.errors import ClusterError

CONNECT_SECONDS = 5.0
"""How long a host may take to accept a connection."""

HELLO_SECONDS = 6.0
"""How long a scheduler may take to say who it is; one that imports is silent for seconds."""

GUESS_SECONDS = 1.0
"""How long something else may take to answer, for each guess what it might be."""

HELLO = b"pickle-protocol"
"""Among the first words of every server of Dask to whoever connects."""

ENOUGH = 4096
"""Bytes that hold the first words."""


def check_hello(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Refuse an address where no server of Dask answers.

    Parameters
    ----------
    host, port
        The address.
    context
        Trusted certificates, and this side's; None without encryption.

    Raises
    ------
    ClusterError
        Saying what answers there.
    """
    try:
        said = _said(host, port, context, HELLO_SECONDS)
    except ssl.SSLError as error:
        raise ClusterError(_why_not_encrypted(host, port, error)) from error
    except socket.gaierror as error:
        raise ClusterError(f"the host {host} is not known: {error.strerror}") from error
    except OSError as error:
        raise ClusterError(f"nothing answers there: {error}") from error
    if HELLO not in said:
        raise ClusterError(_what_else(host, port, context, said))


def _said(
    host: str, port: int, context: ssl.SSLContext | None, patience: float, question: bytes = b""
) -> bytes:
    """Return the first words of who answers, empty if there are none for `patience` seconds."""
    deadline = time.monotonic() + patience
    with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
        plain.settimeout(patience)
        with plain if context is None else context.wrap_socket(plain) as connection:
            connection.sendall(question)
            said = b""
            with suppress(TimeoutError):
                while HELLO not in said and len(said) < ENOUGH:
                    connection.settimeout(max(0.01, deadline - time.monotonic()))
                    more = connection.recv(ENOUGH)
                    if not more:
                        break
                    said += more
            return said


def _why_not_encrypted(host: str, port: int, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (is it the right CA?)"
    if "ALERT" in str(error.reason):
        return f"it refuses this side's certificate: {_in_words(error)}"
    if HELLO in _said_quickly(host, port):
        return "a scheduler without encryption answers there: tcp://"
    return f"what answers there does not speak TLS ({_in_words(error)})"


def _what_else(host: str, port: int, context: ssl.SSLContext | None, said: bytes) -> str:
    """Say what answers if it is not Dask."""
    if context is None and not said and _speaks_tls(host, port):
        return (
            "what answers there speaks TLS: tls://, with the files of --tls-ca, --tls-cert and "
            "--tls-key"
        )
    said = said or _said_quickly(host, port, context, b"GET / HTTP/1.0\r\n\r\n")
    if said.startswith(b"HTTP/"):
        return (
            f"an HTTP server answers there ({_first_line(said)}); the port of a scheduler is "
            "often 8786, 8787 that of its dashboard"
        )
    if said:
        return f"what answers there is no scheduler of Dask: it says {_first_line(said)!r}"
    return "something listens there, and says nothing"


def _said_quickly(
    host: str, port: int, context: ssl.SSLContext | None = None, question: bytes = b""
) -> bytes:
    with suppress(OSError):
        return _said(host, port, context, GUESS_SECONDS, question)
    return b""


def _speaks_tls(host: str, port: int) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        _said(host, port, anyone, GUESS_SECONDS)
    except ssl.SSLError as error:
        return "ALERT" in str(error.reason)  # it has refused, in the words of TLS
    except OSError:
        return False
    return True


def _first_line(said: bytes) -> str:
    return said.splitlines()[0][:60].decode("ascii", "replace")


def _in_words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
