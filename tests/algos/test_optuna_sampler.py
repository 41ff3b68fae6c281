"""Optuna's samplers as sources: what they see, what they propose, and going on after a stop."""

from __future__ import annotations

import json
import logging
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import optuna
import pytest
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.trial import FrozenTrial, TrialState

import dasktune as dt
from dasktune.algos import Random
from dasktune.algos.base import Proposal
from dasktune.algos.optuna_sampler import OptunaSource
from dasktune.algos.samplers import RandomSource
from dasktune.errors import ConfigurationError
from dasktune.sequences import Exponential, MultiStep
from dasktune.space import Branch, Choice, DefinedByRun, Family, Float, Int, Space
from dasktune.space.define_by_run import AnySpace, Suggesting
from dasktune.types import Decision, Extend, Register, Report

LEVELS = {"x": [0.0, 0.5, 1.0], "n": [1, 2, 3], "kind": ["a", "b"], "s": [0.1, 0.3]}

SAMPLERS: dict[str, Callable[[], BaseSampler]] = {
    "random": RandomSampler,
    "tpe": lambda: TPESampler(n_startup_trials=4),
    "tpe-multivariate": lambda: TPESampler(n_startup_trials=4, multivariate=True),
    "tpe-group": lambda: TPESampler(n_startup_trials=4, multivariate=True, group=True),
    "gp": lambda: GPSampler(n_startup_trials=4),
    "cma": CmaEsSampler,
    "cma-margin": lambda: CmaEsSampler(with_margin=True),
    "qmc": QMCSampler,
    "qmc-scrambled": lambda: QMCSampler(scramble=True, warn_asynchronous_seeding=False),
    "nsga-2": lambda: NSGAIISampler(population_size=4),
    "nsga-3": lambda: NSGAIIISampler(population_size=4),
    "grid": lambda: GridSampler(LEVELS),
    "fixed": lambda: PartialFixedSampler({"x": 0.5}, TPESampler(n_startup_trials=4)),
}
EXPERIMENTAL = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
ANYWHERE = [name for name in SAMPLERS if name != "grid"]
TRIALS = {"gp": 8}

FLAT = Space(x=Float(0, 1), n=Int(1, 3), kind=["a", "b"], s=Float(0.1, 0.7, step=0.1))


