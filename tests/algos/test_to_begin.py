"""How many trials tuners say that they would still begin for workers that are free."""

from __future__ import annotations

import optuna
import pytest

from dasktune.algos import ASHA, SHA, Grid, Random
from dasktune.algos.base import Tuner
from dasktune.algos.repeats import Repeats
from dasktune.space import Float, Space
from dasktune.types import Register

SPACE = Space(lr=Float(0.1, 0.2))


def learning() -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=0)


@pytest.mark.parametrize(
    "tuner",
    [
        Grid(Space(lr=[0.1, 0.2]), max_steps=4),
        Random(SPACE, trials=3, max_steps=4),
        SHA(SPACE, trials=8, max_steps=4, eta=2),
        ASHA(SPACE, trials=8, max_steps=4),
        Repeats(Random(SPACE, trials=3, max_steps=4), seeds=2),
    ],
    ids=lambda tuner: type(tuner).__name__,
)
def test_tuners_that_ask_for_all_at_once_have_none_to_begin(tuner: Tuner) -> None:
    assert tuner.to_begin
    tuner.ask(1)
    assert tuner.to_begin == 0
    assert tuner.ask(9) == []


@pytest.mark.parametrize("seeds", [1, 2])
def test_those_whose_sampler_learns_begin_what_they_have_left(seeds: int) -> None:
    tuner = Repeats(Random(SPACE, trials=5, max_steps=4, sampler=learning()), seeds=seeds)
    tuner.ask(2 * seeds)
    assert tuner.to_begin == 3 * seeds
    begun = [one for one in tuner.ask(99) if isinstance(one, Register)]
    assert len(begun) == 3 * seeds
    assert tuner.to_begin == 0
