"""Tests that planted store files are read or refused, and never executed."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import AF_UNIX, socket
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dasktune.cli.commands import app
from dasktune.errors import CorruptCheckpointError, StateError, StorageError
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit, commit_bytes
from dasktune.storage.codec import encode
from dasktune.storage.files.base import MOST_NBYTES
from dasktune.storage.leases import Leases
from dasktune.storage.numerics import UNREADABLE, recorded_class
from dasktune.storage.tensors import digest_of
from dasktune.storage.verdicts import Verdicts

KEY, ATTEMPT = "a1f0" * 8, "0-77"
STATE = {"weight": np.arange(4.0), "step": 3}


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch pwned",)


PICKLE = pickle.dumps(Evil())
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_of_their_own: None
) -> CheckpointStore:
    monkeypatch.chdir(tmp_path)
    made = CheckpointStore("store")
    made.check()
    made.save(encode(STATE), key=KEY, attempt=ATTEMPT, step=3)
    return made


def folder() -> Path:
    return Path("store/checkpoints") / KEY[:2] / KEY


def array() -> Path:
    return folder() / ATTEMPT / "step-3"


def replace_document(change: Callable[[dict[str, Any]], object]) -> None:
    """Change a state's document as a stranger does who knows the format: all digests fit."""
    file = array() / "zarr.json"
    metadata = json.loads(file.read_bytes())
    document = metadata["attributes"]["dasktune"]
    before = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    change(document)
    after = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    file.write_bytes(file.read_bytes().replace(before, after))
    commit = Commit.from_json(json.loads((folder() / "commit").read_bytes())["commit"])
    forged = {**commit.to_json(), "digest": digest_of(after)}
    (folder() / "commit").write_bytes(commit_bytes(Commit.from_json(forged), None))


def test_the_forgery_of_these_tests_is_a_good_one(store: CheckpointStore) -> None:
    replace_document(lambda document: document["state"]["dict"].append(["forged", True]))
    assert store.load(KEY)[0]["forged"] is True


@pytest.mark.parametrize("content", [PICKLE, DEEP, b"1" * 5000, b"null", b'{"format": 1e999}'])
@pytest.mark.parametrize("name", ["commit", f"{ATTEMPT}/step-3/zarr.json", f"{ATTEMPT}/step-3/c.0"])
def test_files_of_strangers_are_refused(store: CheckpointStore, name: str, content: bytes) -> None:
    (folder() / name).write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=f"checkpoint {KEY}: "):
        store.load(KEY)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "numcodecs.pickle"}],
        [{"name": "os.system", "configuration": {"command": "touch pwned"}}],
        [{"name": "bytes"}, {"name": "gzip"}],
    ],
    ids=str,
)
def test_no_codec_is_looked_up_by_the_name_that_a_file_gives(
    store: CheckpointStore, codecs: list[dict[str, object]]
) -> None:
    file = array() / "zarr.json"
    metadata = json.loads(file.read_bytes())
    file.write_text(json.dumps({**metadata, "codecs": codecs}))
    with pytest.raises(CorruptCheckpointError, match=r"zarr\.json does not describe"):
        store.load(KEY)
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "|O"},
        {"dtype": [["x", "|O"]]},
        {"kind": "pickle"},
        {"kind": "torch", "dtype": "load"},
        {"kind": "torch", "dtype": "__class__"},
        {"offset": 2**62},
        {"shape": [2**40, 2**40]},
        {"nbytes": -1},
        {"name": "a\x1b[31m"},
    ],
    ids=str,
)
def test_a_forged_tensor_is_refused(store: CheckpointStore, change: dict[str, object]) -> None:
    replace_document(lambda document: document["tensors"][0].update(change))
    with pytest.raises(CorruptCheckpointError):
        store.load(KEY)


@pytest.mark.parametrize(
    "node",
    [
        {"__reduce__": ["os.system", ["touch pwned"]]},
        {"py/object": "os.system", "py/tuple": ["touch pwned"]},
        {"object": "os.system"},
        {"int": "__import__('os').system('touch pwned')"},
    ],
    ids=str,
)
def test_nothing_in_a_document_names_code(store: CheckpointStore, node: object) -> None:
    replace_document(lambda document: document.update(state=node))
    with pytest.raises(CorruptCheckpointError):
        store.load(KEY)
    assert not Path("pwned").exists()


def test_names_in_a_document_are_no_paths(store: CheckpointStore, tmp_path: Path) -> None:
    replace_document(lambda document: document["tensors"][0].update(name="../../../pwned"))
    assert np.array_equal(store.load(KEY)[0]["weight"], STATE["weight"])
    store.discard(KEY)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("attempt", ["../../../../victim", "/victim", "..", "a/b", "a\0b"])
def test_no_commit_leads_out_of_the_store(store: CheckpointStore, attempt: str) -> None:
    commit = json.loads((folder() / "commit").read_bytes())["commit"]
    forged = object.__new__(Commit)
    for name, value in {**commit, "attempt": attempt, "reports": ()}.items():
        object.__setattr__(forged, name, value)
    (folder() / "commit").write_bytes(commit_bytes(forged, None))
    with pytest.raises(CorruptCheckpointError, match="attempt must be"):
        store.load(KEY)
    assert store.discard(KEY)
    assert array().exists(), "whose data it stood for is not known"


