"""A study keeps its states in a real object store, or on a disk that is too small."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import dasktune as dt
from dasktune._cluster.local import local_client
from dasktune.errors import StorageError
from dasktune.sequences import Constant, Piecewise
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.codec import encode
from tests.pages import python_blocks
from tests.services import S3Server

STEPS = 6
SPACE = dt.Space(lr=[Constant(0.1), Piecewise([0.1, 0.2], [4]), Piecewise([0.1, 0.3], [2])])


class Walk(dt.Trainer):
    """Multiplies many numbers by 1 - lr at every step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = np.ones(40_000)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.x = self.x * (1 - self.lr)

    def evaluate(self) -> dict[str, float]:
        return {"loss": float(self.x[0])}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


def losses(lr: Callable[[int], float]) -> list[float]:
    found, x = [], 1.0
    for step in range(STEPS):
        x *= 1 - lr(step)
        found.append(x)
    return found


EXPECTED = [losses(lambda _: 0.1), losses(lambda t: (0.1, 0.2)[t >= 4])]
EXPECTED += [losses(lambda t: (0.1, 0.3)[t >= 2])]
UNIQUE = 6 + 2 + 4


def opened(storage: str, database: Path) -> dt.Study:
    return dt.create_study(
        Walk,
        name="walk",
        storage=storage,
        database=str(database),
        metric="loss",
        direction="minimize",
        load_if_exists=True,
        checkpoint_every=1,
    )


def tune(storage: str, database: Path) -> dt.Study:
    study = opened(storage, database)
    with local_client(2) as client:
        study.optimize(dt.algos.Grid(SPACE, max_steps=STEPS), client=client)
    return study


def is_right(study: dt.Study) -> bool:
    found = [[trial.metrics[s]["loss"] for s in range(1, STEPS + 1)] for trial in study.trials]
    return found == EXPECTED


@pytest.mark.ceph
@pytest.mark.cluster
def test_study_resumes_from_the_object_store_alone(
    ceph: S3Server, point_at: Callable[..., None], tmp_path: Path
) -> None:
    point_at(ceph)
    storage = f"s3://{ceph.create_bucket()}/tuning"
    first = tune(storage, tmp_path / "first.db")
    assert is_right(first)
    assert first.summary()["steps_executed"] == first.summary()["steps_unique"] == UNIQUE
    stored = list(CheckpointStore(storage).inventory())
    assert all(one.is_committed and len(one.attempts) == 1 for one in stored)
    again = tune(storage, tmp_path / "second.db")
    assert is_right(again)
    assert again.summary()["steps_executed"] == 0


@pytest.mark.s3
def test_storage_page_examples_run(
    moto: S3Server, point_at: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    point_at(moto)
    page = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    section = page.partition("## Where states are kept")[2].partition("\n## ")[0]
    (block,) = python_blocks("storage.md")
    names: dict[str, Any] = {}
    exec(
        compile(block.replace("s3://bucket", f"s3://{moto.create_bucket()}"), "page", "exec"), names
    )
    assert names["study"]().trials == []
    assert (tmp_path / "dasktune.db").is_file()
    (options,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    monkeypatch.setitem(fsspec.config.conf, "s3", json.loads(options)["s3"])
    system = fsspec.filesystem("s3")
    assert system.endpoint_url == "https://store.example.org"


@dataclass(frozen=True)
class SmallDisk:
    """A file system in memory, of a size that can be changed."""

    path: Path

    def resize(self, size: str) -> None:
        command = ["mount", "-o", f"remount,size={size}", str(self.path)]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs to be root, to mount a small disk")
    yield SmallDisk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.cluster
def test_study_on_a_full_disk_fails_and_resumes(small_disk: SmallDisk, tmp_path: Path) -> None:
    storage, database = str(small_disk.path / "store"), tmp_path / "studies.db"
    with pytest.raises(StorageError, match="no space is left on the disk"):
        tune(storage, database)
    store = CheckpointStore(storage)
    stored = list(store.inventory())
    kept = {one.key: store.load(one.key)[1] for one in stored if one.is_committed}
    assert kept
    assert [one.key for one in stored if not one.is_committed] == []
    durable = sum(commit.step > 0 for commit in kept.values())
    assert opened(storage, database).summary()["steps_executed"] == durable
    small_disk.resize("50m")
    study = tune(storage, database)
    assert is_right(study)
    # What is in the store is not trained again; what found no room there does not count.
    assert study.summary()["steps_executed"] == UNIQUE
    for key, commit in kept.items():
        assert store.load(key)[1].to_json() == commit.to_json()


def test_save_on_a_full_disk_leaves_no_files(small_disk: SmallDisk) -> None:
    store = CheckpointStore(str(small_disk.path))
    commit = store.save(encode({"x": np.ones(60_000)}), key="a1f0", attempt="1-aa", step=1)
    before = files_below(small_disk.path)
    large = encode({"x": np.ones(150_000)})
    with pytest.raises(StorageError, match=r"cannot write to /\S+: no space is left on the disk"):
        store.save(large, key="b1f0", attempt="2-bb", step=1)
    assert files_below(small_disk.path) == before
    assert store.load("a1f0")[1].to_json() == commit.to_json()
    small_disk.resize("10m")
    store.save(large, key="b1f0", attempt="2-bb", step=1)
    assert store.load("b1f0")[0]["x"].size == 150_000


def files_below(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()}
