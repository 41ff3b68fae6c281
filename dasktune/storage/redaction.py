"""Nothing that opens a store or database may be read in an error, a log or a report."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping

import fsspec.config

SECRET = "***"
"""What stands where a secret was."""

_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD")

_SHORTEST = 8
"""Letters of the shortest value that is looked for; a shorter one may be any word."""

_OPTION = re.compile(r"(?i)key|secret|token|password|credential|connection_string|signature")

_PATTERNS = (
    # User and password of a URL; a password may hold slashes, a port is none.
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
    """Return a text without what looks like a secret, such as the password in a URL.

    Also taken out are the credentials that this process has in its environment or in the
    configuration of fsspec, wherever they stand.

    Examples
    --------
    >>> redacted("cannot reach postgresql://ann:letmein@db/tuning?password=letmein")
    'cannot reach postgresql://***@db/tuning?password=***'
    """
    for value in sorted(set(_credentials()), key=len, reverse=True):
        text = text.replace(value, SECRET)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def showable(error: BaseException) -> BaseException | None:
    """Return an error as the cause of another; None if its story tells a secret."""
    story = "".join(traceback.format_exception(error))
    return error if redacted(story) == story else None


def _credentials() -> Iterator[str]:
    """Return the secrets of this process that have a known place."""
    values = [os.environ.get(name, "") for name in _VARIABLES]
    values += _secret_options(fsspec.config.conf)
    return (value for value in values if len(value) >= _SHORTEST)


def _secret_options(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_options(value)
        elif isinstance(value, str) and _OPTION.search(name):
            yield value
