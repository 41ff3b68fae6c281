"""A key has its first checkpoint, whole, or none."""

import json
import math
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr

from dasktune._engine.timeouts import REMOVAL_MARK_SECONDS
from dasktune.errors import ConfigurationError, CorruptCheckpointError, StorageError
from dasktune.storage.checkpoints import CheckpointStore, Commit, OtherFormatError
from dasktune.storage.codec import encode
from dasktune.storage.files import local as local_files
from dasktune.storage.files.base import MOST_NBYTES
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.files.objects import open_files
from dasktune.storage.layout import CLOCK, MARK

KEY = "a1b2c3"
STATE = {"epoch": 3, "weights": np.arange(100.0), "name": "x"}


@pytest.fixture(params=["path", "file", "memory"])
def url(request, tmp_path):
    match request.param:
        case "path":
            return str(tmp_path / "store")
        case "file":
            return f"file://{tmp_path}/store"
        case _:
            return f"memory://{tmp_path.name}"


@pytest.fixture
def store(url):
    return CheckpointStore(url)


@pytest.fixture
def local(tmp_path):
    return CheckpointStore(str(tmp_path))


@pytest.fixture
def eager_threads():
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def save(store, state=STATE, *, key=KEY, attempt="1-aa", **more):
    return store.save(encode(state), key=key, attempt=attempt, step=7, **more)


def state_of(tmp_path, attempt="1-aa") -> Path:
    return tmp_path / "checkpoints" / KEY[:2] / KEY / attempt / "step-7"


def files_below(path) -> set[str]:
    return {str(found.relative_to(path)) for found in Path(path).rglob("*") if found.is_file()}


def test_load_returns_state_and_commit(store):
    commit = save(
        store,
        parent="f" * 32,
        reports=[(6, {"loss": math.nan, "accuracy": 0.1 + 0.2}), (7, {"loss": -math.inf})],
        environment={"torch": "2.13.0", "device": "cpu"},
        seconds=1.25,
    )
    state, found = CheckpointStore(store.url).load(KEY)
    assert {**state, "weights": None} == {**STATE, "weights": None}
    assert np.array_equal(state["weights"], STATE["weights"])
    assert found.to_json() == commit.to_json() == store.commit_of(KEY).to_json()
    assert (commit.step, commit.nbytes, commit.parent) == (7, 800, "f" * 32)
    assert commit.digest == encode(STATE).digest
    assert math.isnan(found.reports[0][1]["loss"])
    assert found.reports[0][1]["accuracy"] == 0.1 + 0.2
    assert found.reports[1] == (7, {"loss": -math.inf})


@pytest.mark.parametrize("state", [None, {}, {"epoch": 3}, {"empty": np.empty((0, 3))}], ids=str)
def test_state_without_tensors_is_loaded(store, state):
    assert save(store, state).nbytes == 0
    found, _ = store.load(KEY)
    assert str(found) == str(state)


@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 2999, 3000, 10_007])
def test_state_of_several_chunks_is_loaded(store, size, cut_chunks):
    cut_chunks(1000)
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    save(store, content)
    assert np.array_equal(store.load(KEY)[0], content)


@pytest.mark.usefixtures("files_of_their_own")
@pytest.mark.parametrize("size", [0, 1, 999, 2500])
def test_any_zarr_reads_the_state(tmp_path, local, size, cut_chunks):
    cut_chunks(1000)
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    save(local, content)
    array = zarr.open_array(state_of(tmp_path), mode="r")
    assert np.array_equal(array[:size], content)
    assert not array[size:].any()
    (entry,) = array.attrs["dasktune"]["tensors"]
    assert (entry["dtype"], entry["shape"]) == ("|u1", [size])


def test_load_of_a_missing_key_is_corrupt(store):
    assert store.commit_of(KEY) is None
    assert list(store.keys()) == []
    with pytest.raises(CorruptCheckpointError, match="checkpoint a1b2c3: there is no commit"):
        store.load(KEY)


