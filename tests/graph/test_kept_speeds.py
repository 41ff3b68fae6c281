"""Speeds of earlier runs: where estimates begin, and how this run corrects them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest

from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import (
    Deliver,
    FailTrial,
    Instruction,
    Progress,
    RunStage,
    SavePoint,
    Started,
    StopStage,
    TrainingEnded,
    WorkerJoined,
)
from dasktune.graph.kept_speeds import KeptMeasurements, KeptSpeed
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant

KINDS = {"new": 1, "old": 1}
SECONDS = {0: {"new": 1.0, "old": 4.0}, 1: {"new": 3.0, "old": 3.0}}
"""Seconds of a step by the width of a model and the class."""


def kept(seconds: Mapping[int, Mapping[str, float]] = SECONDS) -> list[KeptSpeed]:
    return [
        KeptSpeed(model=(("width", width),), kind=kind, seconds=50 * each, steps=50.0)
        for width, kinds in seconds.items()
        for kind, each in kinds.items()
    ]


def models(count: int) -> list[Node]:
    """Return the leaves of trials of so many widths."""
    plan = SearchPlan(root_key("kept", 0))
    for width in range(count):
        plan.register(width, {"width": Constant(width), "lr": Constant(0.1)}, 4)
    return [plan.paths[width].leaf for width in range(count)]


def recalled(seconds: Mapping[int, Mapping[str, float]] = SECONDS) -> Speeds:
    speeds = Speeds()
    speeds.set_slots(KINDS)
    speeds.recall(kept(seconds))
    return speeds


def test_estimates_begin_with_earlier_runs() -> None:
    speeds, nodes = recalled(), models(2)
    for width, node in enumerate(nodes):
        for kind, seconds in SECONDS[width].items():
            assert speeds.seconds_per_step(node, kind) == pytest.approx(seconds)
    assert speeds.is_known
    assert speeds.kept == [], "this run has measured nothing"


def test_model_of_one_class_has_the_factor_of_earlier_runs() -> None:
    speeds, (_, _, third) = recalled(), models(3)
    speeds.observe(third, steps=2, seconds=4.0, kind="new")
    factor = math.sqrt(4.0 * 1.0)
    assert speeds.seconds_per_step(third, "old") == pytest.approx(2.0 * factor)


def test_earlier_runs_weigh_as_much_as_one_step() -> None:
    speeds, (node, _) = recalled(), models(2)
    speeds.observe(node, steps=9, seconds=18.0, kind="new")
    assert speeds.seconds_per_step(node, "new") == pytest.approx((9 * 2.0 + 1.0) / 10)


def test_class_that_changed_is_corrected_for_all_models() -> None:
    seconds = {width: {"new": 1.0, "old": 4.0} for width in range(9)}
    speeds, nodes = recalled(seconds), models(9)
    before = speeds.doubt(nodes[8], "new")
    errors = []
    for node in nodes[:8]:
        speeds.observe(node, steps=10, seconds=30.0, kind="new")
        errors.append(3.0 / speeds.seconds_per_step(nodes[8], "new"))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 1.8, "one measurement tells half of the change"
    assert errors[-1] < 1.15
    assert speeds.seconds_per_step(nodes[8], "old") == 4.0, "nothing was measured there"
    assert 0 < before < speeds.doubt(nodes[8], "new") < 0.5


def test_pair_of_earlier_runs_is_in_little_doubt() -> None:
    speeds, (first, second, third) = recalled(), models(3)
    assert 0 < speeds.doubt(first, "new") < 0.1
    speeds.observe(third, steps=1, seconds=1.0, kind="new")
    assert speeds.doubt(third, "old") > 0.3, "a pair that nobody has measured"
    speeds.began(second, "old")
    assert speeds.doubt(second, "old") == 0.0


def test_recall_forgets_what_was_measured() -> None:
    speeds, (node, _) = recalled(), models(2)
    speeds.observe(node, steps=9, seconds=90.0, kind="new")
    measured = speeds.kept
    assert [(each.kind, each.steps) for each in measured] == [("new", 10.0)]
    speeds.recall([])
    assert (speeds.is_known, speeds.kept, speeds.seconds_per_step(node)) == (False, [], 1.0)
    speeds.recall(measured)
    assert speeds.seconds_per_step(node, "new") == pytest.approx(9.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 0.0},
        {"steps": math.nan},
        {"seconds": math.inf},
        {"steps": "many"},
        {"kind": None},
        {"model": [1]},
        {"model": {"width": [1]}},
    ],
)
def test_invalid_document_is_refused(wrong: Mapping[str, object]) -> None:
    document = {**kept()[0].to_json(), **wrong}
    with pytest.raises(ValueError, match=r"kept speed|must be positive and finite"):
        KeptSpeed.from_json(document)


def played(speeds: list[KeptSpeed]) -> list[str]:
    """Return the instructions of a run on both classes that begins with these speeds."""
    dispatcher = Dispatcher(root_key("played", 0))
    dispatcher.recall(KeptMeasurements(tuple(speeds)))
    orders: list[Instruction] = []
    for width in (1, 0, 1, 0, 0, 1):
        trial = len(dispatcher.plan.paths)
        values = {"width": Constant(width), "lr": Constant(0.1 * (trial + 1))}
        dispatcher.register(trial, values, 4)
        orders += dispatcher.extend(trial, 4, 0.0, 0.0)
    for kind in KINDS:
        orders += dispatcher.handle(WorkerJoined(worker=kind, kind=kind), 0.0)
    said, now = [], 0.0
    while orders:
        order = orders.pop(0)
        match order:
            case RunStage():
                said.append(f"{order.node.number} on {order.worker}")
                width = int(order.node.sequences["width"](0))
                seconds = SECONDS[width][order.worker]
                now += seconds
                attempt = order.attempt
                orders += dispatcher.handle(Started(attempt=attempt), now)
                orders += dispatcher.handle(Progress(attempt=attempt, step=4), now)
                ended = TrainingEnded(
                    attempt=attempt, step=4, status="trained", seconds=4 * seconds
                )
                orders += dispatcher.handle(ended, now)
            case StopStage() | SavePoint() | Deliver() | FailTrial():
                pass
    return said


def test_placement_by_logged_speeds_is_repeated_exactly() -> None:
    speeds = kept()
    log = json.dumps([speed.to_json() for speed in speeds])
    again = [KeptSpeed.from_json(document) for document in json.loads(log)]
    assert again == speeds
    assert played(again) == played(speeds)
    assert played([]) != played(speeds), "the speeds matter"


def test_first_stages_go_to_the_classes_of_earlier_runs() -> None:
    first, second = played(kept())[:2]
    fast = {each.split(" on ")[1]: each for each in (first, second)}
    assert fast["old"].split()[0] != fast["new"].split()[0]
