"""Leases and save requests in a store, whoever wrote them: a study copes with all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver import other_leases
from dasktune._engine.timeouts import Waits
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant, Exponential, Linear, MultiStep, Sequence
from dasktune.storage import layout
from dasktune.storage.files.objects import open_files
from dasktune.storage.leases import HeldLeases, Lease, Leases
from tests.toy_trainers import Adding

STEPS = 12
RATE = Constant(0.1)
PATIENCE = dt.Limits(seconds=30)
"""Far less than any lease here lasts, and far more than training takes."""


LIST_ANEW = dt.Timeouts(waits=Waits(listing_seconds=0.0))
"""Each run lists the store again."""


class Store:
    """A store with studies, and files that others have left there."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client = folder, client
        self.files = open_files(str(folder / "store"))
        self.leases = Leases(self.files)
        self.studies: dict[str, dt.Study] = {}

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
        lease = Lease(
            holder="h2",
            key=self.key_at(1),
            first=self.key_at(1),
            sequences={"lr": RATE},
            start=0,
            stop=stop,
            step=max(more.get("saved", (0,))),
        )
        return replace(lease, **more)

    def hold(self, *leases: Lease, seconds: float = 300.0, **altered: Any) -> None:
        """Write the file of another driver, whose first line a stranger may have altered."""
        expires, path = time.time() + seconds, layout.driver_path("h2")
        self.leases.hold(HeldLeases(holder="h2", study="other", expires=expires, leases=leases))
        content = self.files.read("", [path])[0]
        assert content is not None
        head, _, lines = content.tobytes().partition(b"\n")
        text = json.dumps({**json.loads(head + b"]}"), **altered}).encode()
        self.files.replace(path, text.removesuffix(b"]}") + b"\n" + lines)

    def key_at(self, step: int) -> str:
        root = self.study("mine").plan.root_key
        return SearchPlan(root).register(0, {"lr": RATE}, 100).key_at(step)


@pytest.fixture
def store(tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(other_leases, "LEASE_MEET_SECONDS", 0.0)  # the other driver is a file
    made = Store(tmp_path, two_threads)
    yield made
    for study in made.studies.values():
        study.close()


def test_lease_of_a_dead_driver_is_not_waited_for(store: Store) -> None:
    store.run("first", 8)
    store.hold(store.lease(20, saved=(8,)), seconds=-1.0)
    assert store.run("mine")["steps_executed"] == STEPS - 8


def test_a_driver_that_is_past_what_is_wanted_is_not_waited_for(store: Store) -> None:
    store.hold(store.lease(100, saved=(50,)))
    found = store.run("mine")
    assert (found["steps_executed"], found["steps_repeated"]) == (STEPS, STEPS)


HOSTILE_LEASES: list[Mapping[str, Any]] = [
    {"first": "../.."},
    {"first": "ab12"},
    {"sequences": {}, "saved": (3,)},
    {"sequences": {"lr": RATE[:1]}, "saved": (50,)},
    {"saved": (10**12,)},
]


@pytest.mark.parametrize("altered", HOSTILE_LEASES, ids=str)
def test_forged_lease_does_not_delay_a_study(store: Store, altered: Mapping[str, Any]) -> None:
    store.hold(store.lease(STEPS, **altered))
    assert store.run("mine")["steps_executed"] == STEPS


HOSTILE_DRIVERS: Mapping[str, Mapping[str, Any]] = {
    "no object": {"format": "other"},
    "distant end": {"expires": 1e300},
    "no end": {"expires": float("nan")},
    "other name": {"holder": "../../etc/passwd"},
    "odd name": {"sees": [5]},
    "odd requests": {"requests": [1]},
}


@pytest.mark.parametrize("name", HOSTILE_DRIVERS)
def test_forged_driver_does_not_delay_a_study(store: Store, name: str) -> None:
    store.hold(store.lease(100), **HOSTILE_DRIVERS[name])
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
    root, paths = store.study("mine").plan.root_key, HOSTILE_WISHES[name]
    requests = [
        {"root": root, "sequences": {"lr": rate.to_json()}, "ends": ends} for rate, ends in paths
    ]
    content = json.dumps({"total": len(paths), "requests": requests}).encode()
    store.files.replace(layout.save_request_path("h2"), content)
    store.hold(requests=len(paths))
    assert store.run("mine")["steps_executed"] == STEPS


def test_a_study_that_is_open_finds_what_others_have_saved_since(store: Store) -> None:
    store.run("mine", 4, MultiStep(0.5, milestones=[2], gamma=0.5))
    store.run("other")
    summary = store.run("mine")
    assert (summary["steps_executed"], summary["steps_reused"]) == (4, STEPS)
