"""Removing credentials of stores and databases from errors, logs and reports."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping

import fsspec.config

SECRET = "***"
"""Replaces every secret."""

_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD")

_SHORTEST = 8
"""Letters of the shortest secret; a shorter value may be any word."""

_OPTION = re.compile(r"(?i)key|secret|token|password|credential|connection_string|signature")

_PATTERNS = (
    # User and password of a URL; a password may hold slashes, and a port must stay.
    (re.compile(r"://[^\s/@:'\"]*:(?!\d+[/\s])[^\s@]*@|://[^\s/@'\"]+@"), f"://{SECRET}@"),
    # Signed URLs of S3, Google and Azure, request headers, and the options of a database's URL.
    (
        re.compile(
            r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature"
            r"|awsaccesskeyid|credential|sig|password|passwd|pwd)=)[^\s&,;'\"<>]+"
        ),
        rf"\g<1>{SECRET}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), SECRET),
)


def redacted(text: str) -> str:
    """Return a text in which everything that looks like a secret is replaced.

    That is the password in a URL, for example, and wherever they occur the credentials in the
    environment of this process and in the configuration of fsspec.

    Examples
    --------
    >>> redacted("cannot reach postgresql://ann:letmein@db/tuning?password=letmein")
    'cannot reach postgresql://***@db/tuning?password=***'
    """
    for value in sorted(set(_credentials()), key=len, reverse=True):
        text = text.replace(value, SECRET)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def showable(error: BaseException) -> BaseException | None:
    """Return an error that may be shown as a cause; None if its traceback holds a secret."""
    text = "".join(traceback.format_exception(error))
    return error if redacted(text) == text else None


def _credentials() -> Iterator[str]:
    """Return the secrets in the environment and in the configuration of fsspec."""
    values = [os.environ.get(name, "") for name in _VARIABLES]
    values += _secret_options(fsspec.config.conf)
    return (value for value in values if len(value) >= _SHORTEST)


def _secret_options(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_options(value)
        elif isinstance(value, str) and _OPTION.search(name):
            yield value