def test_keys_lists_committed_checkpoints(store):
    for key in ("aa", "ab12", "ab13"):
        save(store, key=key)
    assert sorted(store.keys()) == ["aa", "ab12", "ab13"]
    store.discard("ab12")
    assert sorted(store.keys()) == ["aa", "ab13"]


def test_inventory_sums_up_the_files_of_each_key(store, url):
    files = open_files(url)
    files.create("checkpoints/aa/aa1/commit", b"x")
    files.write("checkpoints/bb/bb1/0-1/step-3", {"c.0": [np.zeros(5, np.uint8)]})
    files.write("checkpoints/bb/bb1/0-1/step-3", {"c.1": [np.zeros(2, np.uint8)]})
    files.write("checkpoints/bb/bb1/0-2/step-3", {"c.0": [np.zeros(4, np.uint8)]})
    files.create(f"checkpoints/bb/bb1/commit.{'0' * 32}", b"xy")
    files.create("checkpoints/bb/bb1/notes", b"foreign")
    commit, data = sorted(store.inventory(), key=lambda stored: stored.key)
    assert (commit.key, commit.step, commit.is_committed, commit.nbytes) == ("aa1", -1, True, 0)
    assert (data.key, data.step, data.is_committed, data.nbytes) == ("bb1", 3, False, 11)
    assert {attempt: nbytes for attempt, (nbytes, _) in data.attempts.items()} == {
        "0-1": 7,
        "0-2": 4,
    }
    assert all(abs(last - time.time()) < 300 for _, last in data.attempts.values())
    assert [(left.path, left.nbytes) for left in data.leftovers] == [
        (f"checkpoints/bb/bb1/commit.{'0' * 32}", 2)
    ]
    assert (commit.leftovers, list(store.keys())) == ((), ["aa1"])


def test_second_save_returns_the_first_commit(store, tmp_path):
    first = save(store, {"who": 1}, attempt="1-aa")
    second = save(store, {"who": 2}, attempt="2-bb")
    assert second.to_json() == first.to_json()
    assert store.load(KEY)[0] == {"who": 1}
    assert not any("2-bb" in name for name in files_below(tmp_path))


def test_saving_again_under_the_same_attempt_keeps_the_data(store):
    first = save(store)
    assert save(store).to_json() == first.to_json()
    assert store.load(KEY)[0]["epoch"] == 3


@pytest.mark.usefixtures("eager_threads")
def test_concurrent_saves_have_one_winner(store, tmp_path):
    barrier = threading.Barrier(16, timeout=60)

    def race(number):
        snapshot = encode({"who": number, "weights": np.full(1000, number)})
        barrier.wait()
        return store.save(snapshot, key=KEY, attempt=f"{number}-aa", step=1)

    with ThreadPoolExecutor(16) as pool:
        commits = list(pool.map(race, range(16)))
    assert len({json.dumps(commit.to_json()) for commit in commits}) == 1
    state, _ = store.load(KEY)
    assert f"{state['who']}-aa" == commits[0].attempt
    assert (state["weights"] == state["who"]).all()
    if not store.url.startswith("memory"):
        assert files_below(tmp_path / "store" / "checkpoints" / KEY[:2] / KEY) == {"commit"}


@pytest.mark.usefixtures("eager_threads")
def test_concurrent_saves_and_discards_leave_whole_states(store):
    def work(number):
        for turn in range(50):
            save(store, {"who": number}, attempt=f"{number}-{turn}")
            store.discard(KEY)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    save(store, {"who": 9}, attempt="9-0")
    assert store.load(KEY)[0]["who"] in range(10)


def test_discard_leaves_nothing(store, tmp_path):
    save(store)
    store.discard(KEY)
    assert store.commit_of(KEY) is None
    assert files_below(tmp_path) == set()
    store.discard(KEY)
    save(store, {"who": 2}, attempt="2-bb")
    assert store.load(KEY)[0] == {"who": 2}


