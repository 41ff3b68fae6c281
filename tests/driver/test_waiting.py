"""The reasons for which a run waits: each names the missing thing."""

from __future__ import annotations

from dasktune._driver.waiting import MOST_TRIALS, Delays, Surroundings, trials_of, waits_of
from dasktune._engine.timeouts import LATE_SECONDS, SLOW_STORE_SECONDS
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.devices import with_devices
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Failed,
    Granted,
    Progress,
    RunStage,
    Saved,
    Started,
    Taken,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.keys import root_key
from dasktune.graph.policies.broken_workers import IN_A_ROW
from dasktune.graph.view import RunView
from dasktune.needs import Needs, Offer
from dasktune.sequences import Constant, Piecewise


def dispatcher(trials: int = 2, needs: dict[str, float] | None = None) -> Dispatcher:
    """Return one that is asked for trials of 9 steps, the first 4 of which they share."""
    made = Dispatcher(root_key("f", 0), DispatchOptions(needs=Needs.of(needs)))
    for number in range(trials):
        sequence = Piecewise([0.1, 0.2 + number], [4])
        made.register(number, {"lr": sequence}, 9)
    for number in range(trials):
        made.extend(number, 9, 0.0, 0.0)
    return made


def texts(machine: Dispatcher, **seen: object) -> list[tuple[str, str]]:
    sight = Surroundings(**{"now": 100.0, **seen})  # type: ignore[arg-type]
    return [(wait.kind, wait.text) for wait in waits_of(RunView(machine), sight)]


def test_a_run_that_trains_all_it_can_waits_for_nothing() -> None:
    machine = dispatcher(1)
    machine.handle(WorkerJoined(worker="w"), 0.0)
    assert texts(machine, present={"w": Offer()}) == []


def test_waits_of_run_without_workers_has_its_start() -> None:
    (wait,) = waits_of(RunView(dispatcher()), Surroundings(now=100.0, deserted=60.0))
    assert (wait.kind, wait.text, wait.since) == ("workers", "there is no worker", 60.0)


def test_waits_of_tells_how_many_workers_other_studies_have() -> None:
    machine = dispatcher(2)
    for worker in ("v", "w"):
        machine.handle(WorkerJoined(worker=worker), 0.0)
    machine.handle(Granted(workers=frozenset()), 0.0)
    assert texts(machine) == [("share", "other studies have 2 of 2 workers: each has its share")]


def test_workers_that_lack_what_a_stage_needs_are_named() -> None:
    machine = dispatcher(2, {"GPU": 1})
    present = {f"w{number}": Offer.of({}, "8 cores", ["x86_64"]) for number in range(5)}
    ((kind, text),) = texts(machine, present=present, needs=Needs.of({"GPU": 1}))
    assert kind == "resources"
    assert text == ("3 stages to run: no worker has GPU=1; workers: 8 cores (tags x86_64)")


def test_unmet_needs_before_any_stage_name_no_stages() -> None:
    needs = Needs.of({"tags": ["a100"]})
    met = Offer.of({}, "8 cores", ["x86_64"])
    ((kind, text),) = texts(dispatcher(0), present={"w": met}, needs=needs)
    assert kind == "resources"
    assert text.startswith("no worker has ")


def test_worker_that_was_not_greeted_may_have_any_tag() -> None:
    needs = Needs.of({"tags": ["a100"]})
    waits = texts(dispatcher(0), present={"w": Offer()}, needs=needs)
    assert waits == [("workers", "none of 1 worker can be used yet")]
    amounts = Needs.of({"GPU": 1})  # the scheduler knows these without a greeting
    ((kind, _),) = texts(dispatcher(0), present={"w": Offer()}, needs=amounts)
    assert kind == "resources"


def test_worker_that_fits_but_is_not_used_yet_lacks_nothing() -> None:
    needs = Needs.of({"GPU": 1})
    present = {"w": Offer.of({"GPU": 1}), "v": Offer()}
    ((kind, text),) = texts(dispatcher(2, {"GPU": 1}), present=present, needs=needs)
    assert (kind, text) == ("workers", "none of 2 workers can be used yet")


def test_a_pool_says_itself_what_it_waits_for() -> None:
    said = "jobs of SLURM: 123 PENDING (Priority)"
    assert texts(dispatcher(), pool=said) == [("pool", said)]


def test_what_other_drivers_train_is_counted() -> None:
    found = texts(dispatcher(1), pool="x", others={"another driver (h, process 7)": 4})
    assert found[-1] == ("driver", "another driver (h, process 7) trains 4 stages")


def test_a_store_that_does_not_answer_is_spoken_of_after_a_while() -> None:
    machine = dispatcher(1)
    machine.handle(WorkerJoined(worker="w"), 0.0)
    assert texts(machine, unanswered=95.0, unsaved={"0-a": 91.0}) == []
    since = 100.0 - SLOW_STORE_SECONDS
    found = waits_of(
        RunView(machine),
        Surroundings(now=100.0, unanswered=since, unsaved={"0-a": since, "1-a": 60.0}),
    )
    assert [(wait.text, wait.since) for wait in found] == [
        ("the store has not answered", since),
        ("the store has not got the states of 2 stages that ended", 60.0),
    ]


def test_a_worker_that_does_not_begin_is_named() -> None:
    machine = dispatcher(1)
    (order,) = machine.handle(WorkerJoined(worker="w"), 0.0)
    assert isinstance(order, RunStage)
    assert texts(machine, unbegun={order.attempt: 100.0 - LATE_SECONDS / 2, "gone": 0.0}) == []
    assert texts(machine, unbegun={order.attempt: 100.0 - LATE_SECONDS}) == [
        ("worker", "worker w has not begun the stage that it was sent")
    ]


