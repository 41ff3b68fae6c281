"""Lone runs, and what a tuner makes of them when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from optuna.samplers import TPESampler

from dasktune.algos import ASHA, PBT, SHA, Grid, Random
from dasktune.algos.base import Tuner
from dasktune.sequences import Constant, MultiStep
from dasktune.space import Float, Space
from dasktune.storage.codec import encode
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import Objective
from tests.chaos.builtin import Descent
from tests.chaos.lone import Alone, undisturbed

LOSS = Objective.single("loss", "minimize")
CALM = {"pace": 0}
SEQUENCES = {"lr": MultiStep(0.1, [3], gamma=0.5), "momentum": Constant(0.5)}


def alone(trainer: type = Descent, report_every: int = 1) -> Alone:
    return Alone(trainer, config=CALM, seed=3, report_every=report_every)


@pytest.mark.parametrize("report_every", [1, 3])
def test_a_configuration_is_trained_as_run_alone_trains_it(report_every: int) -> None:
    expected = run_alone(
        Descent, SEQUENCES, 7, config=CALM, seed=3, report_every=report_every, states_at=range(1, 8)
    )
    found = alone(report_every=report_every).run(SEQUENCES, 7, asked=[7])
    assert found.metrics == expected.metrics
    assert list(found.digests) == [encode(state).digest for state in expected.states.values()]
    assert not found.error


def test_lone_run_trains_a_configuration_once() -> None:
    one = alone(report_every=4)
    assert len(one.run(SEQUENCES, 5).digests) == 5
    assert one.run(SEQUENCES, 3, asked=[4]) is one.run(SEQUENCES, 5)
    assert one.steps == 5
    assert 3 in one.run(SEQUENCES, 3, asked=[3]).metrics
    assert one.steps == 10
    longer = one.run(SEQUENCES, 6)
    assert (len(longer.digests), {*longer.metrics}) == (6, {3, 4})
    assert one.run(SEQUENCES, 6, seed=1).digests != longer.digests


class Failing(Descent):
    """Raises at its fourth step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.done = 0

    def train(self) -> None:
        self.done += 1
        if self.done == 4:
            raise ValueError("boom")
        super().train()


def test_what_fails_is_known_up_to_there() -> None:
    one = alone(Failing)
    found = one.run(SEQUENCES, 6, asked=[6])
    assert (len(found.digests), found.error) == (3, "ValueError: boom")
    assert one.run(SEQUENCES, 6, asked=[6]) is found


SPACE = Space(lr=[0.01, 0.1, 0.2, 0.3], momentum=[0.0, 0.5])


@pytest.mark.parametrize(
    ("tuner", "told"),
    [
        (Grid(SPACE, max_steps=4), [(4,)] * 8),
        (Random(SPACE, trials=3, max_steps=2, seed=1), [(2,)] * 3),
        (SHA(SPACE, trials=4, max_steps=4, min_steps=2, eta=2, seed=0), [(2,), (2,), (2, 4)]),
    ],
    ids=["grid", "random", "sha"],
)
def test_orderly_tuners_have_an_undisturbed_run(tuner: Tuner, told: list[tuple[int, ...]]) -> None:
    found = undisturbed(tuner, alone(), LOSS)
    assert found is not None
    for steps in told:
        assert steps in found.values()


@pytest.mark.parametrize(
    "tuner",
    [
        ASHA(SPACE, trials=4, max_steps=4, seed=0),
        PBT(Space(lr=Float(0.1, 0.2)), population=5, max_steps=4, every=2, seed=0),
        Random(Space(lr=Float(0.1, 0.2)), trials=4, max_steps=2, sampler=TPESampler()),
    ],
    ids=["asha", "pbt", "learning"],
)
def test_what_depends_on_the_order_of_events_has_none(tuner: Tuner) -> None:
    assert undisturbed(tuner, alone(), LOSS) is None


def test_an_undisturbed_run_in_which_trials_fail_is_not_known() -> None:
    assert undisturbed(Grid(SPACE, max_steps=3), alone(Failing), LOSS) is not None
    assert undisturbed(Grid(SPACE, max_steps=6), alone(Failing), LOSS) is None
