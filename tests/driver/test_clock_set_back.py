"""A clock that is set back while a driver decides about a stage of another driver."""

from __future__ import annotations

from functools import partial

import pytest

from dasktune._driver.lease_messages import CommitsFound, LeaseAnswered
from dasktune.algos import Grid
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.plan import SearchPlan
from dasktune.sequences import Constant
from dasktune.space import Space
from dasktune.storage.leases import HeldLeases, Lease, Leases
from tests.torture.driver import Driver
from tests.torture.parts import PARTS
from tests.torture.study import Study, World
from tests.torture.ways import ROOT
from tests.torture.workers import Worker


def nowhere(state: int) -> bool:
    """Return False: the trainer runs without failures."""
    return False


@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_stage_of_a_driver_that_is_gone_is_not_waited_for(seconds: float) -> None:
    world = World(PARTS)
    make = partial(Grid, Space(lr=[0.5]), max_steps=4)
    study = Study(world, "study", make, DispatchOptions(), snapshot_every=1000)
    study.workers["w0"] = Worker(*("w0", world.store, nowhere, nowhere, 1))
    driver = Driver(study)
    key = SearchPlan(ROOT).register(0, {"lr": Constant(0.5)}, 4).key_at(1)
    path = {"lr": Constant(0.5)}
    lease = Lease(holder="gone", key=key, first=key, sequences=path, start=0, stop=4, step=0)
    expires, sees = world.epoch + 1.0, (driver._run,)
    gone = HeldLeases(holder="gone", study="other", expires=expires, leases=(lease,), sees=sees)
    Leases(world.store.files).hold(gone)
    driver.begin()
    driver.carry_out()
    (name,) = driver.engine.view.attempts
    driver.turns.look()
    while not driver.lease_messages:
        driver.turns.give_way()
    assert driver.lease_messages[0] == LeaseAnswered(attempt=name, other=lease)
    world.epoch += 2.0
    driver.hear_of_leases()
    world.epoch -= seconds
    driver.lease_messages.append(CommitsFound(attempt=name, commits={}))
    driver.hear_of_leases()
    assert name not in driver.engine.view.attempts, "its steps are trained here"
