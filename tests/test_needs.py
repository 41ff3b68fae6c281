"""Needs of stages: what users may write, and which workers fit."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import ConfigurationError
from dasktune.needs import (
    NO_NEEDS,
    Need,
    Needs,
    NumericClass,
    Offer,
    needs_problems,
    offers_text,
    unmet_text,
)

names = st.sampled_from(["GPU", "cores", "licence"])
amounts = st.dictionaries(names, st.floats(0.01, 8.0), max_size=3)
words = st.sampled_from(["gpu", "a100", "h100", "lab3"])
tags = st.lists(words, max_size=3)
alternatives = st.builds(lambda has, marks: {**has, "tags": marks}, amounts, tags)
given_needs = st.one_of(alternatives, st.lists(alternatives, min_size=1, max_size=3))
offers = st.builds(Offer.of, amounts, st.just("any"), tags)


@pytest.mark.parametrize(
    ("has", "is_met"),
    [(NumericClass(name="b"), True), (NumericClass(name="a"), False), (None, False)],
)
def test_numeric_class_is_met_by_its_name(has: NumericClass | None, is_met: bool) -> None:
    """Whether keys name a class depends on the store, which may have been replaced."""
    needs = NO_NEEDS.on(NumericClass(name="b", in_keys=True))
    assert needs.fits(Offer.of({}, numerics=has)) is is_met


@given(given_needs)
def test_needs_survive_json_and_pickle(written: Any) -> None:
    needs = Needs.of(written)
    assert Needs.of(needs.to_json()) == needs == pickle.loads(pickle.dumps(needs))
    assert Needs.of(needs) is needs


@given(given_needs, offers)
def test_worker_fits_if_it_has_all_of_one_alternative(written: Any, offer: Offer) -> None:
    listed = written if isinstance(written, list) else [written]
    has = dict(offer.amounts)
    expected = any(
        set(each["tags"]) <= offer.tags
        and all(has.get(name, 0) >= amount for name, amount in each.items() if name != "tags")
        for each in listed
    )
    needs = Needs.of(written)
    assert needs.fits(offer) == expected
    claims = needs.claims(offer)
    assert all(claims[name] <= has.get(name, 0) for name in claims)
    if expected:
        assert claims in [dict(need.amounts) for need in needs.alternatives]


@given(given_needs, offers, amounts, tags)
def test_worker_with_more_fits_as_well(
    written: Any, offer: Offer, more: dict[str, float], further: list[str]
) -> None:
    richer = {**dict(offer.amounts)}
    for name, amount in more.items():
        richer[name] = richer.get(name, 0.0) + amount
    needs = Needs.of(written)
    assert needs.fits(offer) <= needs.fits(Offer.of(richer, "any", [*offer.tags, *further]))


@given(given_needs, given_needs)
def test_alternatives_add_up(one: Any, other: Any) -> None:
    both = [*Needs.of(one).to_json(), *Needs.of(other).to_json()]
    needs = Needs.of(both)
    assert set(needs.alternatives) == {*Needs.of(one).alternatives, *Needs.of(other).alternatives}
    for name in ("GPU", "cores"):
        assert needs.least(name) == min(Needs.of(one).least(name), Needs.of(other).least(name))


@pytest.mark.parametrize("written", [None, {}, {"tags": []}, [{"GPU": 1}, {}]])
def test_empty_needs_fit_every_worker(written: Any) -> None:
    assert Needs.of(written).are_none
    assert Needs.of(written).fits(Offer())
    assert Needs.of(None) == NO_NEEDS


def test_tags_are_words_in_any_case() -> None:
    assert Needs.of({"tags": "A100"}) == Needs.of({"tags": ["a100 "]})
    assert Needs.of({"tags": 2}).alternatives == (Need(amounts=(("tags", 2.0),)),)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"GPU": 0}, "needs must be finite numbers > 0 by name, got {'GPU': 0}"),
        ({"GPU": float("nan")}, "needs must be finite numbers > 0 by name, got {'GPU': nan}"),
        ({"GPU": -1, "tags": "a"}, "needs must be finite numbers > 0 by name, got {'GPU': -1}"),
        ({"G\x1b[31m": 1}, "needs must have names that are printable, without blanks at the ends"),
        ({" GPU": 1}, "needs must have names that are printable, without blanks at the ends"),
        ({"G" * 10_000: 1}, "needs must have names that are printable, without blanks at the ends"),
        (
            {"tags": "x" * 10_000},
            "tags of needs must be printable, without blanks at the ends, and",
        ),
        ({"tags": ["\x1b[31mred"]}, "tags of needs must be printable, without blanks at the ends"),
        ({"GPU": True}, "needs must be finite numbers > 0 by name, got {'GPU': True}"),
        ({"tags": ["a b"]}, "tags of needs must be words, got ['a b']"),
        ({"tags": [3]}, "tags of needs must be words, got [3]"),
        ({"tags": ""}, "tags of needs must be words, got ''"),
        ([], "needs must have 1 to 100 alternatives, got 0"),
        ([{"GPU": 1}, "GPU"], "needs must be finite numbers > 0 by name, got 'GPU'"),
        ("GPU", "needs must be a mapping of amounts and tags, a list of such mappings"),
    ],
)
def test_wrong_needs_are_refused_with_the_reason(written: Any, problem: str) -> None:
    (said,) = needs_problems(written)
    assert said.startswith(problem)
    with pytest.raises(ConfigurationError, match="needs"):
        Needs.of(written)


def test_unmet_needs_name_the_nearest_tag() -> None:
    workers = [Offer.of({"GPU": 1}, "H100 80 GB", ["h100"])] * 3
    text = unmet_text(Needs.of({"GPU": 1, "tags": "h10O"}), workers)
    assert text == (
        "no worker has GPU=1, tag h10o; no worker has a tag 'h10o', nearest is 'h100'; "
        "workers: H100 80 GB (GPU=1, tags h100)"
    )
    assert unmet_text(Needs.of({"GPU": 2}), []) == "no worker has GPU=2; there is none"


def test_text_of_many_offers_is_short() -> None:
    text = offers_text(Offer.of({"GPU": number}) for number in range(1, 20))
    assert text.endswith("a worker (GPU=16); 11 kinds more")