def test_discard_keeps_data_of_other_attempts(tmp_path, local):
    save(local)
    other = state_of(tmp_path, "2-bb")
    other.mkdir(parents=True)
    (other / "c.0").write_bytes(b"half")
    local.discard(KEY)
    assert files_below(tmp_path) == {str((other / "c.0").relative_to(tmp_path))}


def test_discard_of_a_missing_key_changes_nothing(tmp_path, local):
    other = state_of(tmp_path, "2-bb")
    other.mkdir(parents=True)
    (other / "c.0").write_bytes(b"half")
    local.discard(KEY)
    assert (other / "c.0").read_bytes() == b"half"


def test_discard_after_a_failed_lookup_keeps_newer_states(store):
    with pytest.raises(CorruptCheckpointError, match="there is no commit") as caught:
        store.load(KEY)
    save(store, {"who": 2})
    assert not store.discard(KEY, attempt=caught.value.attempt)
    assert store.load(KEY)[0] == {"who": 2}


class InterruptedStore(CheckpointStore):
    """Another driver replaces the checkpoint between the look at its commit and the removal."""

    def _commit_content(self, key):
        content = super()._commit_content(key)
        other = CheckpointStore(self.url)
        other.discard(key)
        save(other, {"who": 2}, attempt="2-bb")
        return content


def test_discard_keeps_a_commit_that_came_meanwhile(store):
    save(store, {"who": 1})
    InterruptedStore(store.url).discard(KEY)
    assert store.load(KEY)[0] == {"who": 2}


def test_commit_of_a_later_version_is_refused_and_kept(tmp_path, local):
    save(local)
    path = tmp_path / "checkpoints" / KEY[:2] / KEY / "commit"
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 4'))
    before = files_below(tmp_path)
    message = "checkpoint a1b2c3: commit must be of version 3, got 4"
    for use in (local.load, local.commit_of, local.discard):
        with pytest.raises(StorageError, match=message) as caught:
            use(KEY)
        assert not isinstance(caught.value, CorruptCheckpointError)
    with pytest.raises(StorageError, match=message):
        save(local, attempt="2-bb")
    assert before <= files_below(tmp_path)


def test_remove_same_keeps_changed_files(url, tmp_path):
    files = open_files(url)
    files.create("key/commit", b"first")
    assert files.remove_same("key/commit", b"second") is False
    assert files.read("key", ["commit"])[0].tobytes() == b"first"
    assert files.remove_same("key/commit", b"first") is True
    assert files.read("key", ["commit"]) == [None]
    assert files.remove_same("key/commit", b"first") is False
    assert files_below(tmp_path) == set()


class BusyFiles(LocalFiles):
    """Files of a folder in which others act after each read."""

    def __init__(self, root, act):
        super().__init__(root)
        self._act = act

    def read(self, folder, names, **options):
        content = super().read(folder, names, **options)
        self._act()
        return content


def test_remove_same_keeps_a_file_written_after_the_look(tmp_path):
    others, outcomes = LocalFiles(tmp_path), []

    def replace():
        outcomes.append(others.remove_same("key/commit", b"old"))
        outcomes.append(others.create("key/commit", b"new"))

    others.create("key/commit", b"old")
    assert BusyFiles(tmp_path, replace).remove_same("key/commit", b"old")
    assert outcomes == [False, False], "nobody else removes the file meanwhile"
    assert files_below(tmp_path) == {CLOCK}


def test_remove_same_never_hides_a_file_that_it_keeps(tmp_path):
    others, seen = LocalFiles(tmp_path), []
    others.create("key/commit", b"newer")
    files = BusyFiles(tmp_path, lambda: seen.append(others.create("key/commit", b"newest")))
    assert not files.remove_same("key/commit", b"old")
    assert seen == [False], "the file was there all the time"
    assert others.read("key", ["commit"])[0].tobytes() == b"newer"