def made(name: str) -> BaseSampler:
    """Return a sampler as users make it: what is experimental, they are told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SAMPLERS[name]()


def value_of(point: Mapping[str, Any]) -> float:
    """Return a loss that all coordinates have a part in, whatever they are."""
    return sum(
        (value - 0.3) ** 2 if isinstance(value, float) else 0.1 * len(str(value))
        for value in point.values()
    )


def saved(source: OptunaSource) -> Any:
    return json.loads(json.dumps(source.snapshot(), allow_nan=False))


def restored(space: AnySpace, name: str, snapshot: object) -> OptunaSource:
    source = OptunaSource(space, made(name), seed=3)
    source.restore(snapshot)
    return source


def report(source: OptunaSource, trial: int, proposal: Proposal, *, objectives: int = 1) -> None:
    """Report a trial at its rungs, or let it fail, as its number says."""
    loss = value_of(proposal["point"])  # type: ignore[arg-type]
    if trial % 7 == 3:
        source.fail(trial)
        return
    for rung in (1, 3, 9)[: 1 + trial % 3]:
        losses = (loss + 1 / rung, 1 - loss)[:objectives]
        source.observe(trial, rung, (math.inf, 1.0)[:objectives] if trial % 5 == 2 else losses)


def played(space: AnySpace, name: str, objectives: int = 1) -> list[tuple[Proposal, Any]]:
    """Return the proposals of a source, each with its snapshot before; reports come late."""
    source = OptunaSource(space, made(name), seed=3)
    source.expect(objectives)
    found = []
    for trial in range(TRIALS.get(name, 18)):
        before = saved(source)
        proposal = source.propose(trial)
        source.accept(trial, proposal)
        found.append((json.loads(json.dumps(proposal, allow_nan=False)), before))
        if trial >= 2:
            report(source, trial - 2, found[trial - 2][0], objectives=objectives)
    return found


@cache
def played_flat(name: str) -> list[tuple[Proposal, Any]]:
    return played(FLAT, name)


# ------------------------------------------------------------------- going on after a stop


@pytest.mark.parametrize("name", SAMPLERS)
def test_restored_source_proposes_like_an_uninterrupted_one(name: str) -> None:
    for trial, (proposal, before) in enumerate(played_flat(name)):
        assert restored(FLAT, name, before).propose(trial) == proposal


@pytest.mark.parametrize("name", ["tpe", "tpe-group", "nsga-2", "nsga-3", "gp"])
def test_a_source_of_two_objectives_is_restored_as_well(name: str) -> None:
    for trial, (proposal, before) in enumerate(played(FLAT, name, objectives=2)):
        assert restored(FLAT, name, before).propose(trial) == proposal


@pytest.mark.parametrize("name", SAMPLERS)
def test_replayed_source_proposes_like_the_first_one(name: str) -> None:
    proposals = [proposal for proposal, _ in played_flat(name)]
    source = OptunaSource(FLAT, made(name), seed=3)
    source.expect(1)
    for trial, proposal in enumerate(proposals[:-1]):
        source.accept(trial, proposal)
        if trial >= 2:
            report(source, trial - 2, proposals[trial - 2])
    assert source.propose(len(proposals) - 1) == proposals[-1]


class Mute(TPESampler):
    """A sampler that must not be asked."""

    def sample_relative(self, *arguments: Any) -> Any:
        raise LookupError("asked")

    def sample_independent(self, *arguments: Any) -> Any:
        raise LookupError("asked")


def run(tuner: Random, fed: list[list[Proposal]] | None = None) -> tuple[list[Decision], Any]:
    """Return all decisions, and the proposals by call; `fed` are those of a run before."""
    decisions: list[Decision] = []
    proposals: list[list[Proposal]] = []

    def call(one: Callable[[], list[Decision]]) -> list[Decision]:
        tuner.feed_proposals(fed[len(proposals)] if fed else ())
        found = one()
        proposals.append(json.loads(json.dumps(tuner.take_proposals())))
        decisions.extend(found)
        return found

    waiting = [one for one in call(lambda: tuner.ask(2)) if isinstance(one, Register)]
    while waiting:
        first = waiting.pop(0)
        loss = value_of(first.point)
        told = Report(trial=first.trial, step=9, metrics={"loss": loss}, losses=(loss,))
        call(lambda told=told: tuner.tell(told))  # type: ignore[misc]
        waiting += [one for one in call(lambda: tuner.ask(1)) if isinstance(one, Register)]
    return decisions, proposals


def test_a_replay_decides_the_same_and_asks_no_sampler() -> None:
    def tuner(sampler: BaseSampler) -> Random:
        return Random(FLAT, trials=15, max_steps=9, seed=1, sampler=sampler)

    decisions, proposals = run(tuner(TPESampler(n_startup_trials=4)))
    assert sum(isinstance(one, Register) for one in decisions) == 15
    again, kept = run(tuner(Mute()), proposals)
    assert again == decisions
    assert kept == proposals
    with pytest.raises(ConfigurationError, match=r"Mute could not propose .*LookupError: asked"):
        tuner(Mute()).ask(1)


# ------------------------------------------------------------------- what the sampler sees


class Watching(TPESampler):
    """A sampler that keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__(n_startup_trials=0)
        self.shown: list[list[FrozenTrial]] = []

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.shown.append([one for one in study.get_trials() if one.number != trial.number])
        super().before_trial(study, trial)

    def __deepcopy__(self, memo: dict[int, Any]) -> Watching:
        return self


def states(sampler: Watching) -> list[tuple[TrialState, float | None]]:
    return [(one.state, one.value) for one in sampler.shown[-1]]


def begun(source: OptunaSource, trials: int, *, first: int = 0) -> list[Proposal]:
    found = []
    for trial in range(first, first + trials):
        found.append(source.propose(trial))
        source.accept(trial, found[-1])
    return found


def test_second_ask_in_a_row_sees_the_first_trial_running() -> None:
    sampler = Watching()
    source = OptunaSource(FLAT, sampler, seed=0)
    first, second = begun(source, 2)
    (seen,) = sampler.shown[-1]
    assert seen.state is TrialState.RUNNING
    assert seen.params == pytest.approx(first["point"])
    assert first["point"] != second["point"]


