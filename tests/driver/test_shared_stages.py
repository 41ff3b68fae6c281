"""Leases and save requests in a store, whoever wrote them: a study copes with all."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.driver.lease_messages import LeaseAnswered, LeaseMessage
from dasktune.driver.leases import Leasing
from dasktune.engine.timeouts import Waits
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Exponential, Linear, MultiStep, Sequence
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import HeldLeases, HeldLeasesCodec, Lease, Leases
from tests.toy_trainers import Adding

STEPS = 12
RATE = Constant(0.1)
PATIENCE = dt.Limits(seconds=30)
"""Far less than any lease here lasts, and far more than training takes."""


LIST_ANEW = dt.Timeouts(waits=Waits(listing_seconds=0.0))
"""Each run lists the store again."""


class Store:
    """A store with studies, another driver, and files that others have left there."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client = folder, client
        self.files = open_files(str(folder / "store"))
        self.leases = Leases(self.files)
        self.studies: dict[str, dt.Study] = {}
        # Without another driver no lease would be looked at.
        store, answers = CheckpointStore(str(folder / "store")), queue.SimpleQueue[LeaseMessage]()
        self.other = Leasing(store, "busy elsewhere", answers.put)
        elsewhere = self.other.lease(key="ee" * 16, root="ef" * 16, sequences={}, start=0, stop=9)
        self.other.ask("elsewhere", elsewhere)
        assert answers.get(timeout=60) == LeaseAnswered(attempt="elsewhere", other=None)

    def study(self, name: str) -> dt.Study:
        if name not in self.studies:
            self.studies[name] = dt.create_study(
                Adding, name=name, storage=self.folder / "store", metric="loss"
            )
        return self.studies[name]

    def run(self, name: str, steps: int = STEPS, rate: Sequence = RATE) -> Mapping[str, Any]:
        """Train one trial; return the study's figures."""
        study = self.study(name)
        tuner = dt.algos.Grid(dt.Space(lr=[rate]), max_steps=steps)
        options = {"limits": PATIENCE, "timeouts": LIST_ANEW, "progress": False}
        study.optimize(tuner, client=self.client, last_line=False, **options)
        assert study.limit is None, "nothing is waited for in vain"
        assert study.trials[-1].steps == steps
        return study.summary()

    def lease(self, stop: int, **more: Any) -> Lease:
        """Return another driver's lease on the first steps of the usual trial."""
        root = self.study("mine").plan.root_key
        lease = Lease(
            key=self.key_at(1),
            root=root,
            study="other",
            holder="h2",
            sequences={"lr": RATE.to_json()},
            start=0,
            stop=stop,
            step=max(more.get("saved", (0,))),
            expires=time.time() + 300,
        )
        return replace(lease, **more)

    def key_at(self, step: int) -> str:
        root = self.study("mine").plan.root_key
        return SearchPlan(root).register(0, {"lr": RATE}, 100).key_at(step)


@pytest.fixture
def store(tmp_path: Path, two_threads: Client) -> Iterator[Store]:
    made = Store(tmp_path, two_threads)
    yield made
    made.other.close()
    for study in made.studies.values():
        study.close()


def test_a_part_of_a_dead_drivers_lease_is_waited_for_once(store: Store) -> None:
    store.run("first", 8)
    whole = store.lease(20, saved=(8,), expires=time.time() - 1)
    store.leases.write(whole)
    store.leases.write(whole.part(store.key_at(9)))
    assert store.run("mine")["steps_executed"] == STEPS - 8


def test_a_driver_that_is_past_what_is_wanted_is_not_waited_for(store: Store) -> None:
    store.leases.write(store.lease(100, saved=(50,)))
    found = store.run("mine")
    assert (found["steps_executed"], found["steps_repeated"]) == (STEPS, STEPS)


HOSTILE_LEASES: list[Mapping[str, Any]] = [
    {"expires": 1e300},
    {"expires": float("inf")},
    {"expires": 10**400},
    {"root": "../.."},
    {"root": "ab12"},
    {"key": "b1" * 16},
    {"sequences": 5, "saved": [3], "expires": 1.0, "step": 9},
    {"sequences": {"lr": {"family": "Piecewise", "values": 5, "boundaries": 7}}, "saved": [3]},
    {"saved": [10**12]},
]


@pytest.mark.parametrize("altered", HOSTILE_LEASES, ids=" ".join)
def test_forged_lease_does_not_delay_a_study(store: Store, altered: Mapping[str, Any]) -> None:
    lease = store.lease(STEPS)
    content = json.dumps({**json.loads(lease.to_bytes()), **altered})
    store.files.replace(layout.lease_path(lease.root, lease.key), content.encode())
    assert store.run("mine")["steps_executed"] == STEPS


HOSTILE_DRIVERS: Mapping[str, Mapping[str, Any]] = {
    "no object": {"format": "other"},
    "no leases": {"leases": None},
    "lease of nothing": {"leases": [None, 5, {}, "x"]},
    "distant end": {"expires": 1e300},
    "no end": {"expires": float("nan")},
    "other name": {"holder": "../../etc/passwd"},
    "odd name": {"sees": [5]},
}


@pytest.mark.parametrize("name", HOSTILE_DRIVERS)
def test_forged_driver_does_not_delay_a_study(store: Store, name: str) -> None:
    lease = replace(store.lease(100), holder="stranger", key="b1" * 16)
    expires = time.time() + 60
    held = HeldLeases(holder="stranger", study="other", expires=expires, leases=(lease,))
    content = json.dumps({**json.loads(HeldLeasesCodec().encode(held)), **HOSTILE_DRIVERS[name]})
    store.files.replace(layout.driver_path("stranger"), content.encode())
    assert store.run("mine")["steps_executed"] == STEPS


LONG = 10**12
HOSTILE_WISHES: Mapping[str, list[tuple[Sequence, list[int]]]] = {
    "step 0": [(RATE, [5, 0])],
    "negative": [(RATE, [5, -3])],
    "no step": [(RATE, [])],
    "ended": [(RATE[:4], [100])],
    "overflow": [(RATE[:1] >> Exponential(1e300, gamma=gamma), [9]) for gamma in (1e300, 1e299)],
    "many": [(RATE, list(range(1, 20_000)))],
    "equal for ever": [
        (Linear(1.0, 1.0, period=LONG), [LONG]),
        (Exponential(1.0, gamma=1.0), [LONG]),
    ],
}


@pytest.mark.parametrize("name", HOSTILE_WISHES)
def test_forged_save_request_does_not_delay_a_study(store: Store, name: str) -> None:
    document = [
        {"sequences": {"lr": rate.to_json()}, "ends": ends} for rate, ends in HOSTILE_WISHES[name]
    ]
    root = store.study("mine").plan.root_key
    path = f"{layout.save_request_folder(root)}/stranger-0"
    store.files.replace(path, json.dumps(document).encode())
    assert store.run("mine")["steps_executed"] == STEPS


def test_a_study_that_is_open_finds_what_others_have_saved_since(store: Store) -> None:
    store.run("mine", 4, MultiStep(0.5, milestones=[2], gamma=0.5))
    store.run("other")
    summary = store.run("mine")
    assert (summary["steps_executed"], summary["steps_reused"]) == (4, STEPS)
