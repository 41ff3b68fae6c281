"""The name of the learning rate, for tuners that predict learning curves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dasktune.algos import POP, EarlyTerm, Tuner
from dasktune.algos.curves import Persistence
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep
from dasktune.space import Branch, Float, Space
from dasktune.types import Predict, Register
from tests.algos.reports import arrived

SPACE = Space(eta=[MultiStep(0.5, milestones=[4], gamma=0.5), Constant(0.3)], lr=Float(1.0, 2.0))
TUNERS = (EarlyTerm, POP)


def make(kind: type[Tuner], **options: Any) -> Tuner:
    made = kind(SPACE, trials=4, max_steps=8, every=2, predictor=Persistence(), **options)  # type: ignore[call-arg]
    made.prepare({"directions": ["minimize"]})
    return made


def rates(tuner: Tuner) -> dict[int, tuple[tuple[int, float], ...]]:
    """Return the learning rates in the questions of trials that were asked about."""
    return {trial: tuner.question(trial).curve.rates for trial in (0, 1, 2, 3)}


@pytest.mark.parametrize("kind", TUNERS)
def test_tuner_gives_its_predictor_the_named_rate(kind: type[Tuner]) -> None:
    named, default = make(kind, rate="eta"), make(kind)
    for tuner in (named, default):
        tuner.ask(4)
    known = set(rates(named).values())
    assert known <= {((0, 0.5), (4, 0.25)), ((0, 0.3),)}
    assert all(1.0 <= value <= 2.0 for pairs in rates(default).values() for _, value in pairs)


@pytest.mark.parametrize("kind", TUNERS)
def test_restored_tuner_gives_new_trials_the_named_rate(kind: type[Tuner]) -> None:
    tuner, again = make(kind, rate="eta"), make(kind, rate="eta")
    tuner.ask(4)
    again.restore(json.loads(json.dumps(tuner.snapshot())))
    assert rates(again) == rates(tuner)
    assert again.identity() == tuner.identity()
    fresh = make(kind, rate="eta")
    again.restore(json.loads(json.dumps(fresh.snapshot())))
    again.ask(4)
    assert rates(again) == rates(tuner)


@pytest.mark.parametrize("kind", TUNERS)
def test_rate_is_part_of_the_identity_only_if_given(kind: type[Tuner]) -> None:
    assert "rate" not in make(kind).identity()
    assert make(kind, rate="eta").identity()["rate"] == "eta"


@pytest.mark.parametrize("kind", TUNERS)
def test_unknown_rate_is_refused_before_training(kind: type[Tuner]) -> None:
    with pytest.raises(ConfigurationError, match="rate: unknown hyper-parameter 'rte'; known: eta"):
        make(kind, rate="rte")
    with pytest.raises(ConfigurationError, match="rate must be the name of a hyper-parameter"):
        make(kind, rate=3)


@pytest.mark.parametrize("kind", TUNERS)
def test_trials_of_a_branch_without_the_rate_have_none(kind: type[Tuner]) -> None:
    branches = [Branch("net", Space(eta=Float(0.1, 0.2))), Branch("trees", Space(depth=[2, 3]))]
    space = Space(model=branches)
    tuner = kind(space, trials=8, max_steps=8, every=2, predictor=Persistence(), rate="eta")  # type: ignore[call-arg]
    tuner.prepare({"directions": ["minimize"]})
    made = [decision for decision in tuner.ask(8) if isinstance(decision, Register)]
    has_rate = {each.trial: "eta" in each.sequences for each in made}
    assert {*has_rate.values()} == {True, False}
    for trial, is_there in has_rate.items():
        assert bool(tuner.question(trial).curve.rates) == is_there


def test_prediction_is_asked_for_with_the_named_rate() -> None:
    tuner = make(EarlyTerm, rate="eta")
    tuner.ask(4)
    told: list[object] = []
    for step in (2, 4):
        for trial in range(4):
            loss = 1.0 / (1 + trial + step)
            told += tuner.tell(arrived(trial, step, loss))
    asked = [decision.trial for decision in told if isinstance(decision, Predict)]
    assert asked
    assert tuner.question(asked[0]).curve.rates == rates(tuner)[asked[0]]