def test_sampler_sees_trials_below_the_level_running() -> None:
    sampler = Watching()
    source = OptunaSource(Space(x=Float(0, 1)), sampler, seed=0)
    begun(source, 6)
    for trial in range(5):
        source.observe(trial, 1, (trial + 1.0,))
    source.fail(4)
    for trial in (0, 1):
        source.observe(trial, 3, (trial + 0.5,))
    begun(source, 1, first=6)
    at_one = [(TrialState.COMPLETE, trial + 1.0) for trial in range(5)]
    assert states(sampler) == [*at_one, (TrialState.RUNNING, None)]
    source.observe(2, 3, (2.5,))
    source.fail(5)
    begun(source, 1, first=7)
    assert states(sampler) == [
        *((TrialState.COMPLETE, trial + 0.5) for trial in range(3)),
        (TrialState.RUNNING, None),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
        (TrialState.RUNNING, None),
    ]


def intermediate(sampler: Watching) -> list[dict[int, float]]:
    return [trial.intermediate_values for trial in sampler.shown[-1]]


def halved() -> tuple[Watching, OptunaSource]:
    """Return a source after a rung of five trials, of which three went on to step 3."""
    sampler = Watching()
    source = OptunaSource(Space(x=Float(0, 1)), sampler, seed=0)
    begun(source, 6)
    for trial in range(5):
        source.observe(trial, 1, (trial + 1.0,))
    begun(source, 1, first=6)
    for trial in range(3):
        source.observe(trial, 3, (trial + 0.5,))
    begun(source, 1, first=7)
    return sampler, source


def test_sampler_sees_the_losses_of_paused_trials() -> None:
    sampler, source = halved()
    assert [trial.state.name for trial in sampler.shown[-1][3:5]] == ["RUNNING"] * 2
    rung = [{1: 1.0, 3: 0.5}, {1: 2.0, 3: 1.5}, {1: 3.0, 3: 2.5}, {1: 4.0}, {1: 5.0}, {}, {}]
    assert intermediate(sampler) == rung
    source.observe(0, 9, (0.25,))
    source.observe(5, 1, (6.0,))
    begun(source, 1, first=8)
    assert intermediate(sampler) == [*rung[:5], {1: 6.0}, {}, {}], "0 is compared at step 3"


def test_restored_sampler_sees_the_same_losses() -> None:
    sampler, source = halved()
    source.observe(0, 9, (0.25,))
    source.observe(3, 2, (math.inf,))
    before = saved(source)
    source.propose(8)
    again = Watching()
    other = OptunaSource(Space(x=Float(0, 1)), again, seed=0)
    other.restore(before)
    other.propose(8)
    assert intermediate(again) == intermediate(sampler)
    assert states(again) == states(sampler)
    assert intermediate(again)[3] == {1: 4.0, 2: math.inf}


def test_two_objectives_have_no_intermediate_values() -> None:
    sampler = Watching()
    source = OptunaSource(FLAT, sampler, seed=0)
    source.expect(2)
    begun(source, 2)
    source.observe(0, 1, (1.0, 2.0))
    begun(source, 1, first=2)
    assert intermediate(sampler) == [{}, {}]


@pytest.mark.parametrize("multivariate", [False, True])
def test_constant_liar_counts_paused_trials_as_bad(multivariate: bool) -> None:
    """Whether it is on changes the proposals: TPE counts the points of paused trials as bad."""
    proposals = {}
    for lies in (True, False):
        sampler = TPESampler(n_startup_trials=4, multivariate=multivariate, constant_liar=lies)
        source = OptunaSource(Space(x=Float(0, 1)), sampler, seed=0)
        for trial in range(30):
            is_paused = trial % 2
            source.accept(trial, {"point": {"x": 0.9 if is_paused else 0.02 * trial + 0.1}})
            source.observe(trial, 1, (5.0 if is_paused else 1.0,))
            if not is_paused:
                source.observe(trial, 3, (abs(trial - 22) / 10,))
        proposals[lies] = [source.propose(trial)["point"] for trial in range(30, 40)]
        view = source.view
        assert view is not None
        paused = [trial for trial in view.study.trials[:30] if trial.number % 2]
        assert {trial.state for trial in paused} == {TrialState.RUNNING}
        assert [trial.intermediate_values for trial in paused] == [{1: 5.0}] * 15
    assert proposals[True] != proposals[False]


def test_level_has_the_startup_trials_of_the_sampler() -> None:
    source = OptunaSource(Space(x=Float(0, 1)), TPESampler(n_startup_trials=5), seed=0)
    for trial in range(6):
        source.accept(trial, {"point": {"x": trial / 10}})
        source.observe(trial, 1, (1.0,))
    for trial in range(5):
        assert study_of(source, 6).trials[0].value == 1.0
        source.observe(trial, 3, (0.5,))
    assert study_of(source, 6).trials[0].value == 0.5


