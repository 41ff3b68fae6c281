"""Removing credentials of stores and databases from errors, logs and reports."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from urllib.parse import quote

import fsspec.config

SECRET = "***"
"""Replaces every secret."""

_VARIABLE = re.compile(
    r"(?i)(?:password|passwd|secret|credential|connection_string"
    r"|(?:^|_)(?:key|api_?key|token|pat|sas|auth)(?:_|$))"
)
"""Names of variables of the environment whose values are secrets: of all libraries."""

_SURE = re.compile(r"(?i)password|passwd|secret|credential|connection_string")
"""Names of variables whose value is a secret even if it is a word or a number."""

_LONG = 16
"""Letters of a secret that may be a word or a number, in a variable such as ``SORT_KEY``."""

_PLACE = re.compile(r"(?i)(?:file|path|dir|folder|url|name|user|id)s?$")
"""The ends of names of variables that say where a secret is, or to whom it belongs."""

_VARIABLES = frozenset({"AWS_ACCESS_KEY_ID"})
"""Variables of secrets whose names look otherwise."""

_PART = re.compile(r"(?i)(?:accountkey|sharedaccesskey|sharedaccesssignature)=([^;]+)")
"""The secret in a connection string of Azure."""

_SHORTEST = 8
"""Letters of the shortest secret; a shorter value may be any word."""

_OPTION = re.compile(r"(?i)key|secret|token|password|credential|connection_string|signature")

_PATTERNS = (
    # User and password of a URL; a password may hold slashes, and a port must stay.
    (
        re.compile(r"://[^\s/@:'\"]{0,999}:(?!\d+[/\s])[^\s@]{0,999}@|://[^\s/@'\"]{1,999}@"),
        f"://{SECRET}@",
    ),
    # Signed URLs of S3, Google and Azure, request headers, and the options of a database's URL.
    (
        re.compile(
            r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature"
            r"|awsaccesskeyid|accountkey|sharedaccesskey|sharedaccesssignature"
            r"|credential|sig|password|passwd|pwd)=)[^\s&,;'\"<>]+"
        ),
        rf"\g<1>{SECRET}",
    ),
    # Headers of requests, as text or in a printed dictionary.
    (
        re.compile(
            r"(?i)((?:authorization|x-api-key|api-key)['\"]?\s*[:=]\s*['\"]?)"
            r"(?:(?:bearer|basic|token)\s+[^'\"\n\r,}\s]+|(?=[^\s'\"]{0,99}\d)[^'\"\n\r,}\s]{8,})"
        ),
        rf"\g<1>{SECRET}",
    ),
    (re.compile(r"(?i)\b(bearer)\s+(?=\S{0,99}[\d=])[\w.~+/=-]{12,}"), rf"\g<1> {SECRET}"),
    (re.compile(r"(?<=['\"])(Basic)\s+[\w.~+/=-]{8,}(?=['\"])"), rf"\g<1> {SECRET}"),
    (
        re.compile(r"\b(Basic)\s+(?=[\w+/]{0,99}[A-Z])(?=[\w+/]{0,99}\d)[\w+/]{8,}={0,2}"),
        rf"\g<1> {SECRET}",
    ),
    # Printed configurations: a value of at least 16 letters with a digit, and no call.
    (
        re.compile(
            r"(?i)((?:api_?key|(?:access|account|secret|private|subscription)_?key"
            r"|(?:access|api|auth|id|refresh|session|bearer)_?token|token|client_?secret|secret"
            r"|passw(?:or)?d|passphrase)['\"]?\s*[:=]\s*['\"]?)"
            r"(?=[^\s'\"]{0,99}\d)[\w~+/=-]{16,}(?![\w(\[.])"
        ),
        rf"\g<1>{SECRET}",
    ),
    (re.compile(r"(?i)(passw(?:or)?d['\"]\s*:\s*['\"])[^'\"]+"), rf"\g<1>{SECRET}"),
    # Private keys, also those that a log cut.
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        SECRET,
    ),
    # Tokens that a prefix tells: AWS, Hugging Face, GitHub, GitLab, W&B, Slack, Google,
    # Databricks, OpenAI and others, and JSON web tokens.
    (
        re.compile(
            r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|gh[opsru]_[A-Za-z0-9]{20,}"
            r"|github_pat_\w{20,}|glpat-[\w-]{20,}|wandb_v\d_\w{20,}|xox[abeprs]-[\w-]{10,}"
            r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|dapi[0-9a-f]{32}"
            r"|sk-(?:proj-|ant-)[\w-]{20,}|sk-(?=\w{0,99}\d)\w{20,}"
            r"|(?<![\w-])eyJ[\w-]{8,4000}\.eyJ[\w-]{8,4000}\.[\w-]{0,4000})"
        ),
        SECRET,
    ),
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
        if value in text:
            text = _without(text, value)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _without(text: str, value: str) -> str:
    """Replace a secret; one of letters alone may be a part of a word, such as ``postgres``."""
    if not value.isalpha():
        return text.replace(value, SECRET)
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", SECRET, text)


def showable(error: BaseException) -> BaseException | None:
    """Return an error that may be shown as a cause; None if its traceback holds a secret."""
    text = "".join(traceback.format_exception(error))
    return error if redacted(text) == text else None


def _credentials() -> Iterator[str]:
    """Return the secrets in the environment and in the configuration of fsspec."""
    values = [
        value
        for name, value in os.environ.items()
        if _is_secret(name) and (name in _VARIABLES or _SURE.search(name) or _is_drawn(value))
    ]
    values += _secret_options(fsspec.config.conf)
    values += [part for value in values if ";" in value for part in _PART.findall(value)]
    for value in values:
        if len(value) >= _SHORTEST and not _is_place(value):
            yield from {value, quote(value, safe=""), quote(value)}


@cache
def _is_secret(name: str) -> bool:
    """Return whether a variable of the environment holds a secret, as its name says."""
    return name in _VARIABLES or bool(_VARIABLE.search(name) and not _PLACE.search(name))


def _is_drawn(value: str) -> bool:
    """Return whether a value looks drawn: it is long, or has letters and digits."""
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return len(value) >= _LONG or has_both


def _is_place(value: str) -> bool:
    """Return whether a value is the path of a file, such as that of Google's credentials."""
    return value.startswith(("/", "~/")) and os.path.exists(os.path.expanduser(value))


def _secret_options(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secret_options(value)
        elif isinstance(value, str) and _OPTION.search(name):
            yield value
