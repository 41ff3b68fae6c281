"""Prices of proposals, from what the trials of a source share."""

from __future__ import annotations

import pytest

from dasktune.algos.branching.price import Prices
from dasktune.sequences import Constant, Exponential, MultiStep, Piecewise, Sequence


def drop(step: int, gamma: float = 0.1) -> dict[str, Sequence]:
    return {"lr": MultiStep(0.1, [step], gamma=gamma), "wd": Constant(0.5)}


@pytest.fixture
def prices() -> Prices:
    """Return the prices beside a trial of 60 steps that drops at 30, and 20 steps of another."""
    prices = Prices()
    prices.store(0, drop(30), 60)
    prices.store(1, {"lr": Constant(0.3), "wd": Constant(0.5)}, 20)
    return prices


@pytest.mark.parametrize(
    ("sequences", "until", "price"),
    [
        (drop(30), 60, 0),
        (drop(30, gamma=0.2), 60, 30),  # leaves at the drop
        (drop(20), 60, 40),
        (drop(45), 60, 30),
        (drop(45), 30, 0),  # the same as far as the trials are compared
        ({**drop(30), "wd": Piecewise([0.5, 0.1], boundaries=[50])}, 60, 10),
        ({**drop(30), "wd": Constant(0.1)}, 60, 60),  # differs from step 0 on
        ({"lr": Constant(0.3), "wd": Constant(0.5)}, 60, 40),  # a trunk that ended at 20
        ({"lr": Exponential(0.1, gamma=0.9), "wd": Constant(0.5)}, 60, 59),
        ({"lr": Constant(0.1)}, 60, 60),  # lacks a hyper-parameter
    ],
)
def test_price_is_what_no_trial_has_in_common(
    prices: Prices, sequences: dict[str, Sequence], until: int, price: int
) -> None:
    assert prices.price(sequences, until) == price


def test_prices_without_a_trial_are_all_steps() -> None:
    assert Prices().price(drop(30), 60) == 60


def test_price_falls_as_a_trial_goes_on(prices: Prices) -> None:
    trunk = {"lr": Constant(0.3), "wd": Constant(0.5)}
    prices.store(1, trunk, 50)
    assert prices.price(trunk, 60) == 10
    prices.store(1, trunk, 30)  # it is stored further
    assert prices.price(trunk, 60) == 10