@pytest.mark.parametrize("place", ["attempt", "array", "chunk"])
def test_what_is_removed_is_a_link_and_not_what_it_leads_to(
    store: CheckpointStore, place: str, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("precious")
    linked = {"attempt": folder() / ATTEMPT, "array": array(), "chunk": array() / "c.0"}[place]
    linked.rename(tmp_path / "aside")
    linked.symlink_to(victim / "precious" if place == "chunk" else victim)
    done = CliRunner().invoke(app, ["gc", "store", "--budget", "1", "--grace", "0s"])
    assert done.exit_code in (0, 1)
    store.discard(KEY)
    assert not linked.is_symlink()
    assert (victim / "precious").read_text() == "precious"


def test_no_error_shows_what_a_link_leads_to(store: CheckpointStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("letmein")
    for name in ("commit", f"{ATTEMPT}/step-3/zarr.json"):
        file = folder() / name
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(CorruptCheckpointError) as caught:
            store.load(KEY)
        assert "letmein" not in str(caught.value)
        file.unlink()
        store.discard(KEY)
        store.save(encode(STATE), key=KEY, attempt=ATTEMPT, step=3)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 * 2**30)


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "more").write_bytes(b"more")


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "sparse": (sparse, r"has more than [\d,]+ bytes"),
    "folder": (folder_with_a_file, "is a folder"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "socket": (lambda path: socket(AF_UNIX).bind(str(path)), "is not a regular file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "is a link to itself"),
    "link to nothing": (lambda path: path.symlink_to("none"), "is a link to a missing file"),
}
FILES = ["commit", f"{ATTEMPT}/step-3/zarr.json", f"{ATTEMPT}/step-3/c.0"]
"""The files of a checkpoint."""


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("plant", "reason"), PLANTED.values(), ids=PLANTED)
def test_planted_file_of_any_kind_is_named_and_replaced(
    store: CheckpointStore, plant: Callable[[Path], object], reason: str, name: str
) -> None:
    (folder() / name).unlink()
    plant(folder() / name)
    with pytest.raises(CorruptCheckpointError, match=f"{Path(name).name} {reason}"):
        store.load(KEY)
    for command in (["ls", "store"], ["gc", "store", "--dry-run"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    if name != "commit":
        assert store.discard(KEY)
    new = store.save(encode(STATE), key=KEY, attempt="1-78", step=3)
    assert new.attempt == "1-78"
    assert np.array_equal(store.load(KEY)[0]["weight"], STATE["weight"])


def test_commit_that_this_user_must_not_read_stays() -> None:
    """It may be the valid commit of a colleague with another umask; root may read all files."""
    with TemporaryDirectory(dir="/tmp") as place, as_another_user(Path(place)):
        store = CheckpointStore(f"{place}/store")
        store.save(encode(STATE), key=KEY, attempt=ATTEMPT, step=3)
        commit = Path(place) / "store" / layout.commit_path(KEY)
        commit.chmod(0)
        for use in (
            partial(store.load, KEY),
            partial(store.save, encode(STATE), key=KEY, attempt="1-78", step=3),
        ):
            with pytest.raises(StorageError, match="denied") as caught:
                use()
            assert not isinstance(caught.value, CorruptCheckpointError)
        commit.chmod(0o600)
        assert np.array_equal(store.load(KEY)[0]["weight"], STATE["weight"])


@contextmanager
def as_another_user(place: Path) -> Iterator[None]:
    """Act as a user without rights, if this one is root, in a folder that this user owns."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    os.chown(place, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize(("plant", "reason"), PLANTED.values(), ids=PLANTED)
def test_small_planted_files_are_ignored_or_refused_in_words(
    store: CheckpointStore, plant: Callable[[Path], object], reason: str
) -> None:
    for path in ("drivers/a", "wishes/a", f"classes/{KEY}", f"verdicts/{KEY}/b"):
        Path("store", path).parent.mkdir(parents=True, exist_ok=True)
        plant(Path("store", path))
    leases = Leases(store.files)
    assert leases.drivers(["a"]) == []
    assert leases.save_requests("a", 0) == []
    assert recorded_class(store.files, KEY) == UNREADABLE
    assert Verdicts(None, store.files).of(KEY) == []
    Path("store", layout.MARKER).unlink()
    plant(Path("store", layout.MARKER))
    with pytest.raises(StorageError, match=f"its {layout.MARKER} {reason}"):
        store.name()


def test_large_object_is_refused_after_the_part_that_may_be_read() -> None:
    store = CheckpointStore("memory://planted-large")
    store.save(encode(STATE), key=KEY, attempt=ATTEMPT, step=3)
    system = store.files.system
    (commit,) = [path for path in system.find("/planted-large") if path.endswith("/commit")]
    system.pipe_file(commit, b" " * (MOST_NBYTES + 1))
    with pytest.raises(CorruptCheckpointError, match="commit has more than"):
        store.load(KEY)
    assert store.commits([KEY]) == {}
    assert store.save(encode(STATE), key=KEY, attempt="1-78", step=3).attempt == "1-78"


def test_save_of_a_commit_that_nobody_would_read_is_refused(store: CheckpointStore) -> None:
    reports = [(step, {"x" * 2**20: 1.0}) for step in range(70)]
    with pytest.raises(StateError, match="report fewer metrics between two checkpoints"):
        store.save(encode(STATE), key="b2" * 8, attempt=ATTEMPT, step=70, reports=reports)
    assert store.commit_of("b2" * 8) is None
