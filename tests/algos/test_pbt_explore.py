"""Exploring: what a child's configuration is, given the one that it inherits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.pbt_explore import Exploring, coordinates_of, fixed_coordinates, perturbed
from dasktune.errors import ConfigurationError
from dasktune.sequences import Exponential, MultiStep
from dasktune.space import Branch, Choice, Configuration, Drawing, Family, Float, Int, Space

SPACE = Space(
    lr=Choice([Family(Exponential, init=Float(0.01, 1.0, log=True), gamma=[0.9, 0.95, 0.99]), 0.1]),
    batch_size=[16, 32, 64, 128],
    layers=Int(1, 9, step=2),
    dropout=Float(0.0, 0.5, step=0.1),
    size=Int(7, 7),
    optimizer=[Branch("sgd", Space(momentum=Float(0.0, 0.9), nesterov=[True, False])), "adam"],
)


def drawn(seed: int, space: Space = SPACE) -> Configuration:
    return space.pick(Drawing(np.random.default_rng(seed)))


def explored(
    found: Configuration,
    seed: int,
    *,
    space: Space = SPACE,
    factors: tuple[float, ...] = (1.2, 0.8),
    resample: float = 0.25,
    fixed: frozenset[str] = frozenset(),
) -> Configuration:
    rng = np.random.default_rng(seed)
    return space.pick(Exploring(found.point, rng, factors=factors, resample=resample, fixed=fixed))


@pytest.mark.parametrize(
    ("value", "domain", "factor", "expected"),
    [
        (0.5, Float(0.0, 1.0), 1.2, 0.6),
        (0.5, Float(0.0, 1.0), 0.8, 0.4),
        (0.5, Float(0.45, 0.55), 1.2, 0.55),
        (0.5, Float(0.45, 0.55), 0.8, 0.45),
        (-0.5, Float(-1.0, 1.0), 1.2, -0.6),
        (0.0, Float(-1.0, 1.0), 1.2, 0.0),
        (10, Int(1, 100), 1.2, 12),
        (12, Int(1, 100), 0.8, 10),  # 9.6
        (2, Int(1, 100), 1.2, 3),  # 2.4 is 2
        (2, Int(1, 100), 0.8, 1),  # 1.6 is 2
        (1, Int(1, 100), 0.8, 1),
        (-2, Int(-100, 100), 1.2, -3),
        (0, Int(-100, 100), 1.2, 1),
        (96, Int(32, 130, step=32), 1.2, 128),  # 115.2
        (128, Int(32, 130, step=32), 1.2, 128),
        (0.3, Float(0.1, 0.75, step=0.1), 1.2, 0.4),  # 0.36
        (0.3, Float(0.1, 0.75, step=0.1), 0.8, 0.2),  # 0.24
        (0.7, Float(0.1, 0.75, step=0.1), 1.2, 0.7),
        (1e308, Float(0.0, 1.5e308), 1.9, 1.5e308),
        (2**61 + 1, Int(1, 2**62), 3.0, 2**62),
    ],
)
def test_a_number_is_multiplied_and_taken_into_its_domain(
    value: float, domain: Float | Int, factor: float, expected: float
) -> None:
    found = perturbed(value, domain, factor)
    assert found == pytest.approx(expected)
    assert type(found) is type(expected)
    assert found in domain


@given(
    st.integers(-20, 20),
    st.integers(0, 30),
    st.integers(1, 7),
    st.sampled_from([1.2, 0.8, 3.0, 0.01]),
    st.data(),
)
def test_perturbed_numbers_are_points_of_their_domain(
    low: int, span: int, step: int, factor: float, data: st.DataObject
) -> None:
    whole = Int(low, low + span, step=step)
    index = data.draw(st.integers(0, whole.size - 1))
    assert perturbed(list(whole.points())[index], whole, factor) in whole
    stepped = Float(low / 10, (low + span) / 10, step=step / 10)
    assert perturbed(list(stepped.points())[index], stepped, factor) in stepped


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([0.0, 0.25, 1.0]))
def test_explored_point_has_the_same_coordinates_in_domain(
    one: int, other: int, resample: float
) -> None:
    found = drawn(one)
    child = explored(found, other, resample=resample)
    assert child.point.keys() == found.point.keys()
    assert child.domains == found.domains
    assert SPACE.at(child.point) == child
    assert child.point["optimizer"] == found.point["optimizer"]
    assert child.point["lr"] == found.point["lr"]
    assert child.point.keys() <= coordinates_of(SPACE).keys()


@given(st.integers(0, 100), st.integers(0, 100))
def test_without_resampling_choices_move_to_a_neighbour(one: int, other: int) -> None:
    found = drawn(one)
    child = explored(found, other, resample=0.0)
    sizes = [16, 32, 64, 128]
    before, after = (sizes.index(point.params["batch_size"]) for point in (found, child))  # type: ignore[arg-type]
    assert abs(before - after) == 1


def test_exploring_draws_a_quarter_and_splits_factors_evenly() -> None:
    space = Space(x=Float(0.0, 100.0), c=[0, 1, 2, 3, 4])
    found = space.at({"x": 50.0, "c": 2})
    children = [explored(found, seed, space=space).params for seed in range(2000)]
    up, down = (sum(one["x"] == 50.0 * factor for one in children) for factor in (1.2, 0.8))
    assert 650 < up < 850
    assert 650 < down < 850
    steps = [sum(one["c"] == option for one in children) for option in range(5)]
    # A neighbour: 3/8 + 1/20; any other: 1/20.
    assert all(750 < steps[option] < 950 for option in (1, 3))
    assert all(60 < steps[option] < 140 for option in (0, 2, 4))


def test_fixed_names_are_hyper_parameters_or_coordinates() -> None:
    assert fixed_coordinates(SPACE, ()) == frozenset()
    assert fixed_coordinates(SPACE, ["momentum", "layers"]) == {
        "layers",
        "optimizer.sgd.momentum",
    }
    assert fixed_coordinates(SPACE, ["lr"]) == {"lr", "lr.Exponential.init", "lr.Exponential.gamma"}
    assert fixed_coordinates(SPACE, ["lr.Exponential.gamma"]) == {"lr.Exponential.gamma"}
    assert fixed_coordinates(SPACE, ["size"]) == frozenset()
    with pytest.raises(ConfigurationError, match=r"'width'; known: .*layers, .*optimizer.sgd.mom"):
        fixed_coordinates(SPACE, ["width"])
    with pytest.raises(ConfigurationError, match="a list of names, got 'lr'"):
        fixed_coordinates(SPACE, "lr")


@given(st.integers(0, 100), st.integers(0, 100))
def test_what_is_fixed_stays(one: int, other: int) -> None:
    found = drawn(one)
    fixed = fixed_coordinates(SPACE, ["lr", "batch_size", "nesterov"])
    child = explored(found, other, resample=1.0, fixed=fixed)
    for name in ("lr", "batch_size", "nesterov"):
        assert child.sequences.get(name) == found.sequences.get(name)
    everything = fixed_coordinates(SPACE, SPACE.names)
    assert explored(found, other, resample=1.0, fixed=everything) == found


def test_a_choice_between_plain_sequences_is_explored() -> None:
    options = [MultiStep(0.1, [2], 0.1), MultiStep(0.1, [3], 0.1), MultiStep(0.1, [4], 0.1)]
    space = Space(lr=options)
    found = space.at({"lr": repr(options[0])})
    assert explored(found, 1, space=space, resample=0.0).sequences["lr"] == options[1]
