"""A verdict on a fingerprint is found from every database and every store that it was told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import ConfigurationError
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import VerdictRow
from dasktune.storage.verdicts import SEVERAL, Verdicts, binding, files_of, from_bytes, to_bytes

HERE = {"python": "3.12.1", "torch": "2.6.0"}
LATER = {"python": "3.12.1", "torch": "2.7.0"}

PASSED = VerdictRow(
    fingerprint="f0",
    rule=2,
    device="cpu",
    versions=HERE,
    ok=True,
    text="resume check passed",
    splits=[2, 3, 5],
    steps=18,
    found=10.0,
)
FAILED = replace(PASSED, ok=False, text="resume check failed", found=20.0)


@pytest.fixture
def databases(tmp_path: Path) -> Iterator[list[Database]]:
    opened = [Database(tmp_path / f"{name}.db") for name in "ab"]
    yield opened
    for database in opened:
        database.close()


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    name = request.node.name.partition("[")[0].replace("_", "-")
    url = f"memory://{name}" if request.param == "memory" else str(tmp_path / "store")
    store = CheckpointStore(url)
    store.check()
    return store


def test_record_is_read_back_with_another_database(
    databases: list[Database], store: CheckpointStore
) -> None:
    first, second = databases
    Verdicts(first, store.files).record(PASSED)
    assert Verdicts(second, CheckpointStore(store.url).files).of("f0") == [PASSED]
    assert second.verdicts("f0") == []
    assert Verdicts(second, None).of("f0") == []
    assert Verdicts(first, store.files).of("f1") == []


def test_record_is_read_back_with_another_store(
    databases: list[Database], store: CheckpointStore, tmp_path: Path
) -> None:
    Verdicts(databases[0], store.files).record(PASSED)
    other = CheckpointStore(str(tmp_path / "other"))
    assert Verdicts(databases[0], other.files).of("f0") == [PASSED]


def test_shared_carries_verdicts_to_both_places(
    databases: list[Database], store: CheckpointStore, tmp_path: Path
) -> None:
    first, second = databases
    Verdicts(first, store.files).record(PASSED)
    assert Verdicts(second, store.files).shared("f0") == [PASSED]
    assert second.verdicts("f0") == [PASSED]
    other = CheckpointStore(str(tmp_path / "other"))
    assert Verdicts(second, other.files).shared("f0") == [PASSED]
    assert Verdicts(None, other.files).of("f0") == [PASSED]
    Verdicts(second, other.files).shared("f0")
    assert second.verdicts("f0") == [PASSED], "not once more"


def test_a_later_verdict_replaces_that_of_its_environment(
    databases: list[Database], store: CheckpointStore
) -> None:
    verdicts = Verdicts(databases[0], store.files)
    for verdict in (PASSED, FAILED, replace(PASSED, versions=LATER, found=15.0)):
        verdicts.record(verdict)
    expected = [replace(PASSED, versions=LATER, found=15.0), FAILED]
    assert verdicts.of("f0") == Verdicts(None, store.files).of("f0") == expected
    assert len(databases[0].verdicts("f0")) == 3, "nothing is rewritten"


def test_files_of_an_earlier_verdict_are_kept(
    databases: list[Database], store: CheckpointStore
) -> None:
    first, second = (Verdicts(database, store.files) for database in databases)
    first.record(replace(PASSED, files={"net.yaml": "a"}))
    second.record(replace(FAILED, files={"data.json": "b"}))
    expected = [replace(FAILED, files={"net.yaml": "a", "data.json": "b"})]
    assert first.of("f0") == second.of("f0") == Verdicts(None, store.files).of("f0") == expected


def test_a_file_with_two_contents_has_none_of_them(store: CheckpointStore) -> None:
    verdicts = Verdicts(None, store.files)
    verdicts.record(replace(PASSED, files={"net.yaml": "a"}))
    verdicts.record(replace(FAILED, files={"net.yaml": "b"}))
    assert files_of(verdicts.of("f0")) == {"net.yaml": SEVERAL}


def test_a_verdict_without_files_is_stored_as_before() -> None:
    assert b"files" not in to_bytes(PASSED)
    assert from_bytes(to_bytes(replace(PASSED, files={"a": "b"}))) == replace(
        PASSED, files={"a": "b"}
    )


def bind(*verdicts: VerdictRow, device: str = "cpu", rule: int = 2) -> bool | None:
    found = binding(verdicts, rule=rule, device=device, versions=HERE)
    return None if found is None else found.ok


def test_binding_is_the_last_of_the_environment() -> None:
    assert bind() is None
    assert bind(PASSED) is True
    assert bind(PASSED, FAILED) is False
    assert bind(FAILED, PASSED) is True


def test_binding_of_another_environment_fails_but_never_passes() -> None:
    assert bind(replace(PASSED, versions=LATER)) is None
    assert bind(replace(PASSED, device="cuda")) is None
    assert bind(replace(FAILED, versions=LATER)) is False
    assert bind(FAILED, device="cuda") is False
    assert bind(FAILED, PASSED, device="cuda") is None, "mended there"
    assert bind(replace(FAILED, versions=LATER), PASSED) is True


def test_binding_ignores_verdicts_of_an_older_rule() -> None:
    assert bind(replace(PASSED, rule=1)) is None
    assert bind(replace(FAILED, rule=1)) is None
    assert bind(PASSED, rule=3) is None


def changed(**parts: Any) -> bytes:
    document = json.loads(to_bytes(PASSED))
    return json.dumps({**document, "verdict": {**document["verdict"], **parts}}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"{" * 100_000,
        to_bytes(PASSED).replace(b'"version": 1', b'"version": 2'),
        changed(ok="yes"),
        changed(ok=1),
        changed(rule=-1),
        changed(rule=True),
        changed(splits={"2": 3}),
        changed(versions=None),
        changed(fingerprint=None),
        changed(found="now"),
        changed(files=["net.yaml"]),
        changed(files={"net.yaml": 1}),
        changed(more=1),
    ],
)
def test_invalid_files_are_no_verdicts(store: CheckpointStore, content: bytes) -> None:
    assert from_bytes(content) is None
    store.files.replace("verdicts/f0/abcd", content)
    Verdicts(None, store.files).record(PASSED)
    assert Verdicts(None, store.files).of("f0") == [PASSED]


def test_a_verdict_filed_under_another_fingerprint_is_ignored(store: CheckpointStore) -> None:
    store.files.replace("verdicts/f1/abcd", to_bytes(PASSED))
    assert Verdicts(None, store.files).of("f1") == []


def test_a_name_that_is_no_fingerprint_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(ConfigurationError, match="fingerprint must be"):
        Verdicts(None, store.files).of("../f0")


@pytest.mark.postgresql
def test_verdicts_are_kept_by_postgresql(postgresql: str, tmp_path: Path) -> None:
    with closing(Database(postgresql)) as database:
        Verdicts(database, None).record(PASSED)
        Verdicts(database, None).record(replace(FAILED, fingerprint="f1"))
    with closing(Database(postgresql)) as database:
        assert Verdicts(database, None).of("f0") == [PASSED]
        assert Verdicts(database, None).of("f1") == [replace(FAILED, fingerprint="f1")]
