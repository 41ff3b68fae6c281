"""The compute classes of real workers that are unlike: found, announced and shown."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from dasktune._cluster.workers import Workers
from dasktune._worker.hardware import hardware_of
from dasktune._worker.job import JobPlan
from dasktune.graph.events import WorkerJoined
from dasktune.needs import NO_NEEDS, NumericClass
from dasktune.trainer.code import pack
from tests.toy_trainers import Adding
from tests.unlike_workers import unlike_processes, unlike_workers

pytestmark = pytest.mark.cluster


def joined(client: Any, folder: Path) -> list[WorkerJoined]:
    """Return the announcements of all workers."""
    plan = JobPlan(
        run="adding-1",
        code=pack(Adding),
        config={},
        seed=0,
        store=str(folder),
        report_every=1,
        needs=NO_NEEDS,
    )
    workers = Workers(client, plan, queue.SimpleQueue[Any]().put)
    steps = workers.open(lambda event: None)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            workers.close()
            return list(end.value)


def test_workers_with_other_resources_are_other_classes(tmp_path: Path) -> None:
    with unlike_workers({}, {"GPU": 1, "tag:Big": 1}, {}) as client:
        events = joined(client, tmp_path)
    own = hardware_of({})
    kinds = sorted((event.kind, event.tags - own.tags) for event in events)
    gpu = hardware_of({"GPU": 1})
    assert kinds == sorted(
        [
            (own.name, frozenset()),
            (own.name, frozenset()),
            (gpu.name, gpu.tags - own.tags | {"big"}),
        ]
    )


@pytest.mark.process
def test_workers_say_class_and_tags_of_their_environment(tmp_path: Path) -> None:
    old = {"DASKTUNE_CLASS": "old", "DASKTUNE_TAGS": "lab3", "DASKTUNE_NUMERICS": "avx2"}
    with unlike_processes({}, old) as client:
        events = {event.kind: (event.tags, event.numerics) for event in joined(client, tmp_path)}
    own = hardware_of({})
    assert events == {
        own.name: (own.tags, NumericClass(name=own.numerics)),
        "old": (own.tags | {"lab3"}, NumericClass(name="avx2")),
    }
