"""One listing of a store: its checkpoints, sizes and orphans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune.driver.retention.listing import list_store
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.files.base import Entry
from dasktune.storage.layout import commit_path


@pytest.mark.parametrize("tells_time", [True, False])
def test_upload_is_an_orphan_only_if_the_store_tells_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_time: bool
) -> None:
    store = CheckpointStore(str(tmp_path))
    store.save(encode({"x": 1.0}), key="a1f0", attempt="1-aa", step=3)
    store.files.remove(commit_path("a1f0"))
    listed = list(store.files.entries("checkpoints"))

    def entries(folder: str) -> Iterator[Entry]:
        return (one if tells_time else replace(one, modified=0.0) for one in listed)

    monkeypatch.setattr(store.files, "entries", entries)
    later = time.time() + 7200
    found = list_store(store, None, own=(), now=later, grace=3600)
    assert found.orphans == ((("a1f0", "1-aa"),) if tells_time else ())
