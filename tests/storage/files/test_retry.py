"""Failures that may pass are retried at growing intervals for a limited time."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.storage.files.failures import FilesError, is_passing, reason_of
from dasktune.storage.files.retry import Patience


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def patience(self, draw=1.0, **more):
        return Patience(clock=lambda: self.now, sleep=self.sleep, draw=lambda: draw, **more)


def failing(times, error=None):
    """Return work that fails a number of times, then returns the number of tries."""
    tries = []

    def work():
        tries.append(1)
        if len(tries) <= times:
            raise error or TimeoutError("slow")
        return len(tries)

    return work


class AnswerError(Exception):
    """An error response of S3, as botocore raises it."""

    def __init__(self, code, status):
        super().__init__(f"{code} it is")
        metadata = {"HTTPStatusCode": status}
        self.response = {"Error": {"Code": code}, "ResponseMetadata": metadata}


class StatusError(Exception):
    """An error response, as other libraries raise it."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class CodeError(Exception):
    """An error response, as still other libraries raise it."""

    def __init__(self, **numbers):
        super().__init__("refused")
        vars(self).update(numbers)


class SSLError(ConnectionError):
    """A certificate that is not valid; the name is that of requests."""


class NoCredentialsError(Exception):
    """The name is that of botocore."""


class ClientPayloadError(StatusError):
    """The error of aiohttp for a torn answer; its status does not matter."""


def test_intervals_double_up_to_the_longest():
    time = Time()
    assert time.patience(first=0.5, longest=3.0).call(failing(5)) == 6
    assert time.slept == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_last_error_is_raised_after_the_time():
    time = Time()
    with pytest.raises(TimeoutError, match="slow"):
        time.patience(seconds=120.0).call(failing(10**9))
    assert 100 < sum(time.slept) < 120


SIXTEENTHS = st.integers(0, 15).map(lambda number: number / 16)
"""Numbers that floats add up exactly, also on a clock that stands at 1,000 seconds."""


@given(
    seconds=st.integers(0, 500),
    draws=st.lists(SIXTEENTHS, min_size=1),
    tries=st.integers(0, 300),
)
def test_no_retry_begins_after_the_time(seconds, draws, tries):
    time, left = Time(), iter(draws)
    patience = Patience(
        seconds=seconds,
        clock=lambda: time.now,
        sleep=time.sleep,
        draw=lambda: next(left, 1.0),
    )
    try:
        assert patience.call(failing(tries)) == tries + 1
    except TimeoutError:
        assert tries > 0
    assert sum(time.slept) <= seconds
    assert all(0 <= slept <= patience.longest for slept in time.slept)


def test_lasting_errors_are_raised_at_once():
    time = Time()
    with pytest.raises(PermissionError):
        time.patience().call(failing(1, PermissionError("denied")))
    with pytest.raises(KeyboardInterrupt):
        time.patience().call(failing(1, KeyboardInterrupt()))
    assert time.slept == []


def test_request_seconds_grow_with_the_bytes():
    assert Patience().request_seconds(0) == 30
    assert Patience().request_seconds(256 * 2**20) == 30 + 1024
    assert Patience(request=5.0).request_seconds(256 * 2**20) == 5


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *(("SlowDown", 503), ("ServiceUnavailable", 503), ("InternalError", 500), ("", 502)),
        *(("TooManyRequests", 429), ("RequestLimitExceeded", 400), ("RequestTimeout", 400)),
        *(("ConditionalRequestConflict", 409), ("IncompleteBody", 400), ("503", 503)),
    ],
)
def test_throttling_and_server_errors_are_passing(code, status):
    assert is_passing(AnswerError(code, status))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *(("AccessDenied", 403), ("NoSuchBucket", 404), ("NoSuchKey", 404), ("404", 404)),
        *(("InvalidAccessKeyId", 403), ("SignatureDoesNotMatch", 403), ("ExpiredToken", 400)),
        *(("PermanentRedirect", 301), ("AuthorizationHeaderMalformed", 400)),
        ("PreconditionFailed", 412),
    ],
)
def test_refusals_are_not_passing(code, status):
    assert not is_passing(AnswerError(code, status))
    wrapped = OSError(errno.EINVAL, "refused")
    wrapped.__cause__ = AnswerError(code, status)
    assert not is_passing(wrapped)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (TimeoutError(), True),
        (OSError(errno.ENOSPC, "full"), False),
        (FileNotFoundError(), False),
        (ValueError("bad name"), False),
        (StatusError(503), True),
        (StatusError(404), False),
        (ClientPayloadError(400), True),
        (CodeError(status_code="429"), True),
        (CodeError(code=500), True),
        (CodeError(code=5, status_code=503), True),
        (CodeError(status=404, code=503), False),
        (CodeError(status="busy", code=None), False),
        (SSLError("no certificate"), False),
    ],
    ids=repr,
)
def test_broken_connections_are_passing(error, passes):
    assert is_passing(error) is passes


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x", "/data/c.0"), "no space is left on the disk (/data/c.0)"),
        (OSError(errno.EDQUOT, "x"), "the disk quota is used up"),
        (PermissionError(errno.EACCES, "x", "/data"), "access is denied (/data)"),
        (AnswerError("NoSuchBucket", 404), "bucket 'b' does not exist"),
        (AnswerError("AccessDenied", 403), "access to bucket 'b' is denied to these credentials"),
        (AnswerError("403", 403), "access to bucket 'b' is denied to these credentials"),
        (
            AnswerError("PermanentRedirect", 301),
            "bucket 'b' is in another region: set AWS_DEFAULT_REGION to its own",
        ),
        (TimeoutError(), "the store did not answer in time"),
        (RuntimeError(), "RuntimeError"),
        (TimeoutError("after 5 s"), "after 5 s"),
        (
            FilesError("as it is: token=ASIAIOSFODNN7EXAMPLE"),
            "as it is: token=ASIAIOSFODNN7EXAMPLE",
        ),
        (OSError("the key AKIAIOSFODNN7EXAMPLE is unknown"), "the key *** is unknown"),
        (StatusError(401), "access to bucket 'b' is denied to these credentials"),
        (NoCredentialsError("x"), "no credentials were found for it"),
        (OSError(errno.ENOENT, "nothing", "/data"), "[Errno 2] nothing: '/data'"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_each_failure_has_a_sentence(error, sentence):
    assert reason_of(error, bucket="b") == sentence


@pytest.mark.parametrize("place", ["error", "header"])
def test_reason_names_the_region_of_a_bucket(place):
    error = AnswerError("PermanentRedirect", 301)
    if place == "error":
        error.response["Error"]["Region"] = "eu-central-1"
    else:
        error.response["ResponseMetadata"]["HTTPHeaders"] = {"x-amz-bucket-region": "eu-central-1"}
    sentence = "bucket 'b' is in region eu-central-1: set AWS_DEFAULT_REGION=eu-central-1"
    assert reason_of(error, bucket="b") == sentence


def test_many_tries_wait_no_longer_than_the_longest():
    time = Time()
    assert time.patience(seconds=1e9, first=1.0, longest=2.0).call(failing(1100)) == 1101
    assert time.slept == [1.0] + [2.0] * 1099


@pytest.mark.parametrize(("seconds", "retries"), [(3.0, 1), (3.5, 2), (1.0, 0)])
def test_retry_that_would_begin_at_the_end_is_left_out(seconds, retries):
    time = Time()
    with pytest.raises(TimeoutError):
        time.patience(seconds=seconds, first=1.0).call(failing(9))
    assert time.slept == [1.0, 2.0][:retries]