def study_of(source: OptunaSource, trial: int) -> optuna.Study:
    """Return the trials that a sampler sees after a proposal that is not accepted."""
    source.propose(trial)
    return source.view.study  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["tpe", "gp", "cma", "nsga-2"])
def test_infinite_losses_are_the_worst_to_a_sampler(name: str) -> None:
    source = OptunaSource(FLAT, made(name), seed=0)
    for trial in range(9):
        proposal = source.propose(trial)
        source.accept(trial, proposal)
        loss = math.inf if trial % 3 == 0 else float(trial)
        source.observe(trial, 9, (loss,))
    seen = [one.value for one in study_of(source, 9).trials[:9]]
    assert seen == [8, 1, 2, 8, 4, 5, 8, 7, 8]


def test_queued_and_partial_points_are_shown_to_the_sampler() -> None:
    sampler = Watching()
    source = OptunaSource(FLAT, sampler, seed=0)
    found = source.accept(0, {"point": {"x": 0.25, "kind": "b"}})
    assert not sampler.shown
    assert (found.params["x"], found.params["kind"]) == (0.25, "b")
    again = OptunaSource(FLAT, sampler, seed=0).accept(0, {"point": {"x": 0.25, "kind": "b"}})
    assert again == found
    source.observe(0, 9, (0.5,))
    begun(source, 1, first=1)
    (seen,) = sampler.shown[-1]
    assert seen.params == found.point
    assert (seen.state, seen.value) == (TrialState.COMPLETE, 0.5)


def test_earlier_trials_are_seen_if_they_are_of_this_space() -> None:
    sampler = Watching()
    source = OptunaSource(Space(x=Float(0, 1), n=Int(1, 3)), sampler, seed=0)
    source.earlier({"x": 0.5, "n": 2}, 60, (0.25,))
    source.earlier({"x": 2.0, "n": 2}, 60, (0.1,))
    source.earlier({"x": 0.5}, 60, (0.1,))
    source.earlier({"x": 0.5, "n": 2, "y": 1}, 60, (0.1,))
    begun(source, 1)
    assert states(sampler) == [(TrialState.COMPLETE, 0.25)]
    assert source.earlier_ignored == 3
    again = OptunaSource(Space(x=Float(0, 1), n=Int(1, 3)), sampler, seed=0)
    again.restore(saved(source))
    assert again.earlier_ignored == 3
    begun(again, 1, first=1)
    assert states(sampler) == [(TrialState.COMPLETE, 0.25), (TrialState.RUNNING, None)]


def test_a_proposal_that_is_not_accepted_leaves_nothing_behind() -> None:
    sampler = Watching()
    source = OptunaSource(FLAT, sampler, seed=0)
    first = source.propose(0)
    assert source.propose(0) == first
    assert sampler.shown[-1] == []
    source.accept(0, {"point": {**first["point"], "n": 1}})  # type: ignore[dict-item]
    begun(source, 1, first=1)
    assert [one.params["n"] for one in sampler.shown[-1]] == [1]


def test_objectives_may_be_known_only_after_a_snapshot() -> None:
    source = OptunaSource(FLAT, NSGAIISampler(population_size=4), seed=0)
    (first,) = begun(source, 1)
    again = OptunaSource(FLAT, NSGAIISampler(population_size=4), seed=0)
    again.restore(saved(source))
    for one in (source, again):
        one.observe(0, 9, (0.5, 0.25))
    assert study_of(again, 1).trials[0].values == [0.5, 0.25]
    assert source.propose(1) == again.propose(1) != first


# --------------------------------------------------------------------- which samplers learn


@EXPERIMENTAL
@pytest.mark.parametrize(
    ("make", "learns"),
    [
        (RandomSampler, False),
        (QMCSampler, False),
        (lambda: GridSampler(LEVELS), False),
        (TPESampler, True),
        (CmaEsSampler, True),
        (NSGAIISampler, True),
        (lambda: QMCSampler(independent_sampler=TPESampler()), True),
        (lambda: PartialFixedSampler({"x": 0.5}, RandomSampler()), False),
        (lambda: PartialFixedSampler({"x": 0.5}, TPESampler()), True),
    ],
)
def test_samplers_that_do_not_learn_give_all_trials_at_once(
    make: Callable[[], BaseSampler], learns: bool
) -> None:
    tuner = Random(FLAT, trials=9, max_steps=3, sampler=make())
    assert tuner.learns is learns
    decisions = tuner.ask(2)
    assert sum(isinstance(one, Register) for one in decisions) == (2 if learns else 9)
    assert sum(isinstance(one, Extend) for one in decisions) == (2 if learns else 9)