def test_delays_begin_when_they_are_first_seen() -> None:
    machine = dispatcher(2)
    view = RunView(machine)
    said = machine.handle(WorkerJoined(worker="w"), 0.0)
    order, behind = [each for each in said if isinstance(each, RunStage)]
    first = order.attempt
    assert behind.after == first
    seen = Delays().at(view, 10.0)
    assert (seen.unbegun, seen.unsaved) == ({first: 10.0}, {}), "the one behind it cannot begin"
    assert seen.at(view, 20.0) == seen
    machine.handle(Started(attempt=first), 20.0)
    assert first not in seen.at(view, 30.0).unbegun
    stop = order.stop
    machine.handle(TrainingEnded(attempt=first, step=stop, status="trained", seconds=1.0), 30.0)
    ended = seen.at(view, 40.0)
    assert ended.unsaved == {first: 40.0}
    assert ended.at(view, 50.0).unsaved == {first: 40.0}
    machine.handle(Saved(attempt=first, step=stop, reports=((stop, {"loss": 1.0}),)), 50.0)
    assert first not in ended.at(view, 60.0).unsaved


def test_workers_without_work_are_explained() -> None:
    machine = dispatcher(2)
    for worker in ("v", "w"):
        machine.handle(WorkerJoined(worker=worker), 0.0)
    ((kind, text),) = texts(machine)
    assert kind == "stages"
    assert text.startswith("1 of 2 workers has nothing to do")


def test_stage_that_waits_for_several_workers_says_so() -> None:
    machine = dispatcher(1)
    for worker in ("v", "w"):
        machine.handle(WorkerJoined(worker=worker), 0.0)
    machine.register(7, with_devices({"lr": Constant(0.5)}, [(0, 2)]), 9)
    machine.extend(7, 9, 0.0, 0.0)
    said = ("stages", "1 stage of trial 7 to run: it waits until 2 workers of one class are idle")
    assert said in texts(machine)


def test_steps_of_more_devices_than_workers_say_what_is_missing() -> None:
    machine = dispatcher(0)
    machine.handle(WorkerJoined(worker="v"), 0.0)
    # Its state was evicted, and its needs ask for fewer devices from step 4 on.
    machine.register(0, with_devices({"lr": Constant(0.1)}, [(0, 2), (4, 1)]), 8)
    machine.extend(0, 8, 0.0, 0.0)
    text = (
        "1 stage of trial 0 to run: 2 workers of one class must train it together, since its state "
        "key names the number of devices; there is 1"
    )
    assert texts(machine) == [("resources", text)]
    machine.handle(WorkerJoined(worker="w"), 0.0)
    assert texts(machine) == []


def test_few_trials_of_many_are_named() -> None:
    machine = dispatcher(20)
    first = machine.handle(WorkerJoined(worker="w"), 0.0)[0]
    assert isinstance(first, RunStage)
    named = trials_of(first.node)
    assert len(named) == MOST_TRIALS
    assert set(named) <= set(range(20))
    leaf = machine.plan.nodes_of(7)[-1]
    assert trials_of(leaf) == [7]


def test_shared_steps_count_once_in_what_is_left() -> None:
    machine = dispatcher(2)
    assert RunView(machine).steps_left == 4 + 5 + 5
    orders = machine.handle(WorkerJoined(worker="w"), 0.0)
    trunk = orders[0]
    assert isinstance(trunk, RunStage)
    machine.handle(Started(attempt=trunk.attempt), 0.0)
    machine.handle(Progress(attempt=trunk.attempt, step=3), 1.0)
    assert RunView(machine).steps_left == 1 + 5 + 5
    machine.handle(Saved(attempt=trunk.attempt, step=4), 2.0)
    machine.handle(TrainingEnded(attempt=trunk.attempt, step=4, status="trained"), 2.0)
    assert RunView(machine).steps_left == 5 + 5


def test_what_another_driver_trains_is_left_until_it_is_found() -> None:
    machine = Dispatcher(root_key("f", 0))
    machine.register(0, {"lr": Constant(0.1)}, 6)
    machine.extend(0, 6, 0.0, 0.0)
    (order,) = machine.handle(WorkerJoined(worker="w"), 0.0)
    assert isinstance(order, RunStage)
    machine.handle(Taken(attempt=order.attempt), 0.0)
    machine.handle(Progress(attempt=order.attempt, step=3), 0.0)
    assert RunView(machine).steps_left == 6


def test_a_scheduler_that_is_gone_is_all_that_is_waited_for() -> None:
    waits = waits_of(RunView(dispatcher()), Surroundings(now=9.0, disconnected=4.0))
    assert [(wait.kind, wait.since) for wait in waits] == [("scheduler", 4.0)]


def test_workers_put_aside_are_named_with_their_last_error() -> None:
    machine = Dispatcher(root_key("f", 0))
    for trial in range(4):
        machine.register(trial, {"lr": Constant(float(trial))}, 9)
        machine.extend(trial, 9, 0.0, 0.0)
    for worker in ("w0", "w1"):
        machine.handle(WorkerJoined(worker=worker), 0.0)
    for _ in range(IN_A_ROW):
        attempt = machine.slots["w0"].queue[0]
        machine.handle(Failed(attempt=attempt.id, step=attempt.start, message="no\nmount"), 0.0)
    text = (
        "worker w0 is put aside: 3 stages in a row raised there, last no; it is tried again later"
    )
    assert ("aside", text) in texts(machine)
