"""Grid and random search: everything is known at the first ask, and trained in full."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos import Grid, Random, Tuner
from dasktune.errors import ConfigurationError, InternalError
from dasktune.sequences import Constant, Exponential, Linear, Sequence, Warmup
from dasktune.space import Branch, Family, Float, Int, Space
from dasktune.types import Decision, Extend, Finish, Register, Report, Value

SPACE = Space(
    lr=[0.1, Exponential(0.1, gamma=0.95)],
    opt=[Branch("sgd", Space(momentum=[0.0, 0.9])), "adam"],
)


def make_grid() -> Tuner:
    return Grid(SPACE, max_steps=8)


def make_random() -> Tuner:
    return Random(Space(lr=Float(0.01, 1.0, log=True)), trials=6, max_steps=8, seed=3)


def arrived(trial: int, step: int = 8) -> Report:
    return Report(trial=trial, step=step, metrics={"loss": 1.0})


def drop_constants(point: Mapping[str, Value | Sequence]) -> bool:
    return isinstance(point["lr"], Sequence)


def keep_adam(point: Mapping[str, Value | Sequence]) -> bool:
    return point["opt"] == "adam" and point["lr"] == 0.1


@pytest.mark.parametrize("make", [make_grid, make_random])
def test_everything_is_registered_and_asked_for_at_once(make: Callable[[], Tuner]) -> None:
    tuner = make()
    decisions = tuner.ask(1)
    assert [type(one) for one in decisions] == [Register] * 6 + [Extend] * 6
    assert [one.trial for one in decisions if isinstance(one, Register)] == list(range(6))
    assert decisions[6:] == [Extend(trial=trial, until=8) for trial in range(6)]
    assert all(one.max_steps == 8 for one in decisions if isinstance(one, Register))
    assert tuner.ask(4) == []
    assert make().ask(99) == decisions


def test_a_grid_registers_the_configurations_in_order() -> None:
    registered = [one for one in make_grid().ask(1) if isinstance(one, Register)]
    expected = list(SPACE.configurations())
    assert [dict(one.params) for one in registered] == [dict(point.params) for point in expected]
    assert [one.sequences for one in registered] == [point.sequences for point in expected]


@pytest.mark.parametrize("make", [make_grid, make_random])
@given(order=st.permutations(range(6)), failed=st.sets(st.integers(0, 5)), cut=st.integers(0, 6))
def test_last_trial_finishes_once_also_after_a_restart(
    make: Callable[[], Tuner], order: list[int], failed: set[int], cut: int
) -> None:
    tuner = make()
    tuner.ask(2)
    answers: list[list[Decision]] = []
    for position, trial in enumerate(order):
        if position == cut:
            state = json.loads(json.dumps(tuner.snapshot()))
            tuner = make()
            tuner.restore(state)
            assert tuner.ask(2) == []
        assert tuner.tell(arrived(trial, step=7)) == []
        answers.append(tuner.tell_failure(trial) if trial in failed else tuner.tell(arrived(trial)))
    assert answers == [[]] * 5 + [[Finish()]]
    assert tuner.tell(arrived(order[0])) == []


def test_reports_of_strangers_are_a_bug() -> None:
    tuner = make_grid()
    with pytest.raises(InternalError, match="trial 0"):
        tuner.tell(arrived(0))
    tuner.ask(1)
    with pytest.raises(InternalError, match="trial 6"):
        tuner.tell_failure(6)


def test_a_strange_snapshot_is_refused() -> None:
    for state in ({}, {"asked": True, "open": [6]}, {"asked": 1, "open": [0]}):
        with pytest.raises(ConfigurationError, match="not the state"):
            make_grid().restore(state)


def test_a_filter_sees_values_and_sequences_and_decides() -> None:
    kept = [one for one in Grid(SPACE, 8, filter=keep_adam).ask(1) if isinstance(one, Register)]
    assert [dict(one.params) for one in kept] == [{"lr": 0.1, "opt": "adam"}]
    kept = [one for one in Grid(SPACE, 8, drop_constants).ask(1) if isinstance(one, Register)]
    assert [one.sequences["lr"] for one in kept] == [Exponential(0.1, gamma=0.95)] * 3


def test_identities_are_json_and_tell_tuners_apart() -> None:
    other = Space(lr=[0.1, 0.2])
    tuners = [
        Grid(SPACE, 8),
        Grid(SPACE, 9),
        Grid(other, 8),
        Grid(SPACE, 8, filter=keep_adam),
        Grid(SPACE, 8, filter=drop_constants),
        Grid(SPACE, 8, filter=lambda point: point["opt"] == "sgd"),
        Grid(SPACE, 8, filter=lambda point: point["opt"] == "adam"),
        Random(SPACE, trials=4, max_steps=8),
        Random(SPACE, trials=5, max_steps=8),
        Random(SPACE, trials=4, max_steps=9),
        Random(SPACE, trials=4, max_steps=8, seed=1),
        Random(other, trials=4, max_steps=8),
    ]
    texts = [json.dumps(tuner.identity(), sort_keys=True) for tuner in tuners]
    assert len(set(texts)) == len(tuners)
    assert Grid(SPACE, 8, filter=keep_adam).identity() == tuners[3].identity()
    assert "keep_adam" in texts[3]
    assert make_random().identity() == make_random().identity()


def test_a_seed_decides_what_is_drawn() -> None:
    space = Space(x=Int(0, 10**9))
    first = Random(space, trials=20, max_steps=1, seed=1).configurations
    assert first == Random(space, trials=20, max_steps=1, seed=1).configurations
    assert first != Random(space, trials=20, max_steps=1, seed=2).configurations
    longer = Random(space, trials=30, max_steps=1, seed=1).configurations
    assert longer[:20] == first


def test_duplicates_may_be_drawn() -> None:
    assert len(Random(Space(x=[1, 2]), trials=9, max_steps=1).configurations) == 9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Grid(SPACE, max_steps=0), "max_steps must be >= 1, got 0"),
        (
            lambda: Random(SPACE, trials=10_000_000, max_steps=8),
            "trials must be <= 1,000,000, got 10,000,000",
        ),
        (lambda: Grid(SPACE, max_steps=1.5), "max_steps must be an int, got 1.5"),  # type: ignore[arg-type]
        (lambda: Grid(SPACE, 8, filter=lambda point: False), "at least one configuration"),
        (lambda: Grid(SPACE, 8, filter=3), "filter must be a function, got 3"),  # type: ignore[arg-type]
        (lambda: Grid(Space(x=Float(0, 1)), 8), "x: a grid needs a finite number"),
        (lambda: Grid(Space(lr=[0.1, Warmup(5, 0.1)]), 8), "lr: Warmup.*step 5, max_steps is 8"),
        (lambda: Grid(Space(lr=Exponential(1.0, 10.0)), 400), "lr: .*overflows at step 399"),
        (lambda: Random(SPACE, trials=0, max_steps=8), "trials must be >= 1, got 0"),
        (lambda: Random(SPACE, trials=2, max_steps=8, seed=-1), "seed must be >= 0, got -1"),
        (
            lambda: Random(
                Space(lr=Family(Linear, init=Float(0, 1), final=0.0, period=4)),
                trials=20,
                max_steps=8,
            ),
            "and 10 more like these",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Grid(Space(lr=[Warmup(5, 0.1), Warmup(6, 0.1), Constant(1)], mu=Warmup(5, 0.1)), 8)
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigurationError) as caught:
        Random(SPACE, trials=0, max_steps=0, seed=-1)
    assert len(caught.value.problems) == 3


def test_any_tuner_can_walk_a_grid() -> None:
    space = Space(lr=[0.1, 0.2], batch_size=[32, 64])
    tuner = Random(space, trials=3, max_steps=2, sampler="grid")
    registered = [one.params for one in tuner.ask(1) if isinstance(one, Register)]
    assert registered == [dict(one.params) for one in list(space.configurations())[:3]]
    assert tuner.most_queued == 0
    assert tuner.configurations is not None
    with pytest.raises(ConfigurationError, match="trials must be <= 4, the size of the grid"):
        Random(space, trials=5, max_steps=2, sampler="grid")
    with pytest.raises(ConfigurationError, match="unknown sampler 'tpe'; known: grid"):
        Random(space, trials=3, max_steps=2, sampler="tpe")


def test_random_trials_share_equal_mappings() -> None:
    tuner = Random(Space(lr=Float(0.1, 1.0), size=[8, 16]), trials=2, max_steps=4)
    first, second = (each for each in tuner.ask(1) if isinstance(each, Register))
    assert first.domains is second.domains
    assert first.point is first.params
