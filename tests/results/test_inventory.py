"""The inventory of a store: one listing, and the trials that use each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver.retention.listing import COMMIT_NBYTES
from dasktune._results.inventory import Inventory, take_inventory
from dasktune._study.study import Study
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.storage.codec import encode
from dasktune.storage.database.database import Batch
from dasktune.storage.database.rows import CheckpointRow
from dasktune.storage.leases import HeldLeases, Lease, Leases
from tests.storage.noting_store import NotingStore

STEPS = 8


class Falling(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.loss = 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.loss *= 1 - self.lr

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.loss}

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss = state["loss"]


class Lab:
    """Studies in one store."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder = folder
        self.client = client
        self.store = NotingStore(str(folder))
        self._open: list[Study] = []

    def study(self, name: str, *, database: str = "dasktune.db", **options: Any) -> Study:
        options = {"metric": "loss", "checkpoint_every": 1000, **options}
        where = str(self.folder / database)
        made = dt.create_study(Falling, name=name, storage=self.folder, database=where, **options)
        self._open.append(made)
        return made

    def trained(self, name: str, *lrs: Sequence, steps: int = STEPS, **options: Any) -> Study:
        study = self.study(name, **options)
        self.train(study, dt.algos.Grid(dt.Space(lr=list(lrs)), max_steps=steps))
        return study

    def train(self, study: Study, tuner: dt.algos.Tuner) -> None:
        study.optimize(tuner, client=self.client, last_line=False)

    def inventory(self, study: Study | None, **options: Any) -> Inventory:
        database = None if study is None else study.database
        return take_inventory(self.store, database, **options)

    def close(self) -> None:
        for study in self._open:
            study.close()


@pytest.fixture
def lab(tmp_path: Path, two_threads: Client) -> Iterator[Lab]:
    made = Lab(tmp_path, two_threads)
    yield made
    made.close()


LATER = Piecewise([0.1, 0.3], [5])
"""Parts from a constant of 0.1 at step 5."""


def owners(inventory: Inventory) -> dict[str, dict[str, tuple[int, ...]]]:
    return {one.key: dict(one.owners) for one in inventory.holdings}


def key(study: Study, trial: int, step: int) -> str:
    return study.plan.node_at(trial, step).key_at(step)


def test_inventory_owners_are_trials_whose_path_has_the_state(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1), LATER, Constant(0.2))
    found = lab.inventory(study)
    assert owners(found) == {
        key(study, 0, 5): {"one": (0, 1)},
        key(study, 0, 8): {"one": (0,)},
        key(study, 1, 8): {"one": (1,)},
        key(study, 2, 8): {"one": (2,)},
    }
    assert {one.key: one.step for one in found.holdings} == {
        one.key: one.step for one in lab.store.inventory()
    }


def test_inventory_counts_states_shared_by_studies(lab: Lab) -> None:
    lab.trained("one", Constant(0.1), LATER)
    two = lab.trained("two", Constant(0.1), Constant(0.4))
    shelves = {one.name: one for one in lab.inventory(two).shelves()}
    assert list(shelves) == ["one", "two"]
    assert (shelves["one"].checkpoints, shelves["one"].shared, shelves["one"].trials) == (3, 2, 2)
    assert (shelves["two"].checkpoints, shelves["two"].shared) == (3, 2)


def test_inventory_state_found_in_store_belongs_to_its_finder(lab: Lab) -> None:
    theirs = lab.trained("theirs", Constant(0.1), LATER, Constant(0.7))
    mine = lab.trained("mine", Constant(0.1), Constant(0.4), database="mine.db")
    found = lab.inventory(mine)
    assert owners(found) == {
        key(mine, 1, 8): {"mine": (1,)},
        key(theirs, 0, 5): {"mine": (0,)},
        key(theirs, 0, 8): {"mine": (0,)},
        key(theirs, 1, 8): {},
        key(theirs, 2, 8): {},
    }
    of_mine = [one for one in found.holdings if one.owners]
    commits = lab.store.commits(one.key for one in of_mine)
    assert {one.key: one.seconds for one in of_mine} == {
        key: commit.seconds for key, commit in commits.items()
    }
    assert {one.seconds for one in found.strangers} == {None}


def test_inventory_control_characters_are_replaced(lab: Lab) -> None:
    environment = {"python": "3.11", "device": "\x1b[31mred\n"}
    state = encode({"loss": 0.5})
    lab.store.save(state, key="ab12", attempt="a1", step=3, environment=environment)
    (shelf,) = lab.inventory(None).shelves()
    assert shelf.name == "Python 3.11, ?[31mred?"


def test_inventory_figures_are_sums_over_checkpoints(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1), LATER)
    (shelf,) = lab.inventory(study).shelves()
    files = [*(lab.folder / "checkpoints").rglob("commit")]
    states = sum(path.stat().st_size for path in files)
    assert shelf.nbytes == states + shelf.checkpoints * COMMIT_NBYTES
    assert shelf.written == pytest.approx(max(path.stat().st_mtime for path in files))
    commits = lab.store.commits(lab.store.keys()).values()
    assert shelf.seconds == pytest.approx(sum(one.seconds for one in commits))
    assert shelf.seconds > 0


