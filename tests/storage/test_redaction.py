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
        ("AccountName=lab;AccountKey=a1b2c3==;x", "AccountName=lab;AccountKey=***;x"),
        ("SharedAccessSignature=sv=2024&sig=abc", "SharedAccessSignature=***&sig=***"),
        ("{'Authorization': 'Bearer a1b2'}", "{'Authorization': '***'}"),
        ("authorization: Basic YW5uOmxldG1laW4=\nnext", "authorization: ***\nnext"),
        ("curl -H 'X-Api-Key: a1b2c3d4e5'", "curl -H 'X-Api-Key: ***'"),
        ("sent Bearer a1b2c3d4e5f6g7h8 to it", "sent Bearer *** to it"),
        ("proxy wants Basic YW5uOmxldG1laW4=", "proxy wants Basic ***"),
        ("login(token='a1b2c3d4e5f6g7h8i9')", "login(token='***')"),
        ('{"api_key": "0123456789abcdef0123"}', '{"api_key": "***"}'),
        ("{'password': 'let me in'}", "{'password': '***'}"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "***"),
        ("github_pat_11ABCDEFG0abcdefghijklmnop", "***"),
        ("glpat-abcdefghij0123456789", "***"),
        ("key sk-proj-abc123def456ghi789jkl", "key ***"),
        ("xoxb-1234567890-abcdef", "***"),
        ("AIza" + "a1" * 17 + "b", "***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc-def_1", "***"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nMII=\n-----END RSA PRIVATE KEY----- b", "a *** b"),
        ("a -----BEGIN PRIVATE KEY-----\nMIIEow, and the log was cut", "a ***"),
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
        "    token = tokenizer.encode(text_of_2026_examples)",
        "state_key=0123456789abcdef0123456789abcdef attempt=1-7c",
        "checkpoint 0123456789abcdef0123456789abcdef is altered: digest a1b2c3d4e5f6",
        "a basic configuration of 12 layers; basic DataLoader",
        "bearer of good news; the bearer 3 is here",
        "secret: the trick is a warm-up; key: value; token count: 12345678901234567890 tokens",
        "KeyError: 'token'; password must be given; tokens=12345678901234567890",
        "scikit-learn task-0123456789-abcdefghijk disk-0123456789abcdefghijk",
        "eyJust a word",
    ],
)
def test_text_without_secrets_is_unchanged(text):
    assert redacted(text) == text


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "PGPASSWORD"),
        *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"),
        *("AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "GOOGLE_API_KEY", "HF_TOKEN"),
        *("HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD"),
        *("MLFLOW_TRACKING_TOKEN", "COMET_API_KEY", "NEPTUNE_API_TOKEN", "OPENAI_API_KEY"),
        *("GITHUB_TOKEN", "LAB_DB_PASSWD", "lab_secret"),
    ],
)
def test_credentials_of_the_environment_are_redacted(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert redacted(f"signed with <{SECRET}>.") == "signed with <***>."


@pytest.mark.parametrize(
    "name",
    [
        "PWD",
        "HOME",
        "TOKENIZERS_PARALLELISM",
        "MLFLOW_TRACKING_USERNAME",
        "KEYBOARD",
        "SSL_KEY_FILE",
        "WANDB_PROJECT",
        "LAB_TOKEN_PATH",
    ],
)
def test_other_variables_are_not_redacted(monkeypatch, name):
    monkeypatch.setenv(name, "plain-value-12")
    assert redacted("plain-value-12") == "plain-value-12"


def test_path_of_a_file_with_credentials_is_shown(monkeypatch, tmp_path):
    file = tmp_path / "account.json"
    file.touch()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert redacted(f"cannot read {file}") == f"cannot read {file}"


def test_part_of_a_connection_string_is_redacted(monkeypatch):
    text = "DefaultEndpointsProtocol=https;AccountName=lab;AccountKey=a1b2c3d4e5==;EndpointSuffix=x"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert redacted("denied for a1b2c3d4e5==") == "denied for ***"
    assert redacted(f"opened {text}.") == "opened ***."


def test_secret_that_is_a_word_is_redacted_as_a_word(monkeypatch):
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    assert redacted("postgresql://db/x with postgres") == "postgresql://db/x with ***"


def test_secret_in_a_url_is_redacted_as_it_is_quoted(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "let me/in now")
    assert redacted("a let%20me%2Fin%20now b let%20me/in%20now") == "a *** b ***"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part", ["token=", "sk-", "://a:", "basic ", "eyJaaaaaaaaa.", "password='"]
)
def test_long_text_is_redacted_in_time(part):
    assert redacted(part * 20_000)


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
