"""The sampler `Branching`: its proposals, its rule of exploration, and going on after a stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.algos import Random
from dasktune.algos.base import Proposal
from dasktune.algos.branching import sampler
from dasktune.algos.branching.model import expected_improvement
from dasktune.algos.branching.sampler import Branching, BranchingSource
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, MultiStep, Piecewise
from dasktune.space import Branch, DefinedByRun, Family, Float, Space
from dasktune.types import Decision, Register, Report, Sequences

STEPS = 24
SPACE = Space(
    lr=Family(MultiStep, init=Float(0.01, 1.0, log=True), milestones=[[8], [16], [20]], gamma=0.1),
    momentum=[0.0, 0.9, Piecewise([0.9, 0.5], boundaries=[18])],
)


def loss_of(sequences: Sequences) -> float:
    """Return a loss that is least for a rate of 0.1 that drops late."""
    early, late = float(sequences["lr"](0)), float(sequences["lr"](19))  # type: ignore[arg-type]
    return abs(math.log10(early) + 1) + 0.2 * abs(math.log10(late) + 1)


def played(trials: int, **arguments: Any) -> tuple[BranchingSource, list[int], list[Proposal]]:
    """Return a source after so many trials, the prices of its proposals, and the proposals."""
    source = Branching(**arguments).source(SPACE, 7)
    return source, *gone_on(source, trials)


def gone_on(source: BranchingSource, trials: int) -> tuple[list[int], list[Proposal]]:
    """Return the prices of so many proposals of a source, and the proposals."""
    prices: list[int] = []
    proposals: list[Proposal] = []
    for trial in range(trials):
        proposal = source.propose(trial)
        sequences = source.accept(trial, proposal).sequences
        prices.append(source.prices.price(sequences, STEPS))
        proposals.append(json.loads(json.dumps(proposal)))
        source.observe(trial, STEPS, (loss_of(sequences),))
    return prices, proposals


def test_proposals_cost_less_than_those_that_ignore_prices() -> None:
    _, cheap, _ = played(16, explore=0.1, startup=5)
    _, dear, _ = played(16, explore=1, startup=5)
    assert sum(cheap[5:]) < 0.9 * sum(dear[5:])


@pytest.mark.parametrize(("explore", "startup"), [(1, 5), (0.5, 1), (0.8, 2)])
def test_part_of_the_steps_ignores_prices(
    explore: float, startup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all candidates are equally promising, a proposal that knows prices is the cheapest."""

    source = Branching(explore=explore, startup=startup).source(SPACE, 7)

    def equal(*arguments: Any) -> Any:
        prices = [source.prices.price(*state) for state in arguments[3]]
        return np.array([1.0 + 0.001 * (price == STEPS) for price in prices])

    monkeypatch.setattr(sampler, "improvements", equal)
    prices, _ = gone_on(source, 20)
    steps = of_trunks = startup * STEPS
    for price in prices[startup:]:
        assert (price == STEPS) == (of_trunks <= explore * steps)
        steps += price
        of_trunks += price * (price == STEPS)


def test_first_proposals_are_drawn_at_random() -> None:
    _, _, proposals = played(6, startup=6)
    random = Random(SPACE, trials=6, max_steps=STEPS, seed=7).source
    assert proposals == [random.propose(trial) for trial in range(6)]


def test_equal_arguments_give_equal_proposals() -> None:
    assert played(12)[2] == played(12)[2]


def test_restored_source_proposes_like_an_uninterrupted_one() -> None:
    source, _, _ = played(10)
    source.accept(10, source.propose(10))  # it is pending
    other = Branching().source(SPACE, 7)
    other.restore(json.loads(json.dumps(source.snapshot())))
    assert other.propose(11) == source.propose(11)


def test_source_with_failed_trials_goes_on() -> None:
    source, _, _ = played(8)
    for trial in (8, 9):
        source.accept(trial, source.propose(trial))
        source.fail(trial)
    source.accept(10, source.propose(10))


