"""Power cuts after every operation: what was said to be durable is there, and nothing is half."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from dasktune._study.export import write_state
from dasktune.errors import CorruptCheckpointError
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch, Database
from dasktune.storage.database.rows import EventRow, TrialRow, VerdictRow
from dasktune.storage.files.local import LocalFiles
from dasktune.storage.leases import HeldLeases, Lease, Leases
from dasktune.storage.verdicts import Verdicts
from tests.storage.power_cut import Disk, Image, restore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SEEDS = 3
"""Images that are checked after each operation, beside the one that is certain."""

STATE = {"weight": np.arange(5.0), "epoch": 3}
OTHER = {"weight": np.arange(5.0) + 1, "epoch": 4}


@pytest.fixture
def disk_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Callable[[Disk], Iterator[Path]]:
    """Return a function that yields the folders that a power cut may leave now."""
    numbers = count()

    def of(disk: Disk) -> Iterator[Path]:
        each: Iterable[Image] = (disk.possible(next(numbers)) for _ in range(SEEDS))
        for image in (disk.synced(), *each):
            yield restore(image, tmp_path / f"image-{next(numbers)}")

    return of


# --------------------------------------------------------------------------------- files


def write_new(files: LocalFiles) -> None:
    files.write("n/b", {"x": [np.ones(3, np.uint8)], "y": [np.ones(2, np.uint8)]})


def write_beside(files: LocalFiles) -> None:
    files.write("new/c", {"x": [np.ones(3, np.uint8)]})


def create_new(files: LocalFiles) -> None:
    assert files.create("d/e/commit", b"first")


def create_beside(files: LocalFiles) -> None:
    assert files.create("a/commit", b"first")


def replace_new(files: LocalFiles) -> None:
    files.replace("f/g", b"new", durable=True)


def replace_old(files: LocalFiles) -> None:
    files.replace("a/old", b"new", durable=True)


CALLS: dict[Callable[[LocalFiles], None], dict[str, bytes]] = {
    write_new: {"n/b/x": b"\1\1\1", "n/b/y": b"\1\1"},
    write_beside: {"new/c/x": b"\1\1\1"},
    create_new: {"d/e/commit": b"first"},
    create_beside: {"a/commit": b"first"},
    replace_new: {"f/g": b"new"},
    replace_old: {"a/old": b"new"},
}
"""Calls that promise durability, and the files that each of them promises."""


def lost_after(call: Callable[[LocalFiles], None], folder: Path, ignored: int | None) -> set[str]:
    """Return the promised files that a power cut loses right after a call, and the fsyncs."""
    disk = Disk(folder)
    with disk.watching():
        files = LocalFiles(folder / "store")
        files.write("b", {"old": [np.zeros(3, np.uint8)]})
        # Another process has made the folders, and not synced their names.
        for name in ("a", "new"):
            folder.joinpath("store", name).mkdir()
        folder.joinpath("store", "a", "old").write_bytes(b"old")
        disk.ignore(ignored)
        call(files)
        image = disk.synced()
    lost = {path for path, content in CALLS[call].items() if image.get(f"store/{path}") != content}
    return lost | ({"no fsync"} if ignored is not None and ignored >= disk.fsyncs else set())


@pytest.mark.parametrize("call", CALLS)
def test_each_call_that_promises_durability_keeps_it(
    call: Callable[[LocalFiles], None], disk_folder: Path
) -> None:
    assert lost_after(call, disk_folder, None) == set()


@pytest.mark.parametrize("call", CALLS)
def test_each_fsync_that_is_left_out_loses_a_file(
    call: Callable[[LocalFiles], None], tmp_path: Path
) -> None:
    for number in count():
        folder = tmp_path / f"disk-{number}"
        folder.mkdir()
        lost = lost_after(call, folder, number)
        if "no fsync" in lost:
            break
        assert lost, f"fsync {number} is not needed"
    assert number >= 2, "content and name are synced"


@pytest.mark.parametrize("others_make", [False, True])
def test_folder_that_was_made_again_is_synced_again(disk_folder: Path, others_make: bool) -> None:
    """Another process evicts the first state and removes the folder; a third one makes it again."""
    disk, path = Disk(disk_folder), layout.commit_path("abcd")
    with disk.watching():
        files = LocalFiles(disk_folder / "store")
        assert files.create(path, b"first")
        disk_folder.joinpath("store", path).unlink()
        disk_folder.joinpath("store", layout.key_folder("abcd")).rmdir()
        if others_make:
            disk_folder.joinpath("store", layout.key_folder("abcd")).mkdir()
        assert files.create(path, b"second")
        assert disk.synced().get(f"store/{path}") == b"second"


# --------------------------------------------------------------------------- checkpoints


@contextmanager
def after_each_operation(
    disk: Disk, check: Callable[[Path], None], images: Callable[[Disk], Iterator[Path]]
) -> Iterator[None]:
    """Check all images after each operation of the block."""
    checked = count()

    def after() -> None:
        for folder in images(disk):
            check(folder)
            next(checked)

    with disk.watching(after):
        yield
    assert next(checked) > 8


def is_same(state: object, other: object) -> bool:
    return encode(state).digest == encode(other).digest


def test_checkpoints_are_whole_or_absent_after_power_cuts(
    disk_folder: Path, images: Callable[[Disk], Iterator[Path]]
) -> None:
    disk, durable = Disk(disk_folder), dict[str, object]()

    def check(folder: Path) -> None:
        store = CheckpointStore(str(folder / "store"))
        for key in ("ab01", "ab02"):
            state = None
            with suppress(CorruptCheckpointError):
                state = store.load(key)[0]
            if key in durable:
                assert state is not None, f"{key} is lost"
            assert state is None or is_same(state, STATE) or is_same(state, OTHER)
            assert key not in durable or is_same(state, durable[key])
        there = {stored.key for stored in store.inventory() if stored.is_committed}
        assert durable.keys() <= there
        assert store.commits(durable).keys() == durable.keys()

    with after_each_operation(disk, check, images):
        store = CheckpointStore(str(disk_folder / "store"))
        store.save(encode(STATE), key="ab01", attempt="first", step=1)
        durable["ab01"] = STATE
        assert store.save(encode(OTHER), key="ab01", attempt="late", step=1).attempt == "first"
        store.save(encode(OTHER), key="ab02", attempt="first", step=2)
        durable["ab02"] = OTHER
        del durable["ab01"]
        store.discard("ab01")
        store.save(encode(OTHER), key="ab01", attempt="again", step=1)
        durable["ab01"] = OTHER


def test_leases_are_whole_or_absent_after_power_cuts(
    disk_folder: Path, images: Callable[[Disk], Iterator[Path]]
) -> None:
    lease = Lease(holder="h", key="ab01", first="aa01", sequences={}, start=0, stop=9, step=0)
    held = HeldLeases(holder="h", study="s", expires=100.0, leases=(lease,))
    disk = Disk(disk_folder)

    def check(folder: Path) -> None:
        leases = Leases(LocalFiles(folder / "store"))
        there = leases.drivers(["h"])
        assert len(there) == len(leases.holders()), "what is there can be read"
        assert there in ([], [held], [replace(held, expires=200.0)])

    with after_each_operation(disk, check, images):
        leases = Leases(LocalFiles(disk_folder / "store"))
        leases.hold(held)
        leases.hold(replace(held, expires=200.0))
        leases.leave("h")


def verdict(found: float, text: str) -> VerdictRow:
    return VerdictRow(
        fingerprint="f1", rule=2, device="cpu", versions={}, ok=False, text=text, splits=[3],
        steps=6, found=found,
    )  # fmt: skip


def test_verdicts_are_never_lost_or_half_after_power_cuts(
    disk_folder: Path, images: Callable[[Disk], Iterator[Path]]
) -> None:
    disk, durable = Disk(disk_folder), list[str]()

    def check(folder: Path) -> None:
        there = [row.text for row in Verdicts(None, LocalFiles(folder / "store")).of("f1")]
        assert not durable or there in (durable, ["new"]), "a verdict is lost"
        assert there in ([], ["old"], ["new"])

    with after_each_operation(disk, check, images):
        verdicts = Verdicts(None, LocalFiles(disk_folder / "store"))
        for text in ("old", "new"):
            verdicts.record(verdict(1.0, text))
            durable[:] = [text]


def test_exported_file_is_the_old_or_the_new_after_power_cuts(
    disk_folder: Path, images: Callable[[Disk], Iterator[Path]]
) -> None:
    disk, old, durable = Disk(disk_folder), 1.0, list[float]()

    def check(folder: Path) -> None:
        path = folder / "out" / "model.npz"
        there = []
        if path.exists():
            with np.load(path) as content:
                there = [float(content["weight"][0])]
        assert there in ([], [old], [old + 1])
        assert not durable or there in (durable, [durable[0] + 1]), "the export is lost"

    with disk.watching(lambda: [check(folder) for folder in images(disk)] and None):
        for value in (old, old + 1):
            write_state(disk_folder / "out" / "model.npz", {"weight": np.array([value])}, {})
            durable[:] = [value]
    for folder in images(disk):
        check(folder)


def test_each_fsync_of_an_export_is_needed(tmp_path: Path) -> None:
    lost: list[bool] = []
    is_last = False
    while not is_last:
        folder = tmp_path / f"disk-{len(lost)}"
        folder.mkdir()
        disk = Disk(folder)
        with disk.watching():
            disk.ignore(len(lost))
            path = write_state(folder / "out" / "model.npz", {"weight": np.ones(3)}, {})
            lost.append(disk.synced().get("out/model.npz") != path.read_bytes())
            is_last = len(lost) > disk.fsyncs
    assert lost == [True, True, True, False], "file, its name, its folder's name; and none"


# ------------------------------------------------------------------------------ database


def test_sqlite_keeps_whole_transactions_after_a_power_cut(tmp_path: Path) -> None:
    """With `synchronous=NORMAL` a power cut may lose the end of the log, and nothing else."""
    path = tmp_path / "study.db"
    Database(path).close()  # its tables are in the file
    database = Database(path)
    for number in range(5):
        event = EventRow(study_id=1, number=number, payload={"n": number})
        trial = TrialRow(study_id=1, number=0, state="RUNNING", steps=number, value=None, record={})
        database.write(Batch(events=[event], trials=[trial]))
    log = path.with_name("study.db-wal").read_bytes()
    kept, step = set(), len(log) // 20
    for index, cut in enumerate([*range(0, len(log), step), len(log)]):
        folder = tmp_path / f"cut-{index}"
        folder.mkdir()
        (folder / "study.db").write_bytes(path.read_bytes())
        (folder / "study.db-wal").write_bytes(log[:cut])
        after = Database(folder / "study.db")
        numbers = [row.number for row in after.events(1)]
        steps = [row.steps for row in after.trials(1)]
        assert numbers == [*range(len(numbers))]
        assert steps == numbers[-1:], "event and trial are in one transaction"
        kept.add(len(numbers))
        after.close()
    database.close()
    assert kept == {0, 1, 2, 3, 4, 5}


def test_sqlite_syncs_at_checkpoints_of_its_log(tmp_path: Path) -> None:
    database = Database(tmp_path / "study.db")
    with database.connections.engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous")
        }
    database.close()
    assert settings == {"journal_mode": "wal", "synchronous": 1}
