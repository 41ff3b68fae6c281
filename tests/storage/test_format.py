"""Checkpoints that were damaged or made by hand: each is found out, named and trained again."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
from blake3 import blake3
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import CorruptCheckpointError, StorageError
from dasktune.sequences import Constant
from dasktune.storage import zarr_array as flat
from dasktune.storage.buffers import PAGE, address
from dasktune.storage.checkpoints import CheckpointStore, OtherFormatError
from dasktune.storage.codec import encode
from dasktune.storage.zarr_array import ArrayFiles
from tests.effort import examples

KEY, OTHER = "a1b2c3", "d4e5f6"
RNG = np.random.default_rng(0)
STATE = {"first": RNG.random(200), "second": RNG.random((30, 10)), "epoch": 3}


@pytest.fixture
def store(tmp_path: Path, cut_chunks: Callable[[int], None]) -> CheckpointStore:
    """Return a store with a checkpoint of several chunks."""
    cut_chunks(1024)
    store = CheckpointStore(str(tmp_path))
    save(store)
    return store


def save(store: CheckpointStore, state: Any = STATE, key: str = KEY) -> None:
    store.save(encode(state), key=key, attempt="1-aa", step=7)


def folder(store: CheckpointStore, key: str = KEY) -> Path:
    return Path(store.url) / "checkpoints" / key[:2] / key


def array(store: CheckpointStore, key: str = KEY) -> Path:
    return folder(store, key) / "1-aa" / "step-7"


def files(store: CheckpointStore) -> list[Path]:
    return sorted(path for path in folder(store).rglob("*") if path.is_file())


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def digest(content: bytes) -> str:
    return blake3(content).hexdigest(16)


def forge(store: CheckpointStore, **commit: Any) -> None:
    """Change what a commit says, with a check that is right."""
    path = folder(store) / "commit"
    text = json.loads(path.read_text())
    text["commit"] |= commit
    text["check"] = digest(canonical(text["commit"]))
    path.write_text(json.dumps(text))


def forge_document(store: CheckpointStore, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a document, and have the commit vouch for it."""
    path = array(store) / "zarr.json"
    before, text = path.read_bytes().split(b'{"dasktune": ')
    document = json.loads(text[:-2])
    change(document)
    spelling = canonical(document)
    path.write_bytes(before + b'{"dasktune": ' + spelling + b"}}")
    forge(store, digest=digest(spelling))


def refused(store: CheckpointStore, reason: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"checkpoint {KEY}: .*{reason}"):
        store.load(KEY)


# ---------------------------------------------------------------------- as it is written


def test_array_has_the_documented_chunks(store: CheckpointStore) -> None:
    nbytes = 200 * 8 + 300 * 8
    chunks = sorted(array(store).glob("c.*"))
    assert [path.name for path in chunks] == ["c.0", "c.1", "c.2", "c.3"]
    assert {path.stat().st_size for path in chunks} == {1024 + 4}
    parts = [path.read_bytes() for path in chunks]
    assert b"".join(part[:-4] for part in parts)[nbytes:] == bytes(4 * 1024 - nbytes)
    for part in parts:
        assert int.from_bytes(part[-4:], "little") == google_crc32c.value(part[:-4])


def test_chunks_of_a_large_state_lie_at_pages() -> None:
    content = RNG.integers(0, 256, flat.CHUNK_BYTES + 5, np.uint8)
    data = encode(content).data
    chunks = ArrayFiles(data, lambda: b"{}")
    pieces = {name: list(chunks[name]) for name in ("c.0", "c.1")}
    assert {address(parts[0]) % PAGE for parts in pieces.values()} == {0}
    assert {part.size % PAGE for parts in pieces.values() for part in parts[:-1]} == {0}
    stored = np.concatenate([part for parts in pieces.values() for part in parts[:-1]])
    assert np.array_equal(stored[: content.size], content)
    assert not stored[content.size :].any()


def test_one_byte_over_a_chunk_makes_two_aligned_chunks(store: CheckpointStore) -> None:
    save(store, np.zeros(1025, np.uint8), OTHER)
    assert [path.stat().st_size for path in sorted(array(store, OTHER).glob("c.*"))] == [580] * 2


