"""A predictor may be named, be given, or be left out; all else is refused in words that help."""

from __future__ import annotations

import pytest

from dasktune.algos.curves import (
    PREDICTORS,
    CurveEnsemble,
    Mixture,
    Persistence,
    predictor_of,
)
from dasktune.algos.curves.named import checked_predictor
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictor_of_a_name_has_default_arguments(name: str) -> None:
    assert predictor_of(name).identity() == PREDICTORS[name]().identity()
    assert predictor_of(name).identity()["predictor"] == name


def test_an_instance_is_taken_as_it_is_and_none_is_the_fast_one() -> None:
    mine = CurveEnsemble(walkers=96, samples=8)
    assert predictor_of(mine) is mine
    assert predictor_of(None).identity() == Mixture().identity()


@pytest.mark.parametrize("given", ["persistence", "", 3, Persistence, object()])
def test_all_else_is_refused_with_what_there_is(given: object) -> None:
    words = (
        "predictor must be one of CurveEnsemble, Mixture, Persistence, PriorFitted, or an instance"
    )
    with pytest.raises(ConfigurationError, match=words):
        predictor_of(given)  # type: ignore[arg-type]


def test_a_tuner_says_it_with_its_other_problems() -> None:
    check = Arguments("POP")
    check.add("window must be >= 1, got 0")
    assert checked_predictor(check, "mcmc").identity() == Mixture().identity()
    assert len(check.problems) == 2
    assert check.problems[1].startswith("POP: predictor must be one of CurveEnsemble, ")
    assert check.problems[1].endswith("got 'mcmc'")
