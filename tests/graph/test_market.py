"""Placement over classes of workers: who is given a stage, and which stage waits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import dasktune as dt
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Limits
from dasktune.algos.pop.active import BEHIND
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Event,
    Granted,
    Instruction,
    RunStage,
    Saved,
    Tick,
    TrainingEnded,
    WorkerGone,
    WorkerJoined,
    WorkersJoined,
)
from dasktune.graph.frontier import start_of
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.policies.compute_classes import ComputeClasses
from dasktune.graph.save_policy import SavePolicy
from dasktune.graph.speeds import Speeds
from dasktune.needs import Needs
from dasktune.sequences import Constant, Piecewise, Sequence
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import Conditions, SimulatedRunner
from dasktune.traces.timing import EvenPace
from dasktune.types import Objective, Step
from tests.effort import examples

Times = Mapping[str, Mapping[str, float]]
"""Seconds of a step, by model and class."""

STEPS = 4
TIMES = {"tree": {"old": 2.0, "new": 1.0}, "net": {"old": 10.0, "new": 1.0}}
"""The new class is faster for both, but worth more to the net."""


def known(times: Times) -> Speeds:
    """Return speeds that have measured each model on each class."""
    speeds, plan = Speeds(), SearchPlan(root_key("known", 0))
    for number, (model, each) in enumerate(times.items()):
        plan.register(number, {"model": Constant(model)}, 1)
        for kind, seconds in each.items():
            speeds.observe(plan.paths[number].leaf, steps=1, seconds=seconds, kind=kind)
    return speeds


class Table:
    """A dispatcher with known speeds, and its stages by the worker that was given them."""

    def __init__(self, times: Times = TIMES, **options: float) -> None:
        given = DispatchOptions(saves=SavePolicy(at_changes=False), **options)  # type: ignore[arg-type]
        self.may_place = True
        self.dispatcher = Dispatcher(
            root_key("table", 0), given, speeds=known(times), may_place=lambda: self.may_place
        )
        self.stages: dict[str, RunStage] = {}
        self.now = 0.0
        self.count = 0

    def trial(
        self,
        model: str,
        rate: Sequence | None = None,
        steps: Step = STEPS,
        needs: Needs | None = None,
        priority: float = 0.0,
    ) -> None:
        sequences = {"model": Constant(model), "lr": rate or Constant(float(self.count))}
        self.dispatcher.register(self.count, sequences, steps, needs=needs)
        self.carry_out(self.dispatcher.extend(self.count, steps, priority, self.now))
        self.count += 1

    def join(self, **kinds: str) -> None:
        """Add workers that join together."""
        joined = (WorkerJoined(worker=worker, kind=kind) for worker, kind in kinds.items())
        self.tell(WorkersJoined(workers=tuple(joined)))

    def tell(self, event: Event) -> None:
        self.carry_out(self.dispatcher.handle(event, self.now))

    def carry_out(self, instructions: list[Instruction]) -> None:
        self.stages |= {each.worker: each for each in instructions if isinstance(each, RunStage)}

    def end(self, worker: str, *, at: float, load: float = 0.0) -> None:
        """End the stage of a worker at a time, saved; it had loaded its start for so long."""
        stage, self.now = self.stages.pop(worker), at
        reports = ((stage.stop, {"loss": 1.0}),)
        self.tell(Saved(attempt=stage.attempt, step=stage.stop, reports=reports))
        ended = TrainingEnded(
            attempt=stage.attempt, step=stage.stop, status="trained", load_seconds=load
        )
        self.tell(ended)

    @property
    def models(self) -> dict[str, object]:
        """The model that each worker trains."""
        return {
            worker: stage.node.sequences["model"](stage.start)
            for worker, stage in self.stages.items()
        }


def test_stage_goes_where_its_class_has_the_advantage() -> None:
    table = Table()
    table.join(a="old", b="new")
    table.dispatcher.drain()  # nothing starts until all trials are known
    for model in ("tree", "net") * 3:
        table.trial(model)
    table.dispatcher._draining = False
    table.tell(Tick())
    assert table.models == {"a": "tree", "b": "net"}


@pytest.mark.parametrize(
    ("first", "last", "model"),
    [(0.0, -30.0, "tree"), (40.0, 10.0, "net"), (0.0, 1.0 - BEHIND, "net")],
    ids=["an order", "importance", "behind all others"],
)
def test_class_goes_before_an_order_of_trials(first: float, last: float, model: str) -> None:
    table = Table()
    table.join(a="old", b="new")
    table.dispatcher.drain()
    for place in range(30):  # so many that no stage waits for the new worker
        table.trial("net", priority=first - place)
    table.trial("tree", priority=last)
    table.dispatcher._draining = False
    table.tell(Tick())
    assert table.models == {"a": model, "b": "net"}


def test_workers_that_join_together_are_compared() -> None:
    table = Table()
    table.trial("net")
    table.join(a="old", b="new")
    assert table.models == {"b": "net"}, "the old worker is named first"


def test_workers_that_join_together_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table, weighed = Table(), []
    monkeypatch.setattr(table.dispatcher.frontier, "reweigh", lambda: weighed.append(1))
    table.join(a="old", b="new", c="other", d="old")
    assert weighed == [1]


def test_last_stage_waits_for_the_faster_worker() -> None:
    table = Table()
    table.join(b="new")
    table.trial("net")
    table.join(a="old")
    table.trial("net")
    assert table.models == {"b": "net"}, "40 s on the old one, 4 + 4 s on the new one"
    table.end("b", at=4.0)
    assert table.models == {"b": "net"}


def test_last_stage_starts_where_it_ends_first() -> None:
    table = Table({"net": {"old": 1.5, "new": 1.0}})
    table.join(b="new")
    table.trial("net")
    table.join(a="old")
    table.trial("net")
    assert table.models == {"a": "net", "b": "net"}, "6 s on the old one, 4 + 4 s on the new one"


def test_stage_waits_no_longer_than_it_would_have_taken() -> None:
    table = Table()
    table.join(b="new")
    table.trial("net")
    table.join(a="old")
    table.trial("net")
    due = table.dispatcher.next_tick(0.0)
    assert due == STEPS * TIMES["net"]["old"]
    table.now = due / 2
    table.tell(Tick())
    assert table.models == {"b": "net"}, "the new worker is late, but may end at any moment"
    table.now = due
    table.tell(Tick())
    assert table.models == {"a": "net", "b": "net"}


def test_waiting_stage_starts_when_the_faster_class_is_gone() -> None:
    table = Table()
    table.join(b="new")
    table.trial("net")
    table.join(a="old")
    table.trial("net")
    table.dispatcher.placing.retire("b")
    table.tell(Tick())
    assert table.models == {"a": "net", "b": "net"}


@pytest.mark.parametrize(("load", "worker"), [(0.0, "b"), (3.0, "a")])
def test_next_stage_stays_where_loading_costs_more(load: float, worker: str) -> None:
    table = Table({"net": {"old": 1.5, "new": 1.0}}, load_seconds=load)
    table.join(a="old")
    table.trial("net", Constant(0.5))
    table.end("a", at=6.0)
    table.join(b="new")
    table.trial("net", Piecewise([0.5, 0.1], [STEPS]), 2 * STEPS)
    (stage,) = table.stages.values()
    assert (stage.worker, stage.start) == (worker, STEPS)


@pytest.mark.parametrize(("assumed", "load", "worker"), [(0.0, 3.0, "a"), (3.0, 0.1, "b")])
def test_measured_loads_decide_whether_the_next_stage_stays(
    assumed: float, load: float, worker: str
) -> None:
    table = Table({"net": {"old": 1.5, "new": 1.0}}, load_seconds=assumed)
    table.join(a="old")
    table.trial("net", Constant(0.5))
    table.end("a", at=6.0, load=load)
    table.join(b="new")
    table.trial("net", Piecewise([0.5, 0.1], [STEPS]), 2 * STEPS)
    (stage,) = table.stages.values()
    assert (stage.worker, stage.start) == (worker, STEPS)


def test_stage_that_needs_the_slow_class_does_not_wait() -> None:
    table = Table()
    table.join(b="new")
    table.trial("net")
    table.tell(WorkerJoined(worker="a", kind="old", tags=frozenset({"lab"})))
    table.trial("net", needs=Needs.of({"tags": ["lab"]}))
    assert table.models == {"a": "net", "b": "net"}


def test_stage_behind_others_with_needs_starts() -> None:
    table = Table()
    table.join(a="old", b="new")
    for _ in range(40):
        table.trial("net", steps=2 * STEPS, needs=Needs.of({"tags": ["lab"]}))
    table.trial("tree")
    assert table.models == {"b": "tree"}, "no worker has the tag"


def test_class_that_goes_while_no_stage_may_begin_is_forgotten() -> None:
    times = {"net": {"new": 1.0, "mid": 1.1, "old": 1.6}}
    table = Table(times, lookahead_seconds=1.0)
    for number, kind in enumerate(times["net"]):
        table.tell(WorkerJoined(worker=kind, kind=kind))
        sequences = {"model": Constant("net"), "lr": Constant(float(number))}
        table.dispatcher.register(number, sequences, 2 * STEPS)
        # Its second stage should rather run on a faster class than stay on the old one.
        table.carry_out(table.dispatcher.extend(number, 2 * STEPS, 0.0, 0.0, (STEPS,)))
    table.may_place = False
    table.tell(WorkerGone(worker="mid"))
    table.dispatcher.next_tick(0.0)
    assert table.models.keys() == times["net"].keys()


def test_stages_for_withheld_workers_do_not_change_prices() -> None:
    table = Table()
    table.join(a="old", b="new")
    table.tell(WorkerJoined(worker="c", kind="lab", tags=frozenset({"lab"})))
    table.tell(Granted(workers=frozenset({"a", "b"})))
    table.trial("net", needs=Needs.of({"tags": ["lab"]}))
    assert classes_of(table.dispatcher).market.backlog() == {}


def classes_of(dispatcher: Dispatcher) -> ComputeClasses:
    policy = dispatcher.placing.policy(ComputeClasses)
    assert policy is not None
    return policy


class Checked(SimulatedRunner):
    """Checks after each event that no worker is idle that would end a ready stage first."""

    def _carry_out(self, outcome: object) -> None:
        super()._carry_out(outcome)  # type: ignore[arg-type]
        dispatcher = self.engine._dispatcher
        idle = {slot.kind for slot in dispatcher.slots.values() if not slot.queue}
        kinds = {slot.kind for slot in dispatcher.slots.values()}
        for node in dispatcher.frontier.ready() if idle else ():
            seconds = {kind: self.seconds(dispatcher, node, kind) for kind in kinds}
            assert min(seconds.values()) < min(seconds[kind] for kind in idle)

    def seconds(self, dispatcher: Dispatcher, node: Node, kind: str) -> float:
        return (node.stop - start_of(node)) * dispatcher.speeds.seconds_per_step(node, kind)


COSTS = st.floats(0.1, 10.0)
RATES: list[Sequence] = [
    Constant(0.5),
    Constant(0.7),
    Piecewise([0.5, 0.1], [2]),
    Piecewise([0.5, 0.2], [2]),
    Piecewise([0.5, 0.2, 0.1], [2, 3]),
]


@settings(max_examples=examples(60))
@given(
    pool=st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1),
    costs=st.lists(st.tuples(COSTS, COSTS, COSTS), min_size=1, max_size=4),
    lookahead=st.sampled_from([0.0, 0.5]),
    load=st.sampled_from([0.0, 2.0]),
    drop=st.sampled_from([0.0, 0.01]),
)
def test_every_trial_ends_and_no_worker_idles_in_vain(
    pool: dict[str, int],
    costs: list[tuple[float, ...]],
    lookahead: float,
    load: float,
    drop: float,
) -> None:
    options = DispatchOptions(
        saves=SavePolicy(at_changes=False), lookahead_seconds=lookahead, load_seconds=load
    )
    engine = Engine(
        Dispatcher(root_key("checked", 0), options),
        objective=Objective.single("value", "minimize"),
        trials={},
    )
    conditions = Conditions(
        curve=lambda values, step: 1 / step,
        pace=lambda sequences, start, stop, kind: EvenPace(
            costs[int(str(sequences["model"](0)))]["abc".index(kind)]
        ),
        mishaps=Mishaps(drop=drop),
    )
    runner = Checked(engine, conditions, workers=pool, limits=Limits())
    space = dt.Space(model=list(range(len(costs))), lr=RATES)
    runner.run(dt.algos.Grid(space, max_steps=STEPS))
    assert len(runner.completed) == len(costs) * len(RATES)
    assert not math.isnan(runner.now)