def test_commit_digest_covers_document_and_tensors(
    store: CheckpointStore,
) -> None:
    text = json.loads((folder(store) / "commit").read_text())
    assert text["check"] == digest(canonical(text["commit"]))
    found = zarr.open_array(array(store), mode="r")
    document = found.attrs["dasktune"]
    assert text["commit"]["digest"] == digest(canonical(document))
    data = found[:]
    for one in document["tensors"]:
        part = data[one["offset"] : one["offset"] + one["nbytes"]]
        assert one["blake3"] == digest(part.tobytes())


def test_tensors_that_cross_chunks_come_back(store: CheckpointStore) -> None:
    found = store.load(KEY)[0]
    assert np.array_equal(found["first"], STATE["first"])
    assert np.array_equal(found["second"], STATE["second"])
    found["first"] += 1
    assert np.array_equal(store.load(KEY)[0]["first"], STATE["first"])


def test_a_large_state_has_few_objects(tmp_path: Path, cut_chunks: Callable[[int], None]) -> None:
    cut_chunks(flat.CHUNK_BYTES // 2**10)
    store = CheckpointStore(str(tmp_path))
    save(store, {str(number): np.zeros(640, np.uint8) for number in range(320)})
    assert len(files(store)) <= 12
    save(store, {str(number): np.zeros(160, np.uint8) for number in range(60)}, OTHER)
    assert sum(path.is_file() for path in folder(store, OTHER).rglob("*")) == 1


# ---------------------------------------------------------------------- damage


@given(st.data())
@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_flipped_bit_is_corrupt(store: CheckpointStore, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(store)))
    before = path.read_bytes()
    position = data.draw(st.integers(0, 8 * len(before) - 1))
    content = bytearray(before)
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(content)
    try:
        with pytest.raises(StorageError, match=f"checkpoint {KEY}: "):
            store.load(KEY)
    finally:
        path.write_bytes(before)


@given(st.data())
@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_cut_or_longer_file_is_corrupt(store: CheckpointStore, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(store)))
    before = path.read_bytes()
    length = data.draw(st.integers(0, len(before) - 1) | st.just(len(before) + 1))
    path.write_bytes((before + b"\0")[:length])
    try:
        refused(store, "")
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["c.0", "c.1", "c.3", "zarr.json"])
def test_a_missing_file_is_named(store: CheckpointStore, name: str) -> None:
    (array(store) / name).unlink()
    refused(store, f"{name} is missing")


def test_swapped_chunks_are_corrupt(store: CheckpointStore) -> None:
    first, second = array(store) / "c.0", array(store) / "c.3"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    refused(store, r"state\['first'\], state\['second'\] are altered: BLAKE3 does not match")


def test_chunk_of_another_key_is_corrupt(store: CheckpointStore) -> None:
    save(store, {**STATE, "second": STATE["second"] + 1}, OTHER)
    shutil.copy(array(store, OTHER) / "c.3", array(store) / "c.3")
    refused(store, r"state\['second'\] is altered")


def test_metadata_of_another_key_are_corrupt(store: CheckpointStore) -> None:
    save(store, {**STATE, "epoch": 4}, OTHER)
    shutil.copy(array(store, OTHER) / "zarr.json", array(store) / "zarr.json")
    refused(store, "zarr.json is altered: its digest is not the commit's")


def test_damage_outside_tensors_is_corrupt(store: CheckpointStore) -> None:
    path = array(store) / "c.3"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    refused(store, "chunk c.3 is altered: CRC32C does not match")


# ---------------------------------------------------------------------- made by hand