@EXPERIMENTAL
@pytest.mark.parametrize(
    "make", [lambda: GridSampler({"x": [0.0, 0.5, 1.0]}), lambda: BruteForceSampler()]
)
def test_a_grid_that_is_exhausted_is_tried_again(make: Callable[[], BaseSampler]) -> None:
    space = Space(x=Float(0, 1, step=0.5))
    registered = [
        one
        for one in Random(space, trials=7, max_steps=3, sampler=make()).ask(1)
        if isinstance(one, Register)
    ]
    assert {one.params["x"] for one in registered[:3]} == {0.0, 0.5, 1.0}
    assert {one.params["x"] for one in registered[3:]} <= {0.0, 0.5, 1.0}
    assert len(registered) == 7


# ------------------------------------------------------------------------ all kinds of space


def by_run(trial: Suggesting) -> Mapping[str, object]:
    lr = trial.suggest_float("lr", 0.01, 1.0, log=True)
    if trial.suggest_categorical("decay", [True, False]):
        return {"lr": Exponential(lr, gamma=trial.suggest_float("gamma", 0.5, 1.0, step=0.1))}
    return {"lr": lr, "layers": trial.suggest_int("layers", 1, 8)}


SPACES: dict[str, AnySpace] = {
    "families": Space(
        lr=Family(MultiStep, init=Float(0.01, 1, log=True), milestones=[[3], [3, 6]], gamma=0.1),
        momentum=Float(0, 0.9),
    ),
    "conditional": Space(
        opt=[Branch("sgd", Space(momentum=Float(0, 1))), Branch("adam", Space(b=Int(1, 9)))],
        lr=[0.5, Family(Exponential, init=Float(0.1, 1), gamma=[0.9, 0.99])],
        size=Choice([Int(1, 5), Float(0.2, 0.8, step=0.2)]),
    ),
    "by run": DefinedByRun(by_run),
    "large": Space(x=Int(0, 2**62 - 1), y=Float(-0.7, 0.85, step=0.1), z=Int(3, 12, step=4)),
}


# These make a table of all the integers of a domain; CMA does so before Optuna 5.0.
WITH_TABLES = {"gp"} if int(optuna.__version__.partition(".")[0]) >= 5 else {"gp", "cma-margin"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in ANYWHERE
        for kind in SPACES
        if kind != "large" or name not in WITH_TABLES
    ],
)
def test_every_sampler_proposes_from_every_space(name: str, kind: str) -> None:
    found = played(SPACES[kind], name)
    points = [proposal["point"] for proposal, _ in found]
    for trial, (proposal, before) in enumerate(found):
        configuration = SPACES[kind].at(proposal["point"])  # type: ignore[arg-type]
        assert configuration.point == proposal["point"]
        if trial % 5 == 4:
            assert restored(SPACES[kind], name, before).propose(trial) == proposal
    assert len({json.dumps(point) for point in points}) > len(points) // 2


def test_the_users_sampler_is_left_alone_and_seeds_count() -> None:
    sampler = TPESampler(seed=5)
    before = pickle.dumps(sampler)
    first = begun(OptunaSource(FLAT, sampler, seed=0), 3)
    assert pickle.dumps(sampler) == before
    assert begun(OptunaSource(FLAT, TPESampler(seed=5), seed=0), 3) == first
    assert begun(OptunaSource(FLAT, TPESampler(seed=6), seed=0), 3) != first
    assert begun(OptunaSource(FLAT, TPESampler(seed=5), seed=1), 3) != first


def test_two_scrambled_sequences_without_a_seed_are_the_same() -> None:
    sources = [OptunaSource(FLAT, made("qmc-scrambled"), seed=4) for _ in range(2)]
    assert sources[0].identity() == sources[1].identity()
    assert begun(sources[0], 5) == begun(sources[1], 5)


