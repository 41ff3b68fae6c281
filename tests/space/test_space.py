"""Search spaces: what they accept, their grid, what is drawn from them."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError
from dasktune.sequences import (
    Constant,
    Cosine,
    Exponential,
    MultiStep,
    Piecewise,
    Sequence,
    Warmup,
    as_sequence,
)
from dasktune.space import Branch, Choice, Configuration, Family, Float, Int, Space
from dasktune.types import Value

RNG = np.random.default_rng(0)


def params(space: Space) -> list[dict[str, Value]]:
    return [dict(point.params) for point in space.configurations()]


def warmed(lr: float, warm: int) -> Sequence:
    return Warmup(warm, lr) >> Exponential(lr, gamma=0.95)


NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=5).filter(
    str.strip
)
OPTIONS = st.lists(
    st.integers(0, 9) | st.booleans() | st.sampled_from(["adam", None, 0.5, 1.0, Warmup(5, 0.1)]),
    min_size=1,
    max_size=4,
    unique_by=lambda option: repr(as_sequence(option)),
)


@given(st.dictionaries(NAMES, OPTIONS, min_size=1, max_size=4))
def test_a_grid_is_the_product_with_the_last_name_fastest(choices: dict[str, list[Value]]) -> None:
    space = Space(choices)
    expected = [dict(zip(choices, taken, strict=True)) for taken in product(*choices.values())]
    found = list(space.configurations())
    assert [repr(point.objects()) for point in found] == [repr(taken) for taken in expected]
    assert space.size == len(expected)
    assert space.names == tuple(choices)


def test_plain_values_sequences_lists_and_domains_are_dimensions() -> None:
    space = Space(
        lr=Warmup(5, 0.1) >> 0.1,
        batch_size=[64, Piecewise([64, 128], boundaries=[20])],
        momentum=0.9,
        layers=Int(1, 5, step=2),
        widths=np.array([8, 16]),
    )
    assert space.size == 12
    first, *_, last = space.configurations()
    assert first == Configuration(
        params={
            "lr": "Warmup(5, 0.1) >> Constant(0.1)",
            "batch_size": 64,
            "momentum": 0.9,
            "layers": 1,
            "widths": 8,
        },
        sequences={
            "lr": Warmup(5, 0.1) >> 0.1,
            "batch_size": Constant(64),
            "momentum": Constant(0.9),
            "layers": Constant(1),
            "widths": Constant(8),
        },
    )
    assert last.params["batch_size"] == "Piecewise([64, 128], boundaries=[20])"
    assert (last.params["layers"], last.params["widths"]) == (5, 16)


def test_stepped_floats_read_as_written() -> None:
    assert list(Float(0.1, 0.5, step=0.1).points()) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert list(Float(0, 1, step=0.4).points()) == [0.0, 0.4, 0.8]
    assert Float(0.0, 1.0).size is None
    assert list(Float(0.5, 0.5).points()) == [0.5]


def test_a_family_is_the_product_of_its_arguments() -> None:
    family = Family(
        MultiStep, init=Choice([0.1, 0.2]), milestones=[[30], [30, 45]], gamma=Float(0.1, 0.1)
    )
    assert family.size == 4
    assert list(family.points()) == [
        MultiStep(0.1, [30], gamma=0.1),
        MultiStep(0.1, [30, 45], gamma=0.1),
        MultiStep(0.2, [30], gamma=0.1),
        MultiStep(0.2, [30, 45], gamma=0.1),
    ]
    fixed = Family(Piecewise, values=[64, 128], boundaries=[20])
    assert list(fixed.points()) == [Piecewise([64, 128], boundaries=[20])]


def test_a_function_of_sequences_is_a_family() -> None:
    space = Space(lr=[Constant(0.1), Family(warmed, lr=[0.1, 0.2], warm=5)])
    assert space.size == 3
    assert [point.sequences["lr"] for point in space.configurations()] == [
        Constant(0.1),
        Warmup(5, 0.1) >> Exponential(0.1, gamma=0.95),
        Warmup(5, 0.2) >> Exponential(0.2, gamma=0.95),
    ]
    assert "test_space.warmed" in json.dumps(space.to_json())


def test_a_branch_brings_its_own_hyper_parameters() -> None:
    space = Space(
        optimizer=[
            Branch("sgd", Space(momentum=[0.0, 0.9], nesterov=Int(0, 1))),
            Branch("adam", Space(momentum=0.5)),
            "adagrad",
        ],
        lr=[0.1, 0.2],
    )
    assert space.size == 12
    assert space.names == ("optimizer", "momentum", "nesterov", "lr")
    found = params(space)
    assert len(found) == 12
    assert found[0] == {"optimizer": "sgd", "momentum": 0.0, "nesterov": 0, "lr": 0.1}
    assert found[-4:] == [
        {"optimizer": "adam", "momentum": 0.5, "lr": 0.1},
        {"optimizer": "adam", "momentum": 0.5, "lr": 0.2},
        {"optimizer": "adagrad", "lr": 0.1},
        {"optimizer": "adagrad", "lr": 0.2},
    ]
    first = next(space.configurations())
    assert first.sequences["optimizer"] == Constant("sgd")
    assert first.objects() == first.params


def test_a_branch_may_be_named_by_a_value_or_a_sequence() -> None:
    drop = Piecewise([0.1, 0.01], boundaries=[5])
    options = [
        Branch(1, Space(width=[8, 16])),
        Branch(2, Space(second=8)),
        Branch(drop, Space(x=1)),
    ]
    space = Space(depth=options)
    assert params(space) == [
        {"depth": 1, "width": 8},
        {"depth": 1, "width": 16},
        {"depth": 2, "second": 8},
        {"depth": repr(drop), "x": 1},
    ]
    assert list(space.configurations())[-1].sequences["depth"] == drop
    assert space.at({"depth": 1, "depth.1.width": 16}).params == {"depth": 1, "width": 16}
    assert Branch(Constant(2), Space(second=8)) == options[1]
    assert len({json.dumps(one.to_json()) for one in (*options, Branch("1", Space(x=1)))}) == 4


def test_samples_are_points_and_depend_on_the_generator_alone() -> None:
    space = Space(
        optimizer=[Branch("sgd", Space(momentum=[0.0, 0.9])), "adam"],
        lr=Family(Exponential, init=Float(1e-3, 1e-1, log=True), gamma=0.95),
        dropout=Float(0.0, 0.5, step=0.25),
    )
    rng = np.random.default_rng(7)
    drawn = [space.sample(rng) for _ in range(300)]
    again = np.random.default_rng(7)
    assert drawn == [space.sample(again) for _ in range(300)]
    assert {point.params.get("momentum") for point in drawn} == {None, 0.0, 0.9}
    assert all(("momentum" in p.params) == (p.params["optimizer"] == "sgd") for p in drawn)
    assert {point.params["dropout"] for point in drawn} == {0.0, 0.25, 0.5}
    rates = [point.sequences["lr"](0) for point in drawn]
    assert all(isinstance(rate, float) and 1e-3 <= rate <= 1e-1 for rate in rates)
    # Uniform in the logarithm: half below 0.01; five standard deviations are 0.15.
    assert abs(sum(rate < 1e-2 for rate in rates) / 300 - 0.5) < 0.15


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 7), st.booleans(), st.integers(0, 99))
def test_drawn_integers_are_points(low: int, span: int, step: int, log: bool, seed: int) -> None:
    domain = Int(low, low + span, log=log, step=1 if log else step)
    drawn = domain.draw(np.random.default_rng(seed))
    assert type(drawn) is int
    assert drawn in list(domain.points())
    assert domain.size == len(list(domain.points()))


def test_every_integer_of_a_logarithmic_domain_is_drawn() -> None:
    rng = np.random.default_rng(0)
    drawn = [Int(1, 4, log=True).draw(rng) for _ in range(2000)]
    shares = [drawn.count(number) / 2000 for number in (1, 2, 3, 4)]
    expected = [math.log((n + 0.5) / (n - 0.5)) / math.log(9) for n in (1, 2, 3, 4)]
    assert shares == pytest.approx(expected, abs=0.06)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.integers(0, 99))
def test_drawn_floats_are_within_their_bounds(one: float, other: float, seed: int) -> None:
    low, high = sorted((one, other))
    assert low <= Float(low, high).draw(np.random.default_rng(seed)) <= high


def test_documents_tell_spaces_apart() -> None:
    spaces = [
        Space(lr=[0.1, 0.2], mu=1),
        Space(mu=1, lr=[0.1, 0.2]),
        Space(lr=[0.2, 0.1], mu=1),
        Space(lr=[0.1, 0.2], mu=1.0),
        Space(lr=Float(0.1, 0.2), mu=1),
        Space(lr=Float(0.1, 0.2, log=True), mu=1),
        Space(lr=[0.1, 0.2], mu=[Branch("1", Space(x=1))]),
        Space(lr=[0.1, Family(Exponential, init=0.1, gamma=[0.9])], mu=1),
    ]
    documents = {json.dumps(space.to_json(), sort_keys=True) for space in spaces}
    assert len(documents) == len(spaces)
    assert Space(lr=[0.1]) == Space(lr=0.1)
    assert Space(opt="adam") == Space(opt=Choice("adam")) == Space(opt=["adam"])  # type: ignore[arg-type]
    assert Space(lr=[0.1]).to_json() == Space({"lr": Constant(0.1)}).to_json()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space(), "at least one hyper-parameter, got none"),
        (lambda: Space(lr=[]), "lr: Choice: .*at least one option, got none"),
        (lambda: Space(lr=[0.1, 0.2, Constant(0.1)]), "only once, got 0.1 2 times"),
        (lambda: Space(lr=[Warmup(5, 0.1), Warmup(5, 0.1)]), "only once, got Warmup"),
        (lambda: Space(lr=["a", Branch("a", Space(x=1))]), 'only once, got "a" 2 times'),
        (lambda: Space(lr=[0.1, math.nan]), r"options\[1\]: a value must be finite"),
        (lambda: Space(lr=[[0.1, 0.2]]), r"got \[0.1, 0.2\]"),
        (lambda: Space(lr={0.1, 0.2}), "choices must be a list"),
        (lambda: Space(lr=object()), "plain|int, float"),
        (lambda: Space({"": 1}), "not empty, got ''"),
        (lambda: Space({"lr": 1}, lr=2), "'lr' 2 times"),
        (lambda: Space(opt=[Branch("a", Space(lr=1))], lr=1), "'lr' 2 times"),
        (lambda: Branch([1], Space(x=1)), "Branch: name: "),  # type: ignore[arg-type]
        (lambda: Branch("a", {"lr": 1}), "space must be a Space"),  # type: ignore[arg-type]
        (lambda: Float(1, 0), "low must be <= high, got 1.0 and 0.0"),
        (lambda: Float(0, 1, log=True), "low must be > 0 with log, got 0.0"),
        (lambda: Float(0.1, 1, log=True, step=0.1), "step must be None with log"),
        (lambda: Float(0.1, 1, step=0.0), "step must be > 0"),
        (lambda: Float(0, 1, step=1e-30), "at most 2..62 points"),
        (lambda: Int(1, 9, log=True, step=2), "step must be 1 with log, got 2"),
        (lambda: Int(1, 2.5), "high must be an int, got 2.5"),  # type: ignore[arg-type]
        (lambda: Int(1, 2**70), "at most 2..62 points"),
        (lambda: Family(Exponential, init=0.1), "missing a required argument: 'gamma'"),
        (lambda: Family(Exponential, init=0.1, gama=1), r"Family\(Exponential\): .*gamma.*gama"),
        (lambda: Family(Exponential, init=[], gamma=1), "init: Choice"),
        (lambda: Family(lambda lr: Constant(lr), lr=1), "named function"),
        (lambda: next(Family(sorted, iterable=[[2, 1]], key=None).points()), "sorted"),
        (
            lambda: Space(
                lr=Family(MultiStep, init=1, milestones=[[3, 2]], gamma=1)
            ).configurations(),
            r"^lr: MultiStep: milestones .*got \[3, 2\]",
        ),
        (
            lambda: Space(lr=Family(Cosine, init=0.1, period=Int(0, 0))).sample(RNG),
            "^lr: Cosine: period must be >= 1, got 0",
        ),
        (lambda: Space(x=Int(1, 10**7)).configurations(), "at most 1,000,000 .* got 10,000,000"),
        (lambda: Space(x=Float(0, 1), y=1).configurations(), "x: a grid needs a finite number"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Space(lr=[], mu=[1, 1], x=[math.inf, object()])
    assert len(caught.value.problems) == 4
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["lr", "mu", "x", "x"]
