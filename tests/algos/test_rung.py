"""A rung promotes as the naive definition does, with every arrival at once."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.algos.rung import Rung

LOSSES = st.lists(
    st.one_of(
        st.integers(0, 5).map(float),
        st.floats(allow_nan=False, allow_infinity=False),
        st.just(math.inf),
    ),
    max_size=60,
)
ETAS = st.integers(2, 5)


def top(losses: list[float], eta: int) -> list[int]:
    """Return the definition's top: of equal losses the earlier, then the later."""
    ranked = sorted(range(len(losses)), key=lambda trial: losses[trial])
    return ranked[: len(losses) // eta]


@given(losses=LOSSES, eta=ETAS)
def test_each_arrival_promotes_at_most_one_trial(losses: list[float], eta: int) -> None:
    rung, promoted = Rung(eta), set[int]()
    for trial, loss in enumerate(losses):
        found = rung.record(loss, trial)
        finite = [one for one in top(losses[: trial + 1], eta) if losses[one] < math.inf]
        promotable = set(finite) - promoted
        assert promotable == (set() if found is None else {found})
        promoted |= promotable
        assert len(rung) == trial + 1


@given(losses=LOSSES.filter(bool), eta=ETAS)
def test_the_cutoff_is_the_last_of_the_top_or_the_best(losses: list[float], eta: int) -> None:
    rung = Rung(eta)
    for trial, loss in enumerate(losses):
        rung.record(loss, trial)
    assert rung.cutoff == sorted(losses)[max(1, len(losses) // eta) - 1]


@given(losses=LOSSES, eta=ETAS, cut=st.integers(0, 60))
def test_a_restored_rung_goes_on_as_the_first_would(
    losses: list[float], eta: int, cut: int
) -> None:
    whole, first = Rung(eta), Rung(eta)
    expected = [whole.record(loss, trial) for trial, loss in enumerate(losses)]
    for trial, loss in enumerate(losses[:cut]):
        first.record(loss, trial)
    text = json.dumps(first.to_json(), allow_nan=False)
    second = Rung.from_json(eta, json.loads(text))
    assert json.dumps(second.to_json()) == text
    rest = [second.record(loss, trial) for trial, loss in list(enumerate(losses))[cut:]]
    assert rest == expected[cut:]


def test_first_promotion_is_the_best_of_eta_arrivals() -> None:
    rung = Rung(eta=3)
    assert [rung.record(loss, trial) for trial, loss in enumerate([0.3, 0.1, 0.2])] == [
        None,
        None,
        1,
    ]


def test_of_equal_losses_the_first_to_arrive_is_promoted_first() -> None:
    rung = Rung(eta=2)
    assert [rung.record(0.5, trial) for trial in (7, 3, 5, 1)] == [None, 7, None, 3]


def test_an_infinite_loss_takes_its_place_but_is_never_promoted() -> None:
    rung = Rung(eta=2)
    assert [rung.record(math.inf, trial) for trial in range(4)] == [None] * 4
    # Now the top has two places, both held by infinite losses, of which one has to go.
    assert rung.record(0.1, 4) == 4
    assert rung.record(0.2, 5) == 5
    assert rung.record(math.inf, 6) is None


@pytest.mark.parametrize("eta", [2, 4])
def test_wrong_promotions_grow_as_the_square_root(eta: int) -> None:
    """Section 3.3 of the paper: promoted, but at last not in the top, are about sqrt(n)."""
    for number in (100, 1000, 10_000):
        wrong = []
        for seed in range(10):
            losses = list(np.random.default_rng((seed, number)).random(number))
            rung = Rung(eta)
            found = {rung.record(loss, trial) for trial, loss in enumerate(losses)} - {None}
            assert set(top(losses, eta)) <= found
            wrong.append(len(found) - number // eta)
        assert np.mean(wrong) <= math.sqrt(number)
        assert max(wrong) <= 2 * math.sqrt(number)


def test_a_report_takes_much_less_than_a_kibibyte() -> None:
    losses = list(np.random.default_rng(0).random(20_000))
    tracemalloc.start()
    rung = Rung(eta=4)
    for trial, loss in enumerate(losses):
        rung.record(loss, trial)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(rung) < 300
