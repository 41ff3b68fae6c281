"""Attempts whose messages come late, twice or never: the driver still learns all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

import dasktune as dt
from dasktune._driver.attempts import Reached
from dasktune._engine.timeouts import DURABLE_SECONDS
from dasktune._worker.messages import (
    StageEnded,
    StageFailed,
    StageProgress,
    StateOmitted,
    StateSaved,
)
from dasktune.algos import Grid
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.save_policy import SavePolicy
from dasktune.space import Space
from tests.torture.driver import Driver
from tests.torture.parts import PARTS
from tests.torture.study import Study, World
from tests.torture.ways import ROOT, State
from tests.torture.workers import Worker

STEPS = 4


def nowhere(state: State) -> bool:
    """Return False: the trainer runs without failures."""
    return False


def trained(
    steps: int = STEPS,
    save_every: int | None = 2,
    *,
    evicts: bool = False,
    omits: bool = False,
) -> tuple[Driver, Worker]:
    """Return a driver that has heard nothing yet of the only stage, and its worker."""
    options = DispatchOptions(saves=SavePolicy(every=save_every))
    make = partial(Grid, Space(lr=[0.5]), max_steps=STEPS)
    study = Study(World(PARTS, evicts=evicts), "study", make, options, snapshot_every=1000)
    worker = study.workers["w0"] = Worker(
        *("w0", study.world.store, nowhere, nowhere, 1), is_cheap=lambda key: omits
    )
    driver = Driver(study)
    driver.begin()
    driver.carry_out()
    worker.take(0, lambda order: study.world.ways.of(order.node))
    for _ in range(1 + steps):
        worker.work()
    while worker.writes:
        worker.write()
    return driver, worker


def known(driver: Driver) -> tuple[set[int], set[int]]:
    """Return the steps of which states, and metrics, are known."""
    nodes = list(driver.engine.view.plan)
    states = {step for node in nodes for step in node.checkpoints}
    return states, {step for node in nodes for step in node.metrics}


def test_all_states_are_looked_up_whose_messages_do_not_come() -> None:
    driver, worker = trained()
    for message in worker.outbox:
        if not isinstance(message, StateSaved):
            driver.hear(message)
    assert known(driver) == (set(), set())
    driver.study.now += DURABLE_SECONDS
    driver.tick()
    assert known(driver) == ({2, 4}, {1, 2, 3, 4})
    assert driver.is_done


def damage_commits(driver: Driver) -> None:
    files = driver.world.store.files
    for entry in list(files.entries("checkpoints")):
        if entry.path.endswith("/commit"):
            files.replace(entry.path, b"{}")


def write_newer_commits(driver: Driver) -> None:
    files = driver.world.store.files
    for entry in list(files.entries("checkpoints")):
        if entry.path.endswith("/commit"):
            (content,) = files.read("", [entry.path])
            assert content is not None
            document = json.loads(content.tobytes())
            files.replace(entry.path, json.dumps({**document, "version": 99}).encode())


def lose_store(driver: Driver) -> None:
    driver.own_files.failures = 1_000_000


@pytest.mark.parametrize("trouble", [damage_commits, write_newer_commits, lose_store])
def test_unreadable_metrics_of_a_state_do_not_end_the_run(
    trouble: Callable[[Driver], None],
) -> None:
    driver, worker = trained()
    trouble(driver)
    for message in worker.outbox:
        if not isinstance(message, StageProgress):  # these had the metrics
            driver.hear(message)
    worker.outbox.clear()
    worker.receipts.clear()
    assert known(driver) == ({2, 4}, set())
    driver.carry_out()
    worker.take(0, lambda order: driver.world.ways.of(order.node))
    worker.work()
    for message in worker.outbox:
        driver.hear(message)
    assert known(driver) == ({2, 4}, {4}), "the last state is evaluated again"
    assert driver.is_done


def test_stage_that_raises_tells_how_far_it_has_come() -> None:
    driver, worker = trained(steps=2)
    (order,) = [known.order for known in driver.attempts._open.values()]
    worker.outbox.clear()
    failed = StageFailed(attempt=order.attempt, step=3, at=2.0, message="boom", traceback="")
    following = driver.attempts.receive(failed, driver.study.now)
    # Other drivers must know: whoever tries it again trains these steps again.
    assert Reached(attempt=order.attempt, step=3) in following


def test_state_that_a_worker_misses_is_listed_no_more() -> None:
    driver, worker = trained(steps=2)
    for message in worker.outbox:
        driver.hear(message)
    assert rows(driver)[0] == {2}
    later = Driver(driver.study)
    later.begin()
    later.carry_out()
    (order,) = [known.order for known in later.attempts._open.values()]
    assert order.start == 2
    missing = StageEnded(attempt=order.attempt, step=2, status="missing", at=1.0)
    later.attempts.receive(missing, later.study.now)
    assert rows(later)[0] == set()


def rows(driver: Driver) -> tuple[set[int], set[int]]:
    """Return the steps of which states, and metrics, are recorded."""
    driver.flush_all()
    database = driver.world.database
    states = {row.step for row in database.checkpoints(ROOT)}
    return states, {step for _, step, _ in database.known_metrics(ROOT)}


def hear_without_metrics(driver: Driver, worker: Worker) -> None:
    for message in worker.outbox:
        if not isinstance(message, StageProgress):
            driver.hear(message)


def test_state_without_its_metrics_is_not_recorded() -> None:
    driver, worker = trained()
    lose_store(driver)
    hear_without_metrics(driver, worker)
    assert rows(driver) == (set(), set())
    assert known(Driver(driver.study)) == ({2, 4}, {1, 2, 3, 4}), "the next driver reads them"


def hear_some_metrics(driver: Driver, worker: Worker) -> None:
    for message in worker.outbox:
        if isinstance(message, StageProgress):
            heard = tuple(report for report in message.reports if report[0] in (1, 4))
            message = replace(message, reports=heard)
        driver.hear(message)


def lose_worker(driver: Driver, worker: Worker) -> None:
    """Lose the worker, and the metrics, while the first look-up is under way."""
    for message in worker.outbox:
        if not isinstance(message, StageProgress):
            driver.attempts.receive(message, driver.study.now)
    driver.lose(worker.name)
    driver.join([worker.name])


def go_on(driver: Driver, worker: Worker) -> None:
    """Go on to the end of the run: the last state is evaluated again, if that is needed."""
    worker.outbox.clear()
    worker.receipts.clear()
    driver.carry_out()
    while worker.inbox:
        worker.take(0, lambda order: driver.world.ways.of(order.node))
    while worker.jobs:
        worker.work()
    for message in worker.outbox:
        driver.hear(message)
    assert driver.is_done


@pytest.mark.parametrize("hear", [hear_without_metrics, hear_some_metrics, lose_worker])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", ["study", "other"])
def test_metrics_between_two_reports_are_found_next(
    hear: Callable[[Driver, Worker], None], ends: bool, name: str
) -> None:
    """The store refuses all look-ups while the first driver lives."""
    driver, worker = trained(save_every=None)
    lose_store(driver)
    hear(driver, worker)
    if ends:
        go_on(driver, worker)
    states, metrics = rows(driver)
    assert states == set()
    assert metrics < {1, 2, 3, 4}
    study = driver.study
    if name == "other":
        study = Study(study.world, name, study.make, study.options, snapshot_every=1000)
        study.workers.update(driver.study.workers)
    following = Driver(study)
    following.begin()
    following.tick()
    assert known(following) == ({4}, {1, 2, 3, 4})
    assert rows(following) == ({4}, {1, 2, 3, 4})


def test_state_without_its_metrics_is_looked_up_again() -> None:
    driver, worker = trained()
    lose_store(driver)
    hear_without_metrics(driver, worker)
    driver.tick()
    assert rows(driver) == (set(), set())
    driver.own_files.failures = 0
    driver.study.now += DURABLE_SECONDS
    driver.tick()
    assert rows(driver) == ({2, 4}, {1, 2, 3, 4})


@pytest.mark.parametrize(("is_read", "evicted"), [(False, 0), (True, 1)])
def test_state_without_its_metrics_is_not_evicted(is_read: bool, evicted: int) -> None:
    driver, worker = trained(evicts=True)
    lose_store(driver)
    hear_without_metrics(driver, worker)
    if is_read:
        driver.own_files.failures = 0
        driver.tick()
    driver.tighten(0.0)
    assert driver.evictor is not None
    assert driver.evictor.evicted == evicted


def test_lost_worker_leaves_no_state_recorded_without_metrics() -> None:
    driver, worker = trained()
    known_attempt = driver.attempts
    for message in worker.outbox:
        if not isinstance(message, StageProgress):
            known_attempt.receive(message, driver.study.now)  # the look-up is under way
    driver.own_files.failures = 1_000_000
    driver.lose("w0")
    assert rows(driver) == (set(), set())


def test_all_states_of_a_lost_worker_are_looked_up() -> None:
    driver, _ = trained()
    driver.lose("w0")
    assert known(driver) == ({2, 4}, {1, 2, 3, 4})


def test_saves_after_scheduler_loss_are_looked_up_further_ahead() -> None:
    for is_blameless, found in ((False, set()), (True, {3})):
        driver, worker = trained(steps=2, save_every=None)
        worker.save()
        worker.work()
        worker.write()
        driver.lose("w0", is_blameless=is_blameless)
        assert known(driver)[0] == found, "it was heard of at no step"


@pytest.mark.parametrize("lenders", [(), ("w1", "w2")])
def test_attempt_end_received_twice_is_counted_once(lenders: tuple[str, ...]) -> None:
    driver, worker = trained()
    for known_attempt in driver.attempts._open.values():
        known_attempt.order = replace(known_attempt.order, lenders=lenders)
    for _ in range(2):
        driver.hear_receipt(worker.receipts[0])
    for message in worker.outbox:
        driver.hear(message)
    assert driver.attempts.worker_seconds == STEPS * (1 + len(lenders))
    assert driver.engine.view.steps_executed == STEPS
    assert driver.is_done


def test_metrics_of_an_omitted_state_are_recorded() -> None:
    driver, worker = trained(save_every=None, omits=True)
    assert [type(message) for message in worker.outbox].count(StateOmitted) == 1
    for message in worker.outbox:
        driver.hear(message)
    assert known(driver) == (set(), {1, 2, 3, 4})
    assert driver.is_done
    driver.flush_all()
    again = Driver(driver.study)
    assert known(again) == (set(), {1, 2, 3, 4})


@pytest.mark.parametrize("lost", [StateOmitted, StageProgress])
def test_omitted_state_whose_message_is_lost_is_trained_again(lost: type) -> None:
    driver, worker = trained(save_every=None, omits=True)
    for message in worker.outbox:
        if not isinstance(message, lost):
            driver.hear(message)
    assert known(driver) == (set(), set())
    (attempt,) = driver.engine.view.attempts
    driver.study.now += DURABLE_SECONDS
    driver.tick()
    (other,) = driver.engine.view.attempts
    assert other != attempt


def test_step_that_ends_its_process_unheard_counts_as_tried() -> None:
    make = partial(Grid, Space(lr=[0.5]), max_steps=STEPS)
    study = Study(World(PARTS), "study", make, DispatchOptions(), snapshot_every=1000)
    study.workers["w0"] = Worker("w0", study.world.store, nowhere, nowhere, 1)
    driver = Driver(study)
    driver.begin()
    lives = 0
    while not driver.is_done:
        assert lives < 20, "the stage is tried for ever"
        driver.carry_out()
        before = f"w{lives}"
        del study.workers[before]
        driver.abandon(before)  # it has said nothing
        lives += 1
        study.workers[f"w{lives}"] = Worker(f"w{lives}", study.world.store, nowhere, nowhere, 1)
        driver.join([f"w{lives}"])
        driver.lose(before)
    (trial,) = driver.engine.trials.values()
    assert trial.state is dt.TrialState.FAIL
    assert lives > 1