def test_inventory_repeats_and_controls_own_their_states(lab: Lab) -> None:
    repeats = lab.study("repeats", seed=3)
    grid = dt.algos.Grid(dt.Space(lr=[Constant(0.1)]), max_steps=STEPS)
    lab.train(repeats, dt.algos.Repeats(grid, seeds=2))
    control = lab.trained("control", Constant(0.1), LATER, merge=False)
    found = lab.inventory(control)
    assert owners(found) == {
        **{key(repeats, trial, 8): {"repeats": (trial,)} for trial in (0, 1)},
        **{key(control, trial, 8): {"control": (trial,)} for trial in (0, 1)},
        key(control, 1, 5): {"control": (1,)},
    }


def test_inventory_trial_does_not_own_states_beyond_its_end(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1))
    short = lab.trained("short", Constant(0.1), steps=5)
    assert owners(lab.inventory(short))[key(study, 0, 8)] == {"one": (0,)}


def test_inventory_state_off_all_paths_belongs_to_root_studies(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1))
    lab.trained("two", Constant(0.2))
    lab.trained("far", Constant(0.1), seed=7)
    commit = lab.store.save(encode({"loss": 0.5}), key="ab12", attempt="a1", step=3)
    row = CheckpointRow(
        key="ab12",
        root=study.plan.root_key,
        step=3,
        attempt="a1",
        digest=commit.digest,
        nbytes=commit.nbytes,
        seconds=2.0,
    )
    study.database.write(Batch(checkpoints=[row]))
    assert owners(lab.inventory(study))["ab12"] == {"one": (), "two": ()}


def test_inventory_states_of_other_databases_are_counted(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1))
    lab.trained("other", Constant(0.5), database="other.db")
    found = lab.inventory(study)
    assert len(found.holdings) == 2
    (stranger,) = found.strangers
    assert stranger.seconds is None
    (stranger,) = lab.inventory(study, opens=True).strangers
    assert stranger.seconds is not None
    assert stranger.step == 8


def test_inventory_commits_in_database_are_not_opened(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1), LATER)
    lab.store.opened.clear()
    lab.inventory(study, opens=True)
    assert lab.store.opened == []
    assert len(lab.inventory(None).holdings) == len(lab.store.opened) == 3


@pytest.mark.usefixtures("files_of_their_own")
def test_inventory_without_database_names_training_software(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1))
    broken = key(study, 0, 8)
    lab.store.save(encode({}), key="ab12", attempt="a1", step=3, environment={"torch": "2.9"})
    (path,) = [one for one in lab.folder.rglob("commit") if broken in str(one)]
    path.write_bytes(b"{}")
    names = {one.key: list(one.owners) for one in lab.inventory(None).holdings}
    assert names == {"ab12": ["torch 2.9, (unknown device)"], broken: ["(commit cannot be read)"]}


def test_inventory_unfinished_uploads_are_counted_in_bytes(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1))
    before = lab.inventory(study)
    assert before.unfinished == 0
    there = key(study, 0, 8)
    for name in (there, "cd34"):
        folder = lab.folder / "checkpoints" / name[:2] / name / "a9-dead" / "step-8"
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_bytes(b"x" * 1000)
    found = lab.inventory(study)
    assert found.unfinished == 2000
    assert [(one.key, one.nbytes) for one in found.holdings] == [
        (one.key, one.nbytes) for one in before.holdings
    ]


def test_inventory_missing_checkpoints_are_counted(lab: Lab) -> None:
    study = lab.trained("one", Constant(0.1), LATER)
    lab.store.discard(key(study, 1, 8))
    found = lab.inventory(study)
    assert found.gone == 1
    assert len(found.holdings) == 2


@pytest.mark.parametrize("skew", [-540.0, 0.0, 540.0])
def test_inventory_has_open_leases_only(
    skew: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, leases = time.time(), Leases(lab.store.files)

    def hold(holder: str, expires: float, **changes: Any) -> Lease:
        lease = Lease(
            holder=holder, key="aa01", first="aa01", sequences={}, start=0, stop=8, step=0
        )
        own = replace(lease, **changes)
        leases.hold(HeldLeases(holder=holder, study="one", expires=expires, leases=(own,)))
        return own

    held = hold("run-1", now + 60)
    hold("run-2", now - 1)
    hold("run-3", now + 60, is_done=True)
    hold("run-4", now + 60, is_asked=True)
    (lab.folder / "drivers" / "run-5").write_bytes(b"no driver")
    monkeypatch.setattr(time, "time", lambda: now + skew)
    assert take_inventory(lab.store, None).leases == (held,), "the store's clock decides"


def test_inventory_of_empty_store_is_empty(lab: Lab) -> None:
    found = lab.inventory(lab.study("one"))
    assert (found.holdings, found.unfinished, found.gone, found.leases) == ((), 0, 0, ())
    assert [(one.name, one.trials, one.checkpoints) for one in found.shelves()] == [("one", 0, 0)]
