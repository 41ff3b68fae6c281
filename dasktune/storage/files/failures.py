"""Failures of a store: whether a retry may succeed, and the reason as a sentence.

Each library behind fsspec has its own exceptions. They are recognised by the name of their
class and by the response they hold, so that none of the libraries must be installed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from dasktune.storage.redaction import redacted

_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509})

_PASSING_CODES = frozenset(
    {
        *("BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"),
        *("ConditionalRequestConflict", "OperationAborted"),
        *("InternalError", "ServiceUnavailable", "SlowDown"),
        *("RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests"),
    }
)

_PASSING_CLASSES = frozenset(
    {
        *("TimeoutError", "ConnectionError", "EOFError", "IncompleteRead"),
        # botocore, aiohttp, requests, Azure
        *("HTTPClientError", "IncompleteReadError", "ResponseParserError"),
        *("ClientConnectionError", "ClientPayloadError", "ContentLengthError"),
        *("ServiceRequestError", "ServiceResponseError", "ChunkedEncodingError"),
    }
)

_LASTING_CLASSES = frozenset({"SSLError", "ClientSSLError"})
"""Connection errors that no retry mends: a certificate does not become valid."""

_WITHOUT_CREDENTIALS = frozenset(
    {"NoCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError"}
)

_OTHER_REGION = frozenset(
    {
        *("PermanentRedirect", "Redirect", "TemporaryRedirect", "301"),
        *("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
    }
)

_REASONS = {
    "NoSuchBucket": "bucket {bucket!r} does not exist",
    "InvalidBucketName": "{bucket!r} is not the name of a bucket",
    "InvalidAccessKeyId": "the access key is not known to the store",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is too far from the store's",
    "QuotaExceeded": "the quota of bucket {bucket!r} is used up",
    "InsufficientCapacity": "the store is full",
    "XMinioStorageFull": "the store is full",
}
"""Sentences by error code of S3."""

_DISK_REASONS = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would be larger than this process or disk allows",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "access is denied",
    errno.EPERM: "access is denied",
}
"""Sentences by the number of the operating system's error."""


class FilesError(OSError):
    """An operation on a store failed; the message is a sentence for the user."""


def is_passing(error: BaseException) -> bool:
    """Return whether the same request may succeed later.

    True for throttling, errors of the server, time-outs and broken connections; False for a
    request that the store refuses, such as one with wrong credentials.
    """
    names = _class_names(error)
    if not _answer(error) and names & (_PASSING_CLASSES | _LASTING_CLASSES):
        return not names & _LASTING_CLASSES
    return code_of(error) in _PASSING_CODES or _status_of(error) in _PASSING_STATUS


def code_of(error: BaseException) -> str:
    """Return the error code in an object store's response; empty without a response."""
    return str(_answer(error).get("Error", {}).get("Code") or "")


def is_beyond_end(error: BaseException) -> bool:
    """Return whether a store refused to read a part that begins at the end of an object."""
    return code_of(error) == "InvalidRange" or _status_of(error) == 416


def reason_of(error: BaseException, *, bucket: str = "") -> str:
    """Return the reason of a store's failure as a sentence without secrets.

    Parameters
    ----------
    error
        Error of the operating system or of any library behind fsspec.
    """
    if isinstance(error, FilesError):
        return str(error)
    code = code_of(error)
    if code in _OTHER_REGION:
        reason = _region_reason(error, bucket)
    elif code in _REASONS:
        reason = _REASONS[code].format(bucket=bucket)
    elif code == "AccessDenied" or _status_of(error) in (401, 403):
        reason = f"access to bucket {bucket!r} is denied to these credentials"
    elif _class_names(error) & _WITHOUT_CREDENTIALS:
        reason = "no credentials were found for it"
    elif isinstance(error, OSError) and error.errno in _DISK_REASONS:
        name = f" ({error.filename})" if error.filename else ""
        reason = f"{_DISK_REASONS[error.errno]}{name}"
    elif "TimeoutError" in _class_names(error) and not str(error):
        reason = "the store did not answer in time"
    else:
        reason = str(error) or type(error).__name__
    return redacted(reason)


def _region_reason(error: BaseException, bucket: str) -> str:
    answer = _answer(error)
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    if not region:
        return f"bucket {bucket!r} is in another region: set AWS_DEFAULT_REGION to its own"
    return f"bucket {bucket!r} is in region {region}: set AWS_DEFAULT_REGION={region}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _answer(error: BaseException) -> dict[str, Any]:
    """Return the store's response as botocore parsed it."""
    answers = (getattr(cause, "response", None) for cause in _chain(error))
    return next((answer for answer in answers if isinstance(answer, dict)), {})


def _status_of(error: BaseException) -> int:
    """Return the HTTP status of the store's response, or 0."""
    candidates = [_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")]
    for cause in _chain(error):
        candidates += [getattr(cause, name, None) for name in ("status", "status_code", "code")]
    numbers = (int(n) for n in candidates if isinstance(n, int | str) and str(n).isdecimal())
    return next((number for number in numbers if number >= 100), 0)


def _class_names(error: BaseException) -> set[str]:
    return {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}