def test_forged_size_allocates_no_memory(store: CheckpointStore) -> None:
    forge(store, nbytes=2**60)
    tracemalloc.start()
    try:
        refused(store, "missing|must have|does not describe")
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: one["tensors"][1].update(offset=0), "does not lie in its own part"),
        (lambda one: one["tensors"][0].update(offset=-64), "sizes must be integers >= 0"),
        (lambda one: one["tensors"][0].update(shape=[2**40]), "does not take 1600 bytes"),
        (lambda one: one["tensors"][0].update(shape=[-200]), "sizes must be integers >= 0"),
        (lambda one: one["tensors"][0].update(nbytes=2**62), "does not lie in its own part"),
        (lambda one: one["tensors"][0].update(dtype="|O"), "dtype .* is not allowed"),
        (lambda one: one["tensors"][0].update(kind="os.system"), "unknown kind 'os.system'"),
        (lambda one: one["tensors"][0].update(kind="torch", dtype="load"), "not allowed"),
        (lambda one: one["tensors"].append(one["tensors"][1]), "does not lie in its own part"),
        (lambda one: one.update(tensors={}), "cannot be read"),
        (lambda one: one.update(nbytes=2**62), "bytes expected, got 4096"),
        (lambda one: one.update(state={"builtins.eval": "1"}), "unknown kind of value"),
        (lambda one: one.update(state={"tensor": 2}), "tensor 2 is not one of 2"),
        (lambda one: one.update(state={"size": [-1, "a"]}), "cannot be read"),
        (lambda one: one.update(format="pickle"), "made by another version"),
        (lambda one: one.update(version=1), "version 1: it was made by another version"),
    ],
)
def test_forged_document_is_refused(
    store: CheckpointStore, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    forge_document(store, change)
    refused(store, reason)


def test_deep_documents_are_refused(store: CheckpointStore) -> None:
    path = array(store) / "zarr.json"
    before = path.read_bytes().split(b'{"dasktune": ')[0]
    for text in (b"[" * 10**5, b"[" * 10**5 + b"]" * 10**5, b'{"a":' * 10**5, b"1" * 10**5):
        path.write_bytes(before + b'{"dasktune": ' + text + b"}}")
        forge(store, digest=digest(text))
        refused(store, r"zarr\.json cannot be read")


def test_document_of_a_later_version_is_not_corrupt(
    store: CheckpointStore,
) -> None:
    forge_document(store, lambda one: one.update(version=3))
    with pytest.raises(OtherFormatError, match="state must be of version 2, got 3"):
        store.load(KEY)


def test_a_commit_of_an_earlier_version_is_refused(store: CheckpointStore) -> None:
    path = folder(store) / "commit"
    path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    refused(store, "dasktune-commit version 2 or 3: it was made by another version")


# ---------------------------------------------------------------------- trained again


class Adding(dt.Trainer):
    """Adds up in an array."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.total = np.zeros(100)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", None))

    def train(self) -> None:
        self.total = self.total + self.lr

    def evaluate(self) -> dict[str, float]:
        return {"total": float(self.total[0])}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "lr": self.lr}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.lr = state["total"], state["lr"]


def flip_chunk(path: Path) -> None:
    content = bytearray((path / "c.0").read_bytes())
    content[8] ^= 1
    (path / "c.0").write_bytes(content)


@pytest.mark.usefixtures("files_of_their_own")
@pytest.mark.parametrize(
    "damage",
    [flip_chunk, lambda path: (path / "zarr.json").unlink(), lambda path: shutil.rmtree(path)],
    ids=["bit", "file", "all"],
)
def test_a_study_trains_a_damaged_state_again(
    tmp_path: Path, two_threads: Client, damage: Callable[[Path], None]
) -> None:
    study = dt.create_study(
        Adding, name="adding", storage=tmp_path, metric="total", direction="minimize"
    )
    space = dt.Space(lr=[Constant(0.5), Constant(0.25)])
    study.optimize(dt.algos.Grid(space, max_steps=3), client=two_threads)
    states = [found.parent for found in tmp_path.rglob("step-3/zarr.json")]
    assert len(states) == 2
    for state in states:
        damage(state)
    study.optimize(dt.algos.Grid(space, max_steps=5), client=two_threads)
    assert [trial.metrics[5]["total"] for trial in study.trials[2:]] == [2.5, 1.25]
    assert study.summary()["steps_repeated"] == 6
    study.close()
