"""Credentials of stores and databases never appear in texts."""

from __future__ import annotations

import traceback

import fsspec
import pytest

from dasktune.errors import ConfigurationError, StorageError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.redaction import redacted, showable

SECRET = "letmein/please+now"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open s3://AKIA:let/me@bucket/x: no", "cannot open s3://***@bucket/x: no"),
        ("s3://letmein@bucket", "s3://***@bucket"),
        ("postgresql+psycopg://ann:letmein@db:5432/x", "postgresql+psycopg://***@db:5432/x"),
        ("postgresql://db/x?user=ann&password=letmein", "postgresql://db/x?user=ann&password=***"),
        (
            "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AK%2F2026&X-Amz-Signature=0f&x=1",
            "GET https://b.s3.amazonaws.com/k?X-Amz-Credential=***&X-Amz-Signature=***&x=1",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=AKIA/2026/s3, SignedHeaders=host, Signature=0f9e",
            "AWS4-HMAC-SHA256 Credential=***, SignedHeaders=host, Signature=***",
        ),
        ("https://a.blob.core.windows.net/c?sv=1&sig=abc%3D", "https://a.blob.core.windows.net/c?sv=1&sig=***"),
        ("the key AKIAIOSFODNN7EXAMPLE is unknown", "the key *** is unknown"),
    ],
)  # fmt: skip
def test_secrets_are_redacted(text, expected):
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        'Could not connect to the endpoint URL: "http://127.0.0.1:9000/bucket/checkpoints/a1"',
        "cannot write to s3://bucket/tuning: bucket 'bucket' does not exist",
        "http://127.0.0.1:9000/bucket/a@b",
        "cannot read from /home/ann@lab/runs: access is denied",
    ],
)
def test_text_without_secrets_is_unchanged(text):
    assert redacted(text) == text


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD"])
def test_credentials_of_the_environment_are_redacted(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert redacted(f"signed with <{SECRET}>.") == "signed with <***>."


def test_credentials_of_the_fsspec_config_are_redacted(monkeypatch):
    options = {"key": "my-access-key", "client_kwargs": {"aws_secret_access_key": SECRET}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {**options, "endpoint_url": "http://store"})
    assert redacted(f"http://store: my-access-key, {SECRET}") == "http://store: ***, ***"


def test_short_words_are_not_redacted(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    assert redacted("s3://test-bucket") == "s3://test-bucket"


def test_showable_refuses_errors_with_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert isinstance(showable(OSError("bad line")), OSError)
    outer = OSError("bad line")
    outer.__cause__ = OSError(f"denied for {SECRET}")
    assert showable(outer) is None


class Tactless(fsspec.AbstractFileSystem):
    """Repeats the credentials in its errors."""

    protocol = "tactless"

    def pipe_file(self, path, value, mode="overwrite", **options):
        raise OSError(f"denied for {SECRET}")

    def cat_file(self, path, start=None, end=None, **options):
        raise OSError("denied to ann:x") from OSError(f"http://ann:{SECRET}@server")

    def find(self, path, **options):
        raise ValueError(f"https://server?X-Amz-Signature={SECRET}")


def test_errors_of_a_store_hide_credentials(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    fsspec.register_implementation("tactless", Tactless, clobber=True)
    store = CheckpointStore("tactless://place/tuning")
    uses = (store.check, lambda: store.load("a1f0"), lambda: list(store.keys()))
    for use in uses:
        with pytest.raises(StorageError, match=r"cannot \w+ \w+ tactless:") as caught:
            use()
        story = "".join(traceback.format_exception(caught.value))
        assert SECRET not in story
        assert SECRET not in repr(caught.value)


@pytest.mark.postgresql
@pytest.mark.parametrize("where", ["user", "query"])
def test_a_wrong_password_of_a_database_is_not_shown(postgresql, where):
    place = postgresql.partition("@/")[2]
    place = place.replace("postgres?", "no_such_database?")
    url = {
        "user": f"postgresql+psycopg://dasktune:letmein-please@/{place}",
        "query": f"postgresql+psycopg://dasktune@/{place}&password=letmein-please",
    }[where]
    with pytest.raises(StorageError, match="no_such_database") as caught:
        Database(url).study("any")
    story = "".join(traceback.format_exception(caught.value))
    assert "letmein" not in story
    assert "letmein" not in repr(caught.value)


def test_a_database_url_that_cannot_be_read_is_not_repeated():
    url = f"postgresql+psycopg://ann:{SECRET}@db:port/x"
    with pytest.raises(ConfigurationError) as caught:
        Database(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
