"""FreezeThaw: who goes on, what a budget is spent on, and what the event log holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

import dasktune as dt
from dasktune.algos.base import Proposal
from dasktune.algos.branching.continuing import ContinuingSource
from dasktune.algos.freeze_thaw import FreezeThaw
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep
from dasktune.space import DefinedByRun, Float, Space
from dasktune.types import Decision, Extend, Finish, Register, Report

STEPS = 24
RATES = dt.Family(MultiStep, init=Float(0.01, 1.0, log=True), milestones=[[8], [16]], gamma=0.1)
SPACE = Space(lr=[RATES, dt.Family(Constant, value=Float(0.01, 1.0, log=True))])


def loss_of(values: Any, step: int) -> float:
    """Return a loss that is least for a rate of 0.1 whose drop was not early."""
    return abs(math.log10(values["lr"]) + 1) + 1 / step


class Run:
    """A tuner on one worker, with the proposals of each call.

    Parameters
    ----------
    tuner
        The tuner.
    fed
        The proposals of a run before, by call.
    """

    def __init__(self, tuner: FreezeThaw, fed: list[list[Proposal]] | None = None) -> None:
        self.tuner, self.fed = tuner, fed
        self.sequences: dict[int, Any] = {}
        self.decisions: list[Decision] = []
        self.proposals: list[list[Proposal]] = []

    def call(self, asked: Callable[[], list[Decision]]) -> list[Decision]:
        """Return the decisions of one call."""
        self.tuner.feed_proposals(self.fed[len(self.proposals)] if self.fed else ())
        decisions = asked()
        self.proposals.append(json.loads(json.dumps(self.tuner.take_proposals())))
        self.decisions += decisions
        for each in decisions:
            if isinstance(each, Register):
                self.sequences[each.trial] = each.sequences
        return decisions

    def to_the_end(self) -> Run:
        """Train until the tuner finishes."""
        while not isinstance((asked := self.call(lambda: self.tuner.ask(1)))[-1], Finish):
            assert isinstance(asked[-1], Extend)
            self.report(asked[-1])
        return self

    def report(self, extend: Extend) -> None:
        """Report what was trained."""
        values = {name: of(extend.until - 1) for name, of in self.sequences[extend.trial].items()}
        losses = (loss_of(values, extend.until),)
        report = Report(trial=extend.trial, step=extend.until, metrics={}, losses=losses)
        assert self.call(lambda: self.tuner.tell(report)) == []


def tuner(**changes: Any) -> FreezeThaw:
    return FreezeThaw(**{"space": SPACE, "budget": 150, "max_steps": STEPS, "seed": 1, **changes})


def test_freeze_thaw_trains_promising_trials_to_the_end() -> None:
    ran = dt.simulate(tuner(budget=300), loss_of)
    in_full = [trial for trial in ran.trials if trial.steps == STEPS]
    paused = [trial for trial in ran.trials if trial.steps < STEPS]
    assert in_full
    assert len(paused) > len(in_full)
    best = min(trial.value for trial in ran.trials)
    assert best < 0.2
    assert best == min(trial.value for trial in in_full)


@pytest.mark.parametrize("budget", [24, 150])
def test_freeze_thaw_trains_no_more_than_its_budget(budget: int) -> None:
    ran = dt.simulate(tuner(budget=budget), loss_of, workers=3)
    assert 0 < ran.summary()["steps_executed"] <= budget
    assert max(trial.steps for trial in ran.trials) == STEPS


def test_freeze_thaw_begins_a_twig_beyond_its_trunk() -> None:
    """Each request trains steps that no trial had before; the budget counts these alone."""
    run = Run(tuner()).to_the_end()
    trained: set[tuple[Any, ...]] = set()
    shared = 0
    for each in run.decisions:
        if isinstance(each, Extend):
            values = run.sequences[each.trial]["lr"].values(0, each.until)
            states = {tuple(values[:step]) for step in range(1, each.until + 1)}
            assert tuple(values) not in trained
            shared += len(states & trained) > 0 and tuple(values[:1]) != tuple(values)
            trained |= states
    assert shared
    assert run.tuner.snapshot()["state"]["trained"] == len(trained)  # type: ignore[index, call-overload]


def test_freeze_thaw_of_a_small_grid_trains_all_once() -> None:
    space = Space(lr=[0.1, MultiStep(0.1, [16], gamma=0.1)])
    ran = dt.simulate(FreezeThaw(space, budget=1000, max_steps=STEPS), loss_of)
    assert [trial.steps for trial in ran.trials] == [STEPS, STEPS]
    assert ran.summary()["steps_executed"] == STEPS + 8


def test_replay_of_freeze_thaw_chooses_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tuner()).to_the_end()
    full = Run(tuner(budget=STEPS))
    full.call(lambda: full.tuner.ask(2))
    assert [each.get("trial", "new") for each in full.proposals[0]] == ["new", None]
    continued = [each for call in run.proposals for each in call if each.get("trial") is not None]
    assert continued

    def refuse(*arguments: Any, **options: Any) -> Proposal:
        raise LookupError("asked")

    monkeypatch.setattr(ContinuingSource, "choose", refuse)
    again = Run(tuner(), run.proposals).to_the_end()
    assert (again.decisions, again.proposals) == (run.decisions, run.proposals)
    again = Run(tuner(budget=STEPS), full.proposals)
    assert again.call(lambda: again.tuner.ask(2)) == full.decisions


def test_freeze_thaw_takes_queued_points_first() -> None:
    first = tuner()
    first.prepare({"queued": [{"lr": "Constant", "lr.Constant.value": 0.5}]})
    register, extend = first.ask(1)
    assert isinstance(register, Register)
    assert register.sequences["lr"] == Constant(0.5)
    assert extend == Extend(trial=0, until=6, priority=-1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"budget": 23}, r"budget must be >= max_steps \(24\), got 23"),
        ({"budget": 1.5}, "budget must be"),
        ({"min_steps": 25}, r"min_steps must be <= max_steps \(24\), got 25"),
        ({"eta": 1}, "eta must be >= 2, got 1"),
        ({"explore": 1.1}, "explore must be >= 0 and <= 1, got 1.1"),
        ({"startup": 0}, "startup must be >= 1, got 0"),
        ({"space": DefinedByRun(lambda trial: {"lr": 0.1})}, r"space must be a dasktune\.Space"),
    ],
)
def test_bad_arguments_of_freeze_thaw_are_refused(changes: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        tuner(**changes)


def test_budget_may_be_larger_than_any_number_of_trials() -> None:
    large = tuner(budget=3_000_000, max_steps=20_000)
    assert large.options.budget == large.most_steps == 3_000_000
    assert any(isinstance(each, Extend) for each in large.ask(1))
