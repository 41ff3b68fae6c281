"""Running stages that leave the worker of a slow class, and those that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import dasktune as dt
from dasktune.graph.attempts import LOAD_SECONDS, Attempt, DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Instruction,
    Progress,
    RunStage,
    Saved,
    Started,
    StopStage,
    TrainingEnded,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.graph.frontier import Frontier
from dasktune.graph.keys import root_key
from dasktune.graph.loads import Loads
from dasktune.graph.market import Market, Terms
from dasktune.graph.moves import Moves, RestOfStage
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.speeds import Speeds
from dasktune.needs import Needs, NumericClass
from dasktune.sequences import Constant
from dasktune.types import Step
from tests.effort import examples

STEPS = 10
OLD, NEW = NumericClass(name="old bits", in_keys=True), NumericClass(name="new bits", in_keys=True)


class Lab:
    """A dispatcher and its stages by worker; tests say what happens and when."""

    def __init__(self, **options: float) -> None:
        given = DispatchOptions(saves=SavePolicy(at_changes=False), **options)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(root_key("lab", 0), given)
        self.stages: dict[str, RunStage] = {}
        self.stopped: list[str] = []
        self.calls: list[Callable[[Lab], None]] = []
        self.now = 0.0
        self.count = 0

    def trial(self, model: str, *, alone: bool = False, needs: Needs | None = None) -> None:
        self.calls.append(partial(Lab.trial, model=model, alone=alone, needs=needs))
        sequences = {"model": Constant(model), "lr": Constant(float(self.count))}
        self.dispatcher.register(self.count, sequences, STEPS, is_alone=alone, needs=needs)
        self.carry_out(self.dispatcher.extend(self.count, STEPS, 0.0, self.now))
        self.count += 1

    def join(self, *workers: str, numerics: Mapping[str, NumericClass] | None = None) -> None:
        """Add workers that join together; the first word of a name is its class."""
        joined = (
            WorkerJoined(
                worker=worker,
                kind=worker.split()[0],
                numerics=(numerics or {}).get(worker.split()[0]),
                tags=frozenset({worker.split()[0]}),
            )
            for worker in workers
        )
        self.tell(WorkersJoined(workers=tuple(joined)))

    def tell(self, event: Event, at: float | None = None) -> None:
        self.now = self.now if at is None else at
        self.calls.append(partial(Lab.tell, event=event, at=self.now))
        self.carry_out(self.dispatcher.handle(event, self.now))

    def carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, RunStage):
                self.stages[each.worker] = each
                self.carry_out(self.dispatcher.handle(Started(attempt=each.attempt), self.now))
            elif isinstance(each, StopStage):
                self.stopped.append(each.worker)

    def measure(self, trial: int, kind: str, seconds: float) -> None:
        """Have the model of a trial measured on a class."""
        self.calls.append(partial(Lab.measure, trial=trial, kind=kind, seconds=seconds))
        node = self.dispatcher.plan.paths[trial].leaf
        self.dispatcher.speeds.observe(node, steps=1, seconds=seconds, kind=kind)

    def model(self, worker: str) -> object:
        stage = self.stages[worker]
        return stage.node.sequences["model"](stage.start)

    def again(self) -> Lab:
        """Return a lab after the same events and requests, at the same times."""
        other = Lab()
        for call in self.calls:
            call(other)
        return other

    def reach(self, worker: str, step: Step, *, at: float) -> None:
        """Report that a worker is at a step of its stage; all its steps took equally long."""
        stage, self.now = self.stages[worker], at
        launched = self.dispatcher.attempts[stage.attempt].launched
        self.tell(Progress(attempt=stage.attempt, step=step, seconds=at - launched))

    def end(self, worker: str, step: Step | None = None, *, at: float) -> None:
        """End the stage of a worker at a step, saved."""
        stage, self.now = self.stages.pop(worker), at
        step, status = (stage.stop, "trained") if step is None else (step, "stopped")
        reports = ((step, {"loss": 1.0}),) if status == "trained" else ()
        launched = self.dispatcher.attempts[stage.attempt].launched
        self.tell(Saved(attempt=stage.attempt, step=step, reports=reports))
        ended = TrainingEnded(
            attempt=stage.attempt,
            step=step,
            status=status,  # type: ignore[arg-type]
            seconds=at - launched,
        )
        self.tell(ended)


def test_stage_goes_on_where_it_ends_earlier() -> None:
    lab = Lab()
    lab.join("slow 0", "fast 0")
    lab.trial("net")
    lab.trial("net")
    lab.reach("fast 0", 1, at=1.0)
    lab.end("fast 0", at=10.0)
    assert lab.stopped == [], "nothing is known of the slow one"
    lab.reach("slow 0", 1, at=50.0)
    assert lab.stopped == ["slow 0"]
    lab.end("slow 0", 2, at=100.0)
    (stage,) = lab.stages.values()
    assert (stage.worker, stage.start, stage.stop) == ("fast 0", 2, STEPS)
    lab.end("fast 0", at=108.0)
    assert lab.dispatcher.open.steps_repeated == 0
    assert lab.dispatcher.open.steps_executed == 2 * STEPS
    assert not lab.dispatcher.wanted


def test_stages_are_reviewed_when_a_worker_becomes_idle() -> None:
    lab = Lab()
    lab.join("slow 0", "fast 0")
    lab.trial("net")
    lab.trial("net")
    lab.reach("slow 0", 1, at=5.0)
    lab.reach("fast 0", 4, at=6.0)
    assert lab.stopped == [], "when the slow one said how far it was, the other was not known"
    lab.end("fast 0", at=15.0)
    assert lab.stopped == ["slow 0"], "35 s are left, and 5 + 9 s elsewhere"


def test_stage_is_reviewed_once_a_measured_speed_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed: list[Step] = []
    rest_of = Moves.rest_of

    def note(moves: Moves, attempt: Attempt, now: float) -> RestOfStage | None:
        reviewed.append(attempt.position)
        return rest_of(moves, attempt, now)

    monkeypatch.setattr(Moves, "rest_of", note)
    lab = Lab()
    lab.join("slow 0", "fast 0")
    for _ in range(4):
        lab.trial("net")
    lab.reach("slow 0", 1, at=1.0)
    lab.reach("slow 0", 2, at=2.1)
    assert reviewed == [1], "a step of 1.1 s is a twentieth more in the mean"
    lab.reach("slow 0", 4, at=8.0)
    assert reviewed == [1, 4], "the mean is 2 s now"


@pytest.mark.parametrize("idle", [1, 2])
def test_one_stage_leaves_for_each_idle_worker(idle: int) -> None:
    lab = Lab()
    lab.join("slow 0", "slow 1", "slow 2")
    for _ in range(3):
        lab.trial("net")
    for number in range(3):
        lab.reach(f"slow {number}", 1, at=50.0 + number)
    lab.measure(0, "fast", 3.0)
    lab.join(*(f"fast {number}" for number in range(idle)))
    assert len(lab.stopped) == idle, "another one would wait for 24 s, and 27 s are left"


@pytest.mark.parametrize(
    ("options", "trial"),
    [
        ({"numerics": {"slow": OLD, "fast": NEW}}, {}),
        ({}, {"alone": True}),
        ({}, {"needs": Needs.of({"tags": ["slow"]})}),
    ],
    ids=["bound to its numeric class", "trained alone", "needs the class"],
)
def test_stage_that_may_not_go_elsewhere_stays(
    options: dict[str, Any], trial: dict[str, Any]
) -> None:
    lab = Lab()
    lab.join("slow 0", **options)
    lab.trial("net", **trial)
    lab.measure(0, "fast", 0.1)
    lab.join("fast 0", **options)
    lab.reach("slow 0", 1, at=50.0)
    assert lab.stopped == []
    assert lab.dispatcher.idle_workers == 1


def test_stage_of_a_class_that_is_as_fast_stays() -> None:
    lab = Lab()
    lab.join("slow 0")
    lab.trial("net")
    lab.measure(0, "fast", 0.95)
    lab.join("fast 0")
    lab.reach("slow 0", 1, at=1.0)
    assert lab.stopped == []


@pytest.mark.parametrize(("assumed", "stopped"), [(0.0, ["slow 0"]), (LOAD_SECONDS, [])])
def test_move_pays_only_with_the_load_of_its_state(assumed: float, stopped: list[str]) -> None:
    lab = Lab(load_seconds=assumed)
    lab.join("slow 0")
    lab.trial("net")
    lab.measure(0, "fast", 0.05)
    lab.join("fast 0")
    lab.reach("slow 0", 1, at=0.1)
    assert lab.stopped == stopped, "0.9 s are left here, 0.1 + 0.4 s there"


def crosswise(waiting: int) -> Lab:
    """Give a lab in which a net trains on the slow class, and trees wait that gain less."""
    lab = Lab()
    lab.join("slow 0")
    lab.trial("net")
    lab.trial("tree")
    for number, times in enumerate(({"slow": 10.0, "fast": 1.0}, {"slow": 2.0, "fast": 1.0})):
        for kind, seconds in times.items():
            lab.measure(number, kind, seconds)
    lab.join("fast 0")
    for _ in range(waiting):
        lab.trial("tree")
    return lab


def test_stage_leaves_a_worker_that_is_worth_more_to_others() -> None:
    lab = crosswise(40)
    lab.reach("slow 0", 1, at=10.0)
    assert lab.stopped == ["slow 0"], "80 s, and 40 trees for 20 s each wait"
    lab.end("slow 0", 2, at=20.0)
    assert lab.model("slow 0") == "tree"
    lab.end("fast 0", at=21.0)
    assert lab.model("fast 0") == "net"
    assert lab.stages["fast 0"].start == 2


def test_stage_leaves_each_class_once_for_its_price() -> None:
    lab = crosswise(40)
    net = lab.dispatcher.plan.paths[0].leaf
    lab.dispatcher.frontier.work(net).left = frozenset({"slow"})
    lab.reach("slow 0", 1, at=10.0)
    assert lab.stopped == []


def test_moves_follow_from_the_events_alone() -> None:
    lab = crosswise(40)
    lab.reach("slow 0", 1, at=10.0)
    lab.end("slow 0", 2, at=20.0)
    again = lab.again()
    assert again.stopped == lab.stopped == ["slow 0"]
    for worker, stage in lab.stages.items():
        assert str(again.stages[worker]) == str(stage)


def market(**slots: int) -> Market:
    speeds = Speeds()
    speeds.set_slots(slots)
    frontier = Frontier(lambda node: 1.0)
    return Market(frontier, speeds, lambda needs, count: None, loads=Loads(0.0))


@pytest.mark.parametrize(
    ("kind", "priority", "other", "is_outbid"),
    [
        ("slow", 0.0, (2.0, 1.0), True),
        ("slow", 0.0, (10.0, 1.0), False),
        ("slow", 1.0, (2.0, 1.0), False),
        ("slow", -1.0, (2.0, 1.0), True),
        ("slow", -1.0, (10.0, 1.0), False),
        ("fast", 0.0, (1.0, 1.0), False),
    ],
    ids=["gains less", "gains as much", "is less urgent", "is later", "is as late", "fits best"],
)
def test_rest_of_a_stage_is_outbid_by_what_gains_less_elsewhere(
    kind: str, priority: float, other: tuple[float, float], is_outbid: bool
) -> None:
    rest = Terms({"fast": 1.0, "slow": 10.0}, (0.0, 0.0))
    slow, fast = other
    waiting = [(0.0, Terms({"fast": fast, "slow": slow}, (0.0, 0.0)))]
    classes = market(fast=1, slow=1)
    assert classes.is_outbid((priority, rest), kind, waiting) is is_outbid
    assert not classes.is_outbid((priority, rest), kind, [])


def test_two_models_with_opposite_advantages_find_their_classes() -> None:
    seconds = {("x", "a"): 1.0, ("x", "b"): 10.0, ("y", "a"): 10.0, ("y", "b"): 1.0}
    space = dt.Space(model=dt.Choice(["x", "y"]), lr=dt.Float(0.0, 1.0))
    simulation = dt.simulate(
        dt.algos.Random(space, trials=60, max_steps=STEPS, seed=1),
        lambda values, step: values["lr"] / step,
        workers={"a": 2, "b": 2},
        seconds_per_step=lambda values, kind: seconds[values["model"], kind],
    )
    assert simulation.steps_executed == 60 * STEPS
    assert simulation.steps_repeated == 0
    assert simulation.seconds < 1.5 * 60 * STEPS / 4


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2**16),
    st.sampled_from(["random", "asha"]),
)
def test_moved_stages_train_each_step_once(
    times: list[tuple[float, float]], first: int, second: int, seed: int, tuner: str
) -> None:
    space = dt.Space(model=dt.Choice(list(range(len(times)))), lr=dt.Float(0.0, 1.0))
    search: dt.algos.Tuner = dt.algos.Random(space, trials=20, max_steps=STEPS, seed=seed)
    if tuner == "asha":
        search = dt.algos.ASHA(space, trials=45, max_steps=STEPS, min_steps=1, eta=3, seed=seed)
    simulation = dt.simulate(
        search,
        lambda values, step: values["lr"] / step,
        workers={"a": first, "b": second},
        seconds_per_step=lambda values, kind: times[values["model"]]["ab".index(kind)],
    )
    assert simulation.steps_repeated == 0
    reached = sum(node.reached - node.start for node in simulation.plan)
    assert simulation.steps_executed == reached