def test_mark_of_a_dead_process_is_removed_once_it_is_old(tmp_path):
    files = LocalFiles(tmp_path)
    files.create("key/commit", b"old")
    files.create("key/commit" + MARK, b"of a process that was killed")
    assert not files.remove_same("key/commit", b"old")
    os.utime(tmp_path / f"key/commit{MARK}", (1.0, 1.0))
    assert not files.remove_same("key/commit", b"old")
    assert files.remove_same("key/commit", b"old")
    assert files_below(tmp_path) == {CLOCK}


@pytest.mark.parametrize("skew", [-540.0, 540.0])
def test_marks_age_by_the_clock_of_the_store(skew, tmp_path, monkeypatch):
    files, wrong = LocalFiles(tmp_path), time.time() + skew
    monkeypatch.setattr(time, "time", lambda: wrong)
    for name, age in (("young", REMOVAL_MARK_SECONDS - 60), ("old", REMOVAL_MARK_SECONDS + 60)):
        files.create(f"{name}/commit", b"old")
        files.create(f"{name}/commit{MARK}", b"of another process")
        os.utime(tmp_path / f"{name}/commit{MARK}", (wrong - skew - age,) * 2)
        assert not files.remove_same(f"{name}/commit", b"old")
        assert files.remove_same(f"{name}/commit", b"old") is (name == "old")


def test_data_without_a_commit_are_no_checkpoint(tmp_path, local):
    save(local)
    (tmp_path / "checkpoints" / KEY[:2] / KEY / "commit").unlink()
    assert local.commit_of(KEY) is None
    assert list(local.keys()) == []


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def damage_nothing_but(name):
    return lambda folder: (folder / name).unlink()


DAMAGE = {
    "chunk missing": (damage_nothing_but("c.0"), "chunk c.0 is missing"),
    "metadata missing": (damage_nothing_but("zarr.json"), "zarr.json is missing"),
    "chunk cut short": (lambda f: os.truncate(f / "c.0", 700), "must have 804 bytes, got 700"),
    "chunk empty": (lambda f: os.truncate(f / "c.0", 0), "must have 804 bytes, got 0"),
    "first bit": (lambda f: flip(f / "c.0", 0), r"state\['weights'\] is altered"),
    "last bit": (lambda f: flip(f / "c.0", -1), "chunk c.0 is altered"),
    "metadata cut short": (lambda f: os.truncate(f / "zarr.json", 100), "does not describe"),
    "metadata empty": (lambda f: os.truncate(f / "zarr.json", 0), "does not describe"),
    "other value": (
        lambda f: (f / "zarr.json").write_text(
            (f / "zarr.json").read_text().replace('["epoch",3]', '["epoch",4]')
        ),
        "its digest is not the commit's",
    ),
    "other shape": (
        lambda f: (f / "zarr.json").write_text(
            (f / "zarr.json").read_text().replace("[800]", "[8000000000000000]")
        ),
        "does not describe 800 bytes",
    ),
    "not metadata": (lambda f: (f / "zarr.json").write_text("[1]"), "does not describe"),
    "deep metadata": (lambda f: (f / "zarr.json").write_text("[" * 10**5), "does not describe"),
    "no attributes": (lambda f: (f / "zarr.json").write_text("{}"), "does not describe"),
    "not text": (lambda f: (f / "zarr.json").write_bytes(b"\xff\xfe"), "does not describe"),
}


@pytest.mark.usefixtures("files_of_their_own")
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_to_the_data_is_found(tmp_path, local, name):
    save(local)
    damage, reason = DAMAGE[name]
    damage(state_of(tmp_path))
    with pytest.raises(CorruptCheckpointError, match=f"checkpoint a1b2c3: .*{reason}"):
        local.load(KEY)
    local.discard(KEY)
    assert files_below(tmp_path) == set()


