"""The number of devices in state keys, and in the search plan."""

from __future__ import annotations

import pytest

from dasktune._engine.trials import TrialRecord
from dasktune.graph.devices import devices_text, with_devices
from dasktune.graph.keys import Chain
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.speeds import Speeds
from dasktune.sequences import Constant, Exponential

ROOT = "ab" * 16
PLAIN = {"lr": Constant(0.1), "momentum": Exponential(0.9, gamma=0.99)}


def key(sequences: object, step: int) -> str:
    return Chain(ROOT).advance(sequences, 0, step).key  # type: ignore[arg-type]


def test_one_device_is_not_named_in_keys() -> None:
    assert with_devices(PLAIN, [(0, 1)]) is PLAIN
    named = with_devices(PLAIN, [(0, 1), (5, 2)])
    assert [key(named, step) for step in range(6)] == [key(PLAIN, step) for step in range(6)]
    assert key(named, 6) != key(PLAIN, 6)


def test_another_number_of_devices_is_another_state() -> None:
    keys = [key(with_devices(PLAIN, [(0, count)]), 4) for count in (1, 2, 4)]
    assert len(set(keys)) == 3
    # The keys of the marks on the way are those of single steps, also for periods of one step.
    brief = with_devices(PLAIN, [(0, 1), (1, 2), (2, 4)])
    chain = Chain(ROOT)
    for step in range(5):
        chain = chain.advance(brief, step, step + 1)
        assert chain.key == key(brief, step + 1)


def test_trials_share_steps_up_to_a_change_of_devices() -> None:
    plan = SearchPlan(ROOT)
    plan.register(0, PLAIN, 10)
    plan.register(1, with_devices(PLAIN, [(0, 1), (5, 2)]), 10)
    plan.register(2, with_devices(PLAIN, [(0, 1), (5, 2), (7, 4)]), 10)
    assert [(node.start, node.stop) for node in plan.nodes_of(0)] == [(0, 5), (5, 10)]
    assert [(node.start, node.stop) for node in plan.nodes_of(2)] == [(0, 5), (5, 7), (7, 10)]
    assert plan.nodes_of(0)[0] is plan.nodes_of(1)[0] is plan.nodes_of(2)[0]
    assert plan.nodes_of(1)[1] is plan.nodes_of(2)[1]


def test_a_new_edge_ends_where_the_devices_change() -> None:
    plan = SearchPlan(ROOT)
    plan.register(0, with_devices(PLAIN, [(0, 1), (5, 2)]), 10)
    assert [(node.start, node.stop) for node in plan.nodes_of(0)] == [(0, 5), (5, 10)]


def test_devices_of_a_trial_change_after_its_last_report() -> None:
    trial = TrialRecord(number=0, tuner=0, local=0, params={}, sequences=PLAIN, max_steps=10)
    assert trial.keyed_sequences is PLAIN
    assert not trial.use_devices(1)
    trial.steps = 4
    assert trial.use_devices(2)
    assert trial.devices == ((0, 1), (4, 2))
    document = {**trial.to_json()}
    read = TrialRecord.from_json(document, number=0, state=trial.state.value, steps=4)
    assert read.devices == trial.devices
    assert trial.use_devices(1)  # nothing was trained on two devices yet
    assert trial.devices == ((0, 1),)
    assert "devices" not in trial.to_json()


def test_devices_text_names_changes() -> None:
    assert devices_text([(0, 1)]) == "1"
    assert devices_text([(0, 2), (5, 1)]) == "2, 1 from step 5"


def test_speedups_are_those_of_one_model_on_its_classes() -> None:
    def node(devices: int, width: int) -> Node:
        sequences = with_devices({"lr": Constant(0.1), "width": Constant(width)}, [(0, devices)])
        return SearchPlan(ROOT).register(0, sequences, 10)

    speeds = Speeds()
    plain = {"lr": Constant(0.1), "width": Constant(8)}
    assert speeds.speedups(plain, 0, [2, 4]) == {}
    for kind, seconds in (("a", 1.0), ("b", 4.0)):
        speeds.observe(node(1, 8), steps=10, seconds=10 * seconds, kind=kind)
    assert speeds.speedups(plain, 0, [2, 4]) == {1: 1.0}
    speeds.observe(node(2, 8), steps=10, seconds=5.0, kind="a")
    speeds.observe(node(2, 9), steps=10, seconds=1.0, kind="a")
    assert speeds.speedups(plain, 0, [2, 4]) == pytest.approx({1: 1.0, 2: 2.0})
    speeds.observe(node(2, 8), steps=10, seconds=80.0, kind="b")
    assert speeds.speedups(plain, 0, [2, 4]) == pytest.approx({1: 1.0, 2: 1.0})


def test_speeds_of_one_device_after_several_are_those_of_one() -> None:
    plan = SearchPlan(ROOT)
    leaf = plan.register(0, with_devices(PLAIN, [(0, 2), (5, 1)]), 10)
    speeds = Speeds()
    speeds.observe(leaf, steps=5, seconds=5.0)
    assert speeds.speedups(PLAIN, 0, [2]) == {1: 1.0}