class Counting(RandomSampler):
    """A sampler with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def sample_independent(self, *arguments: Any) -> Any:
        self.count += 1
        return self.count / 100


def test_a_sampler_from_elsewhere_keeps_its_state() -> None:
    sampler = Counting()
    source = OptunaSource(Space(x=Float(0, 1), y=Float(0, 1)), sampler, seed=0)
    assert source.learns
    points = [proposal["point"] for proposal in begun(source, 2)]
    assert points == [{"x": 0.01, "y": 0.02}, {"x": 0.03, "y": 0.04}]
    assert sampler.count == 0


# ------------------------------------------------------------------------------- refusals


@EXPERIMENTAL
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PartialFixedSampler({"x": 5.0}, RandomSampler()),
            r"PartialFixedSampler must propose .*Float\(0.0, 1.0\).*'x', got 5.0",
        ),
        (
            lambda: PartialFixedSampler({"kind": "c"}, RandomSampler()),
            r"PartialFixedSampler could not propose coordinate 'kind': ValueError: 'c' not in",
        ),
        (
            lambda: PartialFixedSampler({"s": 0.15}, RandomSampler()),
            r"PartialFixedSampler must propose .* coordinate 's', got 0.15",
        ),
        (lambda: GridSampler({"x": [0.5]}), "GridSampler could not propose coordinate .*not found"),
        (BruteForceSampler, "BruteForceSampler could not propose coordinate 'x'.*step"),
    ],
)
def test_what_is_not_in_the_space_is_refused_by_name(
    make: Callable[[], BaseSampler], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        OptunaSource(FLAT, make(), seed=0).propose(0)


def test_a_sampler_for_one_objective_is_refused_for_two() -> None:
    source = OptunaSource(FLAT, CmaEsSampler(), seed=0)
    source.expect(2)
    with pytest.raises(ConfigurationError, match=r"CmaEsSampler could .*multi-objective"):
        source.propose(0)


@pytest.mark.parametrize("sampler", [3, TPESampler, object()])
def test_what_is_no_sampler_is_refused(sampler: object) -> None:
    with pytest.raises(ConfigurationError, match="sampler must be a sampler of Optuna"):
        Random(FLAT, trials=3, max_steps=3, sampler=sampler)


def test_strange_proposals_and_snapshots_are_refused() -> None:
    source = OptunaSource(FLAT, TPESampler(), seed=0)
    with pytest.raises(ConfigurationError, match="not a proposal"):
        source.accept(0, {"point": 3})
    with pytest.raises(ConfigurationError, match="not a snapshot"):
        source.restore({"trials": []})


def test_optuna_says_nothing(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.DEBUG, "optuna"):
            played(SPACES["conditional"], "cma")
            played(SPACES["conditional"], "qmc")
    finally:
        optuna.logging.disable_propagation()
    assert caplog.records == []
    assert capfd.readouterr().err == ""
    assert optuna.logging.get_verbosity() != optuna.logging.ERROR


# ---------------------------------------------------------------------------- does it help


def test_a_source_of_ones_own_is_taken_as_it_is() -> None:
    source = RandomSource(FLAT, seed=9)
    tuner = Random(FLAT, trials=3, max_steps=3, seed=1, sampler=source)
    assert tuner.source is source


def bowl(values: Mapping[str, Any], step: int) -> float:
    return sum((values[name] - 0.7) ** 2 for name in "abcd") + 1 / step


def test_tpe_finds_better_values_than_random_search() -> None:
    space = Space({name: Float(0, 1) for name in "abcd"})

    def best(seed: int, sampler: BaseSampler | None) -> float:
        tuner = Random(space, trials=60, max_steps=9, seed=seed, sampler=sampler)
        found = dt.simulate(tuner, bowl, workers=3).best_trial
        return math.inf if found is None or found.value is None else found.value - 1 / 9

    guided = [best(seed, TPESampler()) for seed in range(3)]
    blind = [best(seed, None) for seed in range(3)]
    assert sum(guided) < sum(blind) / 2


def test_nsga_finds_a_front_of_two_objectives() -> None:
    space = Space(x=Float(-4, 4), y=Float(-4, 4))
    first, last = 0.0, 0.0
    for seed in range(4):  # each version of Optuna draws other numbers
        source = OptunaSource(space, NSGAIISampler(population_size=10), seed=seed)
        source.expect(2)
        distances = []
        for trial in range(120):
            proposal = source.propose(trial)
            params = source.accept(trial, proposal).params
            x, y = float(params["x"]), float(params["y"])  # type: ignore[arg-type]
            source.observe(trial, 9, (x**2 + y**2, (x - 2) ** 2 + y**2))
            # The front is the line from one optimum to the other.
            distances.append(math.hypot(x - min(max(x, 0), 2), y))
        first, last = first + sum(distances[:40]), last + sum(distances[-40:])
    assert last < 0.85 * first
