"""A small state lies in its commit: one file, which competes with all other attempts at the key."""

from __future__ import annotations

import base64
import json
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dasktune._driver.retention.listing import list_store, remove_orphan
from dasktune.errors import CorruptCheckpointError
from dasktune.storage import checkpoints, layout
from dasktune.storage.checkpoints import SMALL_NBYTES, CheckpointStore, Commit
from dasktune.storage.codec import encode
from tests.effort import examples
from tests.storage.noting_store import NotingStore

KEY = "a1b2c3"
STATE = {"weights": np.arange(100.0), "epoch": 3}
LARGE = {"weights": np.zeros(SMALL_NBYTES, np.uint8), "epoch": 3}


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    is_folder = request.param == "folder"
    return CheckpointStore(str(tmp_path) if is_folder else f"memory://{tmp_path.name}")


def save(store: CheckpointStore, state: Any = STATE, key: str = KEY, **names: Any) -> Commit:
    return store.save(encode(state), key=key, **{"attempt": "1-aa", "step": 7, **names})


def paths(store: CheckpointStore) -> set[str]:
    return {entry.path for entry in store.files.entries(layout.ROOT)}


def commit_file(store: CheckpointStore, key: str = KEY) -> Any:
    (content,) = store.files.read("", [layout.commit_path(key)])
    assert content is not None
    return json.loads(content.tobytes())


def forge(store: CheckpointStore, **names: Any) -> None:
    """Change the file of a commit."""
    content = json.dumps({**commit_file(store), **names}).encode()
    store.files.replace(layout.commit_path(KEY), content)


def refused(store: CheckpointStore, reason: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"checkpoint {KEY}: .*{reason}"):
        store.load(KEY)


def test_small_state_is_one_file(store: CheckpointStore) -> None:
    save(store)
    assert paths(store) == {layout.commit_path(KEY)}
    state, commit = store.load(KEY)
    assert np.array_equal(state["weights"], STATE["weights"])
    assert (commit.attempt, commit.step, commit.nbytes) == ("1-aa", 7, 800)
    state["weights"] += 1
    assert np.array_equal(store.load(KEY)[0]["weights"], STATE["weights"])


@pytest.mark.parametrize("more", [0, 1])
def test_limit_counts_tensors_and_document(store: CheckpointStore, more: int) -> None:
    document = encode(LARGE).stored_nbytes - SMALL_NBYTES
    size = SMALL_NBYTES - document + more
    snapshot = encode({"weights": np.zeros(size, np.uint8), "epoch": 3})
    assert snapshot.stored_nbytes == SMALL_NBYTES + more
    store.save(snapshot, key=KEY, attempt="1-aa", step=7)
    assert len(paths(store)) == (3 if more else 1)
    assert store.load(KEY)[0]["weights"].size == size


def test_commit_without_its_state_keeps_version_2(store: CheckpointStore) -> None:
    save(store, LARGE)
    assert commit_file(store)["version"] == 2
    save(store, key="ff01")
    assert commit_file(store, "ff01")["version"] == 3


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=99),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=9,
        ),
        max_size=4,
    )
)
@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_small_state_is_that_of_separate_files(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, object]
) -> None:
    inside = CheckpointStore(str(tmp_path_factory.mktemp("inside")))
    save(inside, state)
    array = commit_file(inside)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SMALL_NBYTES", -1)
        apart = CheckpointStore(str(tmp_path_factory.mktemp("apart")))
        save(apart, state)
    folder = layout.state_folder(KEY, "1-aa", 7)
    metadata, chunk = apart.files.read(folder, ["zarr.json", "c.0"])
    assert metadata is not None
    assert array["zarr.json"].encode() == metadata.tobytes()
    assert base64.b64decode(array["c.0"]) == (b"" if chunk is None else chunk.tobytes())
    assert encode(inside.load(KEY)[0]).digest == encode(apart.load(KEY)[0]).digest
    assert inside.load(KEY)[1].to_json() == apart.load(KEY)[1].to_json()


def test_any_zarr_reads_the_files_in_a_commit(tmp_path: Path) -> None:
    save(CheckpointStore(str(tmp_path / "store")))
    file = json.loads((tmp_path / "store" / layout.commit_path(KEY)).read_text())
    folder = tmp_path / "array"
    folder.mkdir()
    (folder / "zarr.json").write_text(file["zarr.json"])
    (folder / "c.0").write_bytes(base64.b64decode(file["c.0"]))
    array = zarr.open_array(folder, mode="r")
    assert np.array_equal(array[:].view("<f8"), STATE["weights"])


# ------------------------------------------------------------------------- who was first


