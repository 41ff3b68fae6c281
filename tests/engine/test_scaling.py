"""The rule for the number of devices of a trial."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune._engine.scaling import (
    Scale,
    choose_devices,
    count_living,
    efficiency_of,
    most_devices,
)
from dasktune.errors import ConfigurationError

FACTS = st.dictionaries(st.sampled_from([2, 4, 8, 16]), st.floats(0.1, 32.0)).map(
    lambda measured: {1: 1.0, **measured}
)
POOLS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 40))
SCALES = st.builds(Scale, max=st.integers(1, 32), efficiency=st.floats(0.01, 1.0))


@pytest.mark.parametrize("given_max", [0, -1, 2.0, True, "8", None])
def test_scale_max_that_is_no_number_is_refused(given_max: object) -> None:
    with pytest.raises(ConfigurationError, match=r"Scale\.max must be an int >= 1, got"):
        Scale(max=given_max)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan"), "much", True])
def test_scale_efficiency_out_of_range_is_refused(share: object) -> None:
    with pytest.raises(ConfigurationError, match="efficiency must be a number above 0 and up to 1"):
        Scale(max=2, efficiency=share)  # type: ignore[arg-type]


def test_scale_with_two_problems_names_both() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)Scale\.max .*Scale\.efficiency "):
        Scale(max=0, efficiency=2)


@pytest.mark.parametrize(
    ("living", "pool", "most"),
    [
        (8, {"": 8}, 1),
        (5, {"": 8}, 1),
        (4, {"": 8}, 2),
        (3, {"": 8}, 2),
        (1, {"": 8}, 8),
        (1, {"": 100}, 8),
        (1, {"": 7}, 4),
        (1, {"a": 3, "b": 3}, 2),  # devices of one class train together
        (0, {}, 1),
    ],
)
def test_most_devices_leaves_as_many_for_others(
    living: int, pool: dict[str, int], most: int
) -> None:
    assert most_devices(Scale(max=8), living=living, pool=pool) == most


def test_trials_with_less_left_count_in_part() -> None:
    assert count_living(10.0, []) == 1.0
    assert count_living(10.0, [10.0, 30.0, 5.0]) == 3.5
    pool = {"": 7}
    assert most_devices(Scale(max=8), living=3.5, pool=pool) == 2
    assert most_devices(Scale(max=8), living=3.6, pool=pool) == 1


@pytest.mark.parametrize(
    ("speedups", "chosen"),
    [
        ({}, 1),  # one device comes first
        ({8: 1.0}, 1),
        ({1: 1.0}, 8),  # tried
        ({1: 1.0, 8: 6.0}, 8),
        ({1: 1.0, 8: 5.9}, 4),  # 4 devices keep 0.86 by Amdahl's law
        ({1: 1.0, 8: 1.6}, 1),  # 2 would keep 0.64
        ({1: 1.0, 2: 1.5}, 2),  # 4 would keep 0.5
        ({1: 1.0, 2: 1.49}, 1),
        ({1: 1.0, 2: 1.9, 4: 2.9, 8: 8.0}, 8),  # a dip at 4
        ({1: 1.0, 2: 1.4, 4: 3.0, 8: 5.0}, 4),
        ({1: 1.0, 2: 2.5}, 8),  # faster than twice: more memory, or a better cache
    ],
)
def test_choose_devices_takes_the_largest_number_that_pays(
    speedups: dict[int, float], chosen: int
) -> None:
    assert choose_devices(Scale(max=8), most=8, speedups=speedups) == chosen


@given(SCALES, st.integers(0, 50), POOLS, FACTS)
def test_chosen_devices_keep_every_bound(
    scale: Scale, living: int, pool: dict[str, int], speedups: dict[int, float]
) -> None:
    most = most_devices(scale, living=living, pool=pool)
    chosen = choose_devices(scale, most=most, speedups=speedups)
    assert chosen in (1, 2, 4, 8, 16, 32)
    assert chosen <= scale.max
    if chosen > 1:
        assert chosen <= max(pool.values())
        assert chosen * living <= sum(pool.values())
        assert efficiency_of(chosen, speedups) >= scale.efficiency


@given(SCALES, st.integers(1, 50), POOLS, FACTS, st.integers(1, 10))
def test_more_living_trials_never_get_more_devices(
    scale: Scale, living: int, pool: dict[str, int], speedups: dict[int, float], more: int
) -> None:
    few, many = (
        choose_devices(scale, most=most_devices(scale, living=each, pool=pool), speedups=speedups)
        for each in (living, living + more)
    )
    assert many <= few


@given(st.floats(0.0, 1.0), st.sampled_from([2, 4, 8, 16]), st.sampled_from([2, 4, 8, 16]))
def test_estimated_efficiency_follows_a_law_that_holds(
    undivided: float, measured: int, devices: int
) -> None:
    def speedup(number: int) -> float:
        return 1 / (undivided + (1 - undivided) / number)

    estimate = efficiency_of(devices, {1: 1.0, measured: speedup(measured)})
    assert estimate == pytest.approx(speedup(devices) / devices)