def test_commit_too_large_for_this_version_is_named_and_kept(tmp_path, local):
    save(local)
    (commit,) = (tmp_path / name for name in files_below(tmp_path) if name.endswith("commit"))
    os.truncate(commit, MOST_NBYTES + 1)
    for use in (local.load, local.commit_of, local.discard, lambda _: save(local)):
        with pytest.raises(
            OtherFormatError, match="commit has more than 67,108,864 bytes: an older"
        ):
            use(KEY)
    assert commit.stat().st_size == MOST_NBYTES + 1


@pytest.mark.parametrize("is_small", [True, False])
def test_every_bit_of_a_checkpoint_counts(tmp_path, local, is_small, request):
    if not is_small:
        request.getfixturevalue("files_of_their_own")
    save(local, {"x": np.arange(2.0)}, reports=[(7, {"loss": 0.5})])
    before = json.dumps(local.commit_of(KEY).to_json())
    paths = [tmp_path / name for name in sorted(files_below(tmp_path))]
    assert len(paths) == (1 if is_small else 3)
    passed = []
    for path in paths:
        content = path.read_bytes()
        for position in range(len(content)):
            flip(path, position)
            try:
                state, commit = local.load(KEY)
            except CorruptCheckpointError:
                continue
            except OtherFormatError:
                assert content[position : position + 1] in b"23"  # the commit's version
                continue
            finally:
                path.write_bytes(content)
            same = json.dumps(commit.to_json()) == before and (state["x"] == [0.0, 1.0]).all()
            passed += [] if same else [(path.name, position)]
    assert passed == []


@pytest.mark.usefixtures("files_of_their_own")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 10**5,
        b'{"format": "dasktune-commit", "version": 2, "check": "", "commit": {}}',
        b'{"format": "dasktune-commit", "version": 1, "check": "", "commit": {}}',
        b'{"format": "dasktune-commit", "version": 3, "check": "", "commit": {}}',
        b'{"format": "dasktune-commit", "version": "4", "check": "", "commit": {}}',
        b'{"format": "other", "version": 2, "check": "", "commit": {}}',
    ],
    ids=lambda content: repr(content[:30]),
)
def test_invalid_commit_is_corrupt_and_discarded(tmp_path, local, content):
    save(local)
    data = files_below(state_of(tmp_path))
    (tmp_path / "checkpoints" / KEY[:2] / KEY / "commit").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="checkpoint a1b2c3: commit") as caught:
        local.load(KEY)
    local.discard(KEY, attempt=caught.value.attempt)
    assert local.commit_of(KEY) is None
    assert files_below(state_of(tmp_path)) == data, "whose they are is not known"
    save(local, attempt="2-bb")
    assert local.load(KEY)[0]["epoch"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "../../../etc"},
        {"attempt": 3},
        {"key": "/"},
        {"step": -1},
        {"step": "3"},
        {"nbytes": 2.5},
        {"reports": [1]},
        {"reports": [[1, [2]]]},
        {"reports": [[1, {"a": "b"}]]},
        {"surprise": 1},
        {"step": 2**63},
        {"nbytes": 10**30},
        {"reports": [["1", {"loss": 0.5}]]},
        {"digest": None},
        {"digest": "d" * 1000},
        {"parent": []},
        {"seconds": "1"},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": -1.0},
        {"seconds": 2.0**63},
        {"environment": "torch"},
    ],
    ids=str,
)
def test_a_hostile_commit_is_corrupt(local, change):
    document = save(local).to_json()
    assert Commit.from_json(document).to_json() == document
    with pytest.raises(CorruptCheckpointError, match="commit cannot be read"):
        Commit.from_json({**document, **change})


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_save_replaces_an_unreadable_commit(tmp_path, local, content):
    local.save(encode({"x": 1.0}), key="a1f0", attempt="1-aa", step=3)
    (tmp_path / "checkpoints" / "a1" / "a1f0" / "commit").write_bytes(content)
    assert local.save(encode({"x": 2.0}), key="a1f0", attempt="2-bb", step=3).attempt == "2-bb"
    assert local.load("a1f0")[0] == {"x": 2.0}