@pytest.mark.parametrize("seed", range(5))
def test_first_proposal_knows_late_values_of_earlier_trials(seed: int) -> None:
    """All trials have the same first value; those with an early drop were better."""
    space = Space(lr=Family(MultiStep, init=[0.1], milestones=[[8], [20]], gamma=Float(0.1, 0.9)))
    source = Branching().source(space, seed)
    for gamma in (0.1, 0.3, 0.5, 0.7, 0.9):
        for milestones, worse in (("(8,)", 0.0), ("(20,)", 1.0)):
            point = {"lr.milestones": milestones, "lr.gamma": gamma}
            source.earlier(point, STEPS, (gamma + worse,))
    assert not source.earlier_ignored
    drops = source.accept(0, source.propose(0)).sequences["lr"]
    assert float(drops(8)) < 0.05  # type: ignore[arg-type]


def test_known_space_of_few_points_goes_on_at_random() -> None:
    space = Space(lr=[Constant(0.1), MultiStep(0.1, [8], gamma=0.1)])
    source = Branching(startup=1).source(space, 0)
    for trial in range(6):
        source.accept(trial, source.propose(trial))
        source.observe(trial, STEPS, (float(trial),))
    assert source.prices.price({"lr": Constant(0.1)}, STEPS) == 0


def run(tuner: Random, fed: list[list[Proposal]] | None = None) -> tuple[list[Decision], Any]:
    """Return all decisions, and the proposals by call; `fed` are those of a run before."""
    decisions: list[Decision] = []
    proposals: list[list[Proposal]] = []

    def call(asked: Callable[[], list[Decision]]) -> list[Register]:
        tuner.feed_proposals(fed[len(proposals)] if fed else ())
        decided = asked()
        proposals.append(json.loads(json.dumps(tuner.take_proposals())))
        decisions.extend(decided)
        return [each for each in decided if isinstance(each, Register)]

    waiting = call(lambda: tuner.ask(2))
    while waiting:
        first = waiting.pop(0)
        loss = loss_of(first.sequences)
        report = Report(trial=first.trial, step=STEPS, metrics={"loss": loss}, losses=(loss,))
        call(lambda report=report: tuner.tell(report))  # type: ignore[misc]
        waiting += call(lambda: tuner.ask(1))
    return decisions, proposals


def test_replay_decides_the_same_and_proposes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def tuner() -> Random:
        return Random(SPACE, trials=9, max_steps=STEPS, seed=1, sampler=Branching())

    decisions, proposals = run(tuner())

    def refuse(self: BranchingSource, trial: int) -> Proposal:
        raise LookupError("asked")

    monkeypatch.setattr(BranchingSource, "propose", refuse)
    assert run(tuner(), proposals) == (decisions, proposals)


@pytest.mark.parametrize("name", ["explore", "startup"])
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, True, "2"])
def test_arguments_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be"):
        Branching(**{name: value})  # type: ignore[arg-type]


def test_space_that_a_function_defines_is_refused() -> None:
    space = DefinedByRun(lambda trial: {"lr": trial.suggest_float("lr", 0.1, 1.0)})
    with pytest.raises(ConfigurationError, match=r"space must be a dasktune\.Space"):
        Random(space, trials=3, max_steps=3, sampler=dt.samplers.Branching())


def test_space_without_sequences_is_refused() -> None:
    space = Space(lr=Float(0.1, 1.0), layers=[1, Branch(2, Space(width=[8, 16]))])
    with pytest.raises(ConfigurationError, match="changes with the step, got lr, layers, width"):
        Random(space, trials=3, max_steps=3, sampler=dt.samplers.Branching())


def test_sequence_inside_a_branch_is_enough() -> None:
    space = Space(layers=[1, Branch(2, Space(lr=[0.1, MultiStep(0.1, [2], gamma=0.1)]))])
    dt.simulate(
        Random(space, trials=9, max_steps=3, sampler=Branching(startup=2)),
        lambda values, step: float(values["layers"]) / step,
    )


def test_improvement_of_sure_points_is_their_gain() -> None:
    gains = expected_improvement(0.5, np.array([0.2, 0.9]), np.array([1e-6, 1e-6]))
    assert gains == pytest.approx([0.3, 0.0], abs=1e-6)
