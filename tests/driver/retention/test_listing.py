"""One listing of a store: its checkpoints, sizes and orphans."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dasktune._driver.retention.listing import list_store
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.files.base import Entry
from dasktune.storage.layout import commit_path
from tests.torture.files import MemoryFiles

pytestmark = pytest.mark.usefixtures("files_of_their_own")


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
    found = list_store(store, None, own=(), now=later, store_now=later, grace=3600)
    assert found.orphans == ((("a1f0", "1-aa"),) if tells_time else ())


SKEW = 540.0
"""Seconds by which this machine's clock is wrong."""

GRACE = 300.0


@pytest.mark.parametrize("skew", [-SKEW, SKEW])
def test_age_of_an_upload_is_measured_by_the_clock_of_the_store(skew: float) -> None:
    store_now = 1e9
    files = MemoryFiles(lambda: store_now)
    store = CheckpointStore("memory://clocks", files=files)
    for key, age in (("dead", GRACE + 60), ("young", GRACE - 60)):
        store_now = 1e9 - age
        store.save(encode({"x": 1.0}), key=key, attempt="1-aa", step=3)
        store.save(encode({"x": 1.0}), key=f"{key}-upload", attempt="1-aa", step=3)
        store.files.remove(commit_path(f"{key}-upload"))
        files.replace(f"{commit_path(key)}.{'f0' * 16}", b"")
    store_now, now = 1e9, 1e9 + skew
    listing = list_store(store, None, own=(), now=now, store_now=store.time(), grace=GRACE)
    assert listing.orphans == (("dead-upload", "1-aa"),)
    assert listing.leftovers == (f"{commit_path('dead')}.{'f0' * 16}",)
    ages = {key: now - state.used for key, state in listing.checkpoints.items()}
    assert ages == pytest.approx({"dead": GRACE + 60, "young": GRACE - 60})