def test_commit_of_another_key_is_corrupt(tmp_path, local):
    save(local)
    folder = tmp_path / "checkpoints" / KEY[:2]
    shutil.copytree(folder / KEY, folder / "a1ffff")
    with pytest.raises(CorruptCheckpointError, match=f"a1ffff: commit is of the key {KEY}"):
        local.load("a1ffff")


@pytest.mark.usefixtures("files_of_their_own")
def test_data_of_another_key_are_corrupt(tmp_path, local):
    save(local)
    save(local, {**STATE, "weights": -STATE["weights"]}, key="ff")
    shutil.rmtree(state_of(tmp_path))
    shutil.copytree(tmp_path / "checkpoints/ff/ff/1-aa/step-7", state_of(tmp_path))
    with pytest.raises(CorruptCheckpointError, match="its digest is not the commit's"):
        local.load(KEY)


@pytest.mark.parametrize("name", ["", "a", "A1", "a/b", "../x", "a\n", "ab.c", "x" * 129, "ä1"])
def test_invalid_names_are_refused(store, name):
    with pytest.raises(ConfigurationError, match="key must be 2 to 128 digits"):
        save(store, key=name)
    with pytest.raises(ConfigurationError, match="attempt must be 2 to 128 digits"):
        save(store, attempt=name)


def test_check_leaves_nothing(store, tmp_path):
    store.check()
    assert files_below(tmp_path) <= {"store/dasktune.json"}
    assert list(store.keys()) == []


def test_unwritable_store_is_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = CheckpointStore(str(tmp_path / "file" / "store"))
    with pytest.raises(StorageError, match=r"cannot write to .*/file/store: .*Not a dir"):
        store.check()
    with pytest.raises(StorageError, match=r"cannot write to .*/file/store"):
        save(store)


def test_unknown_protocol_is_refused():
    with pytest.raises(
        StorageError, match=r"gopher://x: unknown protocol 'gopher'; known: .*, s3, "
    ):
        CheckpointStore("gopher://x")


@pytest.mark.usefixtures("eager_threads")
def test_concurrent_creates_in_memory_have_one_winner(tmp_path):
    files = open_files(f"memory://{tmp_path.name}")
    barrier = threading.Barrier(8, timeout=60)

    def race(number):
        wins = 0
        for turn in range(100):
            barrier.wait()
            wins += files.create(f"commit{turn}", str(number).encode())
        return wins

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 100


@pytest.mark.usefixtures("eager_threads")
def test_folder_is_made_while_others_remove_it(tmp_path):
    files = open_files(str(tmp_path))

    def work(number):
        for _ in range(600):
            files.write(f"key/{number}", {"file": [np.zeros(1, np.uint8)]})
            files.remove(f"key/{number}")  # and the key's folder when it is empty

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert files_below(tmp_path) == set()


@pytest.mark.parametrize("way", ["create", "replace"])
def test_create_makes_a_removed_folder_again(tmp_path, monkeypatch, way):
    files = open_files(str(tmp_path))
    make, made = Path.mkdir, []

    def make_and_lose(path, *arguments, **options):
        make(path, *arguments, **options)
        made.append(path)
        if len(made) == 1:
            path.rmdir()  # whoever removes the last other file in there

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    getattr(files, way)("leases/mine", b"held")
    assert files.read("leases", ["mine"])[0].tobytes() == b"held"
    assert files_below(tmp_path) == {"leases/mine"}


def test_create_of_a_file_removed_before_sync_returns_true(tmp_path, monkeypatch):
    files = open_files(str(tmp_path))
    sync = local_files.sync_folders

    def sync_too_late(paths):
        files.remove("key/commit")  # and the folder with it
        sync(paths)

    monkeypatch.setattr(local_files, "sync_folders", sync_too_late)
    assert files.create("key/commit", b"first")
    assert files_below(tmp_path) == set()
