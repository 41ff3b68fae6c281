"""Access to the page: a secret token, and the names by which a browser may reach the server.

Other users of a host reach its loopback, too, so each request for data must carry the token. A
page of another site whose name is made to point to 127.0.0.1 (DNS rebinding) sends its own name
as the host, and is refused.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this host for a browser, also at the end of a tunnel of SSH."""

HEADER = "X-Dasktune-Token"
"""The header with the token. Pages of other sites cannot send it without being allowed to."""

TOKEN_NBYTES = 24


@dataclass(frozen=True, slots=True)
class Access:
    """The token and the names of the host that a request must have.

    Parameters
    ----------
    token
        The secret; a new random one by default.
    hosts
        Names that the header ``Host`` may have, with any port: a tunnel may have another one.

    Examples
    --------
    >>> access = Access(token="secret")
    >>> access.is_host_known("localhost:8000"), access.is_host_known("evil.example:8000")
    (True, False)
    >>> access.is_token("secret"), access.is_token(""), access.is_token("Secret")
    (True, False, False)
    >>> access.is_own_page("http://127.0.0.1:80", "127.0.0.1:80")
    True
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_NBYTES), repr=False)
    hosts: tuple[str, ...] = LOOPBACK

    def is_host_known(self, host: str) -> bool:
        """Return whether the header ``Host`` names this host."""
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname, parts.port  # a port above 65535 is an error
        except ValueError:
            return False
        return name is not None and name in self.hosts

    def is_own_page(self, origin: str, host: str) -> bool:
        """Return whether this page itself sends a request for a change.

        Parameters
        ----------
        origin
            The header ``Origin``, which browsers send with such a request.
        host
            The header ``Host``.
        """
        return self.is_host_known(host) and origin == f"http://{host}"

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token; each text takes the same time."""
        return hmac.compare_digest(self.token.encode(), given.encode(errors="surrogateescape"))

    def address(self, port: int, study_id: int | None = None) -> str:
        """Return the address to open: its part after ``#`` is never sent over the network.

        Parameters
        ----------
        study_id
            The study to show first; None for the list of all.
        """
        place = "" if study_id is None else f"/{study_id}/overview&"
        return f"http://127.0.0.1:{port}/#{place}token={self.token}"