@pytest.mark.parametrize("first", [STATE, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("second", [STATE, LARGE], ids=["small", "large"])
def test_first_commit_stands_whatever_the_sizes(
    store: CheckpointStore, first: Any, second: Any
) -> None:
    save(store, {**first, "epoch": 1})
    before = paths(store)
    assert save(store, {**second, "epoch": 2}, attempt="2-bb").attempt == "1-aa"
    assert store.load(KEY)[0]["epoch"] == 1
    assert paths(store) == before


def test_concurrent_saves_of_both_sizes_have_one_winner(store: CheckpointStore) -> None:
    barrier = threading.Barrier(8, timeout=60)

    def race(number: int) -> str:
        state = {**(LARGE if number % 2 else STATE), "epoch": number}
        barrier.wait()
        return save(store, state, attempt=f"{number}-aa").attempt

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            (winner,) = set(pool.map(race, range(8)))
            assert f"{store.load(KEY)[0]['epoch']}-aa" == store.load(KEY)[1].attempt == winner
            assert store.discard(KEY, attempt=winner)
            assert paths(store) == set()


def test_discard_heeds_the_attempt_of_a_small_state(store: CheckpointStore) -> None:
    save(store)
    assert not store.discard(KEY, attempt="2-bb")
    assert store.discard(KEY, attempt="1-aa")
    assert paths(store) == set()


# ------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"c.0": ""}, "chunk c.0 must have 804 bytes, got 0"),
        ({"c.0": "AA=="}, "chunk c.0 must have 804 bytes, got 1"),
        ({"c.0": "?"}, "commit cannot be read"),
        ({"c.0": None}, "commit cannot be read"),
        ({"c.0": 3}, "commit cannot be read"),
        ({"c.0": base64.b64encode(bytes(804)).decode()}, r"state\['weights'\] is altered"),
        ({"zarr.json": ""}, "does not describe 800 bytes"),
        ({"zarr.json": None}, "commit cannot be read"),
        ({"zarr.json": ["a"]}, "commit cannot be read"),
        ({"zarr.json": "\ud800"}, "commit cannot be read"),
        ({"version": 2}, "zarr.json is missing"),
    ],
)
def test_damaged_or_forged_file_is_refused(
    store: CheckpointStore, change: dict[str, Any], reason: str
) -> None:
    save(store)
    forge(store, **change)
    refused(store, reason)


def test_state_of_another_commit_is_refused(store: CheckpointStore) -> None:
    save(store)
    save(store, {**STATE, "epoch": 4}, key="ff01")
    other = commit_file(store, "ff01")
    forge(store, **{name: other[name] for name in ("zarr.json", "c.0")})
    refused(store, "its digest is not the commit's")


# ------------------------------------------------------------------------------ listings


def test_listing_has_step_size_and_attempt(store: CheckpointStore) -> None:
    save(store)
    (stored,) = store.inventory()
    size = len(json.dumps(commit_file(store)))
    assert (stored.step, stored.is_committed, stored.nbytes) == (7, True, size)
    assert [*stored.attempts] == ["1-aa"]


def test_listing_opens_each_small_state_once(tmp_path: Path) -> None:
    store = NotingStore(str(tmp_path))
    save(store, LARGE, key="ee01")
    for number in range(5):
        save(store, key=f"ff0{number}")
    for _ in range(3):
        assert {each.key: each.step for each in store.inventory()} == {
            "ee01": 7,
            **{f"ff0{number}": 7 for number in range(5)},
        }
        assert len(store.opened_in_all) == 5
    store.discard("ff01")
    save(store, key="ff01", attempt="2-bb")
    assert {key for each in store.inventory() for key in each.attempts} == {"1-aa", "2-bb"}
    assert len(store.opened_in_all) == 6


def test_listing_opens_no_recorded_state(tmp_path: Path) -> None:
    store = NotingStore(str(tmp_path))
    save(store, LARGE, key="ee01")
    save(store, key="ff01")
    save(store, key="ff02")
    recorded = {"ff01": ("1-aa", 7), "ff03": ("1-aa", 9)}
    listed = {each.key: each for each in store.inventory(recorded)}
    assert store.opened_in_all == ["ff02"]
    assert listed == {each.key: each for each in store.inventory()}
    assert listed.keys() == {"ee01", "ff01", "ff02"}


def test_few_states_are_in_memory_at_a_time() -> None:
    """A store of 100,000 of them would not fit."""
    store = CheckpointStore("memory://many")
    snapshot = encode({"weights": np.zeros(48 * 2**10, np.uint8)})
    keys = [f"ab{number:04}" for number in range(500)]
    for key in keys:
        store.save(snapshot, key=key, attempt="1-aa", step=7)
    tracemalloc.start()
    try:
        assert {each.step for each in store.inventory()} == {7}
        assert store.commits(keys).keys() == set(keys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        store.files.remove(layout.ROOT)
    assert peak < 500 * 48 * 2**10


def test_dead_upload_beside_a_small_state_is_an_orphan(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version was killed before its commit, or a later commit was first."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "SMALL_NBYTES", -1)
        save(store, attempt="0-dd")
        store.files.remove_files([layout.commit_path(KEY)])
    save(store)
    now = store.time() + 3600
    listing = list_store(store, None, own=(), now=now, store_now=now, grace=60.0)
    assert listing.checkpoints[KEY].attempt == "1-aa"
    assert listing.orphans == ((KEY, "0-dd"),)
    assert not listing.dangling
    remove_orphan(store, KEY, "0-dd")
    assert paths(store) == {layout.commit_path(KEY)}
    assert store.load(KEY)[0]["epoch"] == 3


@pytest.mark.usefixtures("files_of_their_own")
def test_commit_without_data_is_still_dangling(store: CheckpointStore) -> None:
    save(store)
    store.files.remove(layout.attempt_folder(KEY, "1-aa"))
    listing = list_store(store, None, own=(), now=0.0, store_now=0.0, grace=60.0)
    assert (listing.dangling, dict(listing.checkpoints)) == ({KEY}, {})
