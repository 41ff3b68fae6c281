"""Repeats over seeds: one tuner's trials, each of them trained several times."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

import dasktune as dt
from dasktune.algos import Grid, Random, Tuner
from dasktune.algos.repeats import Repeats
from dasktune.algos.stopping import MedianStopping
from dasktune.errors import ConfigurationError
from dasktune.graph.cost import cost_of
from dasktune.space import Float, Space
from dasktune.types import (
    Decision,
    Extend,
    Finish,
    Rank,
    Register,
    Report,
    Step,
    Stop,
    Value,
)

SPACE = Space(lr=Float(0.01, 1.0))


class Scripted(Tuner):
    """Two trials; answers with what it is given, and keeps what it is told."""

    max_steps = 9
    state = ("heard",)

    def __init__(self, *answers: list[Decision]) -> None:
        self.answers = list(answers)
        self.heard: list[object] = []
        self.told: list[Report] = []
        self.asked: list[int] = []

    def ask(self, capacity: int) -> list[Decision]:
        self.asked.append(capacity)
        return [
            Register(trial=0, sequences={}, max_steps=9, params={"a": 1}),
            Register(trial=1, sequences={}, max_steps=9),
            Extend(trial=0, until=3, priority=2.0),
            Extend(trial=1, until=3, reports=(1, 2)),
        ]

    def tell(self, report: Report) -> list[Decision]:
        self.told.append(report)
        self.heard.append([report.trial, report.step])
        return self.answers.pop(0) if self.answers else []

    def tell_failure(self, trial: int) -> list[Decision]:
        self.heard.append(trial)
        return self.answers.pop(0) if self.answers else []

    def identity(self) -> dict[str, object]:
        return {"tuner": "Scripted"}


def report(trial: int, step: Step, *losses: float, **metrics: float) -> Report:
    return Report(trial=trial, step=step, metrics=metrics, losses=losses)


def test_each_trial_becomes_one_a_seed() -> None:
    inner = Scripted()
    decisions = Repeats(inner, seeds=3).ask(4)
    assert inner.asked == [2]
    registered = [one for one in decisions if isinstance(one, Register)]
    assert [(one.trial, one.seed) for one in registered] == list(enumerate([0, 1, 2] * 2))
    assert [one.params for one in registered] == [{"a": 1}] * 3 + [{}] * 3
    assert decisions[6:] == [
        *(Extend(trial=trial, until=3, priority=2.0) for trial in range(3)),
        *(Extend(trial=trial, until=3, reports=(1, 2)) for trial in range(3, 6)),
    ]


def test_decision_for_a_trial_holds_for_all_its_repeats() -> None:
    answer: list[Decision] = [Rank(trial=1, priority=3.0), Stop(trial=0), Finish()]
    tuner = Repeats(Scripted(answer), seeds=2)
    tuner.ask(1)
    assert tuner.tell(report(0, 3, 1.0)) == []
    assert tuner.tell(report(1, 3, 2.0)) == [
        Rank(trial=2, priority=3.0),
        Rank(trial=3, priority=3.0),
        Stop(trial=0),
        Stop(trial=1),
        Finish(),
    ]


def test_step_is_reported_once_after_the_last_repeat() -> None:
    inner = Scripted()
    tuner = Repeats(inner, seeds=2)
    tuner.ask(1)
    for trial, step in ((2, 1), (2, 2), (0, 3), (3, 1), (1, 3), (3, 2)):
        tuner.tell(report(trial, step, float(trial)))
    assert [(one.trial, one.step, one.losses) for one in inner.told] == [
        (1, 1, (2.5,)),
        (0, 3, (0.5,)),
        (1, 2, (2.5,)),
    ]


@pytest.mark.parametrize(
    ("aggregate", "losses", "metrics"),
    [
        ("mean", (3.0, -2.0), {"acc": 0.4}),
        ("median", (2.0, -2.0), {"acc": 0.5}),
        ("worst", (6.0, -1.0), {"acc": 0.6, "only": 1.0}),
    ],
)
def test_losses_and_metrics_are_aggregated(
    aggregate: str, losses: tuple[float, ...], metrics: Mapping[str, float]
) -> None:
    inner = Scripted()
    tuner = Repeats(inner, seeds=3, aggregate=aggregate)
    tuner.ask(1)
    tuner.tell(report(2, 3, 2.0, -3.0, acc=0.5))
    tuner.tell(report(0, 3, 1.0, -2.0, acc=0.1))
    tuner.tell(report(1, 3, 6.0, -1.0, acc=0.6, only=1.0))
    (told,) = inner.told
    assert told.losses == pytest.approx(losses)
    assert told.metrics == pytest.approx(metrics)


@pytest.mark.parametrize("aggregate", ["mean", "median", "worst"])
def test_one_infinite_loss_makes_the_aggregate_infinite(aggregate: str) -> None:
    inner = Scripted()
    tuner = Repeats(inner, seeds=3, aggregate=aggregate)
    tuner.ask(1)
    for trial, loss in enumerate([1.0, math.inf, 2.0]):
        tuner.tell(report(trial, 3, loss, 1.0, acc=math.nan if loss == math.inf else loss))
    (told,) = inner.told
    assert told.losses == (math.inf, 1.0)
    assert math.isnan(told.metrics["acc"])


def test_first_failed_repeat_fails_the_trial() -> None:
    inner = Scripted([Extend(trial=1, until=5)])
    tuner = Repeats(inner, seeds=3)
    tuner.ask(1)
    tuner.tell(report(0, 3, 1.0))
    assert tuner.tell_failure(1) == [
        Stop(trial=0),
        Stop(trial=2),
        *(Extend(trial=trial, until=5) for trial in (3, 4, 5)),
    ]
    assert tuner.tell_failure(2) == []
    assert tuner.tell(report(2, 3, 1.0)) == []
    assert inner.heard == [0]


def test_repeat_ahead_of_others_is_extended_from_its_step() -> None:
    answers: list[list[Decision]] = [
        [Extend(trial=1, until=7, reports=(2, 5))],
        [Extend(trial=1, until=2)],
    ]
    tuner = Repeats(Scripted(*answers), seeds=2)
    tuner.ask(1)
    tuner.tell(report(2, 1, 1.0))
    tuner.tell(report(2, 2, 1.0))
    assert tuner.tell(report(3, 1, 1.0)) == [
        Extend(trial=2, until=7, reports=(5,)),
        Extend(trial=3, until=7, reports=(2, 5)),
    ]
    tuner = Repeats(Scripted(*answers[1:]), seeds=2)
    tuner.ask(1)
    tuner.tell(report(2, 1, 1.0))
    tuner.tell(report(2, 2, 1.0))
    assert tuner.tell(report(3, 1, 1.0)) == [Extend(trial=3, until=2)]


def test_snapshot_keeps_reports_that_wait_for_repeats() -> None:
    def begun() -> tuple[Scripted, Repeats]:
        inner = Scripted()
        return inner, Repeats(inner, seeds=2)

    _, tuner = begun()
    tuner.ask(1)
    tuner.tell(report(0, 3, math.inf, acc=math.nan, other=-math.inf))
    tuner.tell(report(2, 1, 0.25, acc=0.5))
    tuner.tell_failure(1)
    tuner.tell(report(2, 2, 0.5, acc=0.5))
    state = json.loads(json.dumps(tuner.snapshot(), allow_nan=False))
    inner, other = begun()
    other.restore(state)
    assert other.snapshot() == state
    assert other.tell(report(1, 3, 1.0)) == []
    other.tell(report(3, 1, 0.75, acc=1.5))
    assert inner.told == [Report(trial=1, step=1, metrics={"acc": 1.0}, losses=(0.5,))]
    with pytest.raises(ConfigurationError, match="not a snapshot"):
        other.restore({"waiting": []})


def test_repeats_of_queued_points_are_tried_first() -> None:
    queued = [{"lr": 0.5}, {"lr": 0.25}]
    tuner = Repeats(Random(SPACE, trials=4, max_steps=6))
    tuner.prepare({"queued": queued})
    registered = [trial for trial in tuner.ask(9) if isinstance(trial, Register)]
    assert [trial.point for trial in registered[:6]] == [queued[0]] * 3 + [queued[1]] * 3


def test_repeats_have_the_properties_of_the_other_tuner() -> None:
    inner = Random(SPACE, trials=2, max_steps=9, seed=3)
    tuner = Repeats(inner, seeds=2)
    assert inner.configurations is not None
    first, second = inner.configurations
    repeated = [(one, replace(one, seed=1)) for one in (first, second)]
    assert tuner.configurations == (*repeated[0], *repeated[1])
    assert (tuner.max_steps, tuner.most_queued, tuner.learns) == (9, 2, False)
    assert tuner.several_objectives
    assert not Repeats(MedianStopping(SPACE, trials=2, max_steps=9)).several_objectives
    assert Repeats(Scripted()).configurations is None
    identities = [
        Repeats(inner).identity(),
        Repeats(inner, seeds=2).identity(),
        Repeats(inner, aggregate="worst").identity(),
        Repeats(Random(SPACE, trials=2, max_steps=9)).identity(),
    ]
    assert len({json.dumps(one, sort_keys=True) for one in identities}) == 4
    wider = Repeats(Random(SPACE, trials=5, max_steps=9, seed=3), seeds=2)
    assert wider.widened_from(Repeats(inner, seeds=3).identity()) is None
    assert wider.widened_from(inner.identity()) is None
    assert wider.widened_from(tuner.identity()) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Repeats(Scripted(), seeds=0), "seeds must be >= 1, got 0"),
        (lambda: Repeats(Scripted(), aggregate="best"), "aggregate 'best'; known: mean, median"),
        (lambda: Repeats("Random"), "tuner must be a tuner, got 'Random'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_repeats_are_simulated_as_trials_of_their_own() -> None:
    def curve(values: Mapping[str, Value], step: Step) -> float:
        lr = values["lr"]
        assert isinstance(lr, float)
        return lr / step

    inner = Random(SPACE, trials=4, max_steps=6)
    found = dt.simulate(Repeats(inner, seeds=3), curve, workers=2)
    assert len(found.trials) == 12
    # Other seeds, other states: nothing is shared between the repeats.
    assert found.steps_executed == 12 * 6
    assert [record.seed for record in found.records.values()] == [0, 1, 2] * 4


def test_cost_of_repeats_shares_no_steps() -> None:
    single = Grid(Space(lr=[0.1, 0.2]), max_steps=5)
    known = Repeats(single, seeds=3).configurations
    assert known is not None
    assert [one.seed for one in known] == [0, 1, 2, 0, 1, 2]
    trials = [(one.sequences, 5) for one in known]
    cost = cost_of(trials, workers=1, seeds=[one.seed for one in known])
    assert (cost.steps_requested, cost.steps_unique) == (30, 30)
    assert cost_of(trials, workers=1).steps_unique == 10
