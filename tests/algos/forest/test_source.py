"""The forest as a sampler: draws a model, then asks the model's own sampler."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

import dasktune as dt
from dasktune.algos import ASHA, Random
from dasktune.algos.base import Proposal
from dasktune.algos.forest.source import Forest, ForestSource
from dasktune.algos.samplers import RandomSource
from dasktune.errors import ConfigurationError
from dasktune.space import Branch, DefinedByRun, Float, Int, Space
from dasktune.space.define_by_run import AnySpace

SAMPLERS: dict[str, Callable[[], BaseSampler | None]] = {
    "none": lambda: None,
    "random": RandomSampler,
    "tpe": lambda: TPESampler(n_startup_trials=4),
    "tpe-group": lambda: TPESampler(n_startup_trials=4, multivariate=True, group=True),
    "gp": lambda: GPSampler(n_startup_trials=4),
    "cma": CmaEsSampler,
    "qmc": QMCSampler,
    "brute-force": BruteForceSampler,
    "nsga-2": lambda: NSGAIISampler(population_size=4),
    "nsga-3": lambda: NSGAIIISampler(population_size=4),
    "fixed": lambda: PartialFixedSampler({"C": 0.5}, TPESampler(n_startup_trials=4)),
}

KERNELS = Space(
    C=Float(0.1, 15.0, step=0.1),
    kernel=[
        "linear",
        Branch("rbf", Space(gamma=Float(0.0, 10.0, step=0.5))),
        Branch("poly", Space(gamma=Float(0.0, 10.0, step=0.5), degree=Int(1, 5))),
    ],
)


def by_run(trial: Any) -> dict[str, object]:
    """Suggest as many layers as a number says."""
    c = trial.suggest_float("C", 0.1, 15.0, step=0.1)
    layers = trial.suggest_int("layers", 1, 3)
    names = [trial.suggest_categorical(f"act{at}", ["relu", "tanh"]) for at in range(layers)]
    return {"C": c, "names": "-".join(names)}


BY_RUN = DefinedByRun(by_run)


def made(name: str) -> BaseSampler | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SAMPLERS[name]()


def source_of(space: AnySpace, sampler: object = None, **arguments: Any) -> ForestSource:
    return Forest(sampler, **arguments).source(space, 3)


def saved(source: ForestSource) -> Any:
    return json.loads(json.dumps(source.snapshot(), allow_nan=False))


def restored(space: AnySpace, name: str, snapshot: object) -> ForestSource:
    source = source_of(space, made(name))
    source.restore(snapshot)
    return source


def report(source: ForestSource, trial: int, proposal: Proposal) -> None:
    """Report a trial at its rungs, or let it fail, as its number says."""
    if trial % 7 == 3:
        source.fail(trial)
        return
    loss = sum(len(str(value)) for value in proposal["point"].values())  # type: ignore[attr-defined]
    for rung in (1, 3, 9)[: 1 + trial % 3]:
        source.observe(trial, rung, (math.inf if trial % 5 == 2 else loss + 1 / rung,))


def played(space: AnySpace, name: str) -> list[tuple[Proposal, Any]]:
    """Return the proposals of a source, each with its snapshot before; reports come late."""
    source = source_of(space, made(name))
    source.expect(1)
    proposals: list[tuple[Proposal, Any]] = []
    for trial in range(10 if name == "gp" else 18):
        before = saved(source)
        proposal = source.propose(trial)
        source.accept(trial, proposal)
        proposals.append((json.loads(json.dumps(proposal, allow_nan=False)), before))
        if trial >= 2:
            report(source, trial - 2, proposals[trial - 2][0])
    return proposals


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("space", [KERNELS, BY_RUN], ids=["space", "by-run"])
def test_restored_and_replayed_forest_goes_on_alike(space: AnySpace, name: str) -> None:
    proposals = played(space, name)
    replayed = source_of(space, made(name))
    replayed.expect(1)
    for trial, (proposal, before) in enumerate(proposals):
        if trial in (3, 9):
            assert restored(space, name, before).propose(trial) == proposal
        assert saved(replayed) == before
        replayed.accept(trial, proposal)
        if trial >= 2:
            report(replayed, trial - 2, proposals[trial - 2][0])


def test_models_are_drawn_as_often_as_their_weights() -> None:
    source = source_of(KERNELS, priority=False)
    drawn = Counter(
        source.accept(trial, source.propose(trial)).params["kernel"] for trial in range(1000)
    )
    shares = {name: drawn[name] / 1000 for name in ("linear", "rbf", "poly")}
    # Their complexities rise, so their ranks are 1, 2 and 3.
    assert shares == pytest.approx({"linear": 1 / 6, "rbf": 2 / 6, "poly": 3 / 6}, abs=0.05)
    assert [model.trials for model in source.model_weights] == [drawn[n] for n in shares]


def test_without_heuristics_models_take_turns() -> None:
    source = source_of(KERNELS, complexity=False, priority=False)
    kernels = [source.accept(at, source.propose(at)).params["kernel"] for at in range(6)]
    assert kernels == ["linear", "rbf", "poly"] * 2


def test_inside_a_model_draws_are_those_of_its_sampler() -> None:
    plain = RandomSource(Space(C=Float(0.1, 15.0, step=0.1)), 3)
    source = source_of(KERNELS)
    for trial in range(20):
        point = source.propose(trial)["point"]
        assert point["C"] == plain.propose(trial)["point"]["C"]  # type: ignore[index]


def test_each_sampler_observes_the_trials_of_its_model() -> None:
    source = source_of(KERNELS, TPESampler(n_startup_trials=2), complexity=False, priority=False)
    for trial in range(6):
        source.accept(trial, source.propose(trial))
        source.observe(trial, 1, (float(trial),))
    observed = [
        [each["trial"] for each in model["source"]["trials"]] for model in saved(source)["models"]
    ]
    assert observed == [[0, 3], [1, 4], [2, 5]]


def test_a_queued_point_belongs_to_the_model_of_its_path() -> None:
    source = source_of(KERNELS, TPESampler())
    configuration = source.accept(0, {"point": {"kernel": "poly", "kernel.poly.degree": 2}})
    assert configuration.params["degree"] == 2
    assert [model.trials for model in source.model_weights] == [0, 0, 1]


def test_an_earlier_trial_is_shown_to_its_model_only() -> None:
    source = source_of(KERNELS, TPESampler())
    source.earlier({"C": 0.5, "kernel": "linear"}, 9, (0.5,))
    source.earlier({"other": 1}, 9, (0.5,))
    assert [len(model["source"]["trials"]) for model in saved(source)["models"]] == [1, 0, 0]


def test_a_new_path_of_a_function_is_a_new_model() -> None:
    def rare(trial: Any) -> dict[str, object]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        if trial.suggest_float("x", 0.0, 1.0) > 1 - 1e-6:
            return {"more": trial.suggest_categorical("more", ["c", "d"])}
        return {"kind": kind}

    source = source_of(DefinedByRun(rare))
    assert [model.name for model in source.model_weights] == ["kind=b", "kind=a"]
    source.accept(0, {"point": {"kind": "a", "x": 1.0, "more": "d"}})
    assert [model.name for model in source.model_weights] == ["kind=b", "kind=a", "kind=a, more=d"]
    assert source.model_weights[-1].trials == 1
    again = source_of(DefinedByRun(rare))
    again.restore(saved(source))
    assert again.model_weights == source.model_weights


def test_all_models_of_a_function_are_drawn() -> None:
    source = source_of(BY_RUN, complexity=False, priority=False)
    for trial in range(200):
        source.accept(trial, source.propose(trial))
    assert sum(model.trials for model in source.model_weights) == 200
    assert min(model.trials for model in source.model_weights) > 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sampler": "grid"}, "sampler must be one that any space can be given to, got 'grid'"),
        ({"sampler": Forest()}, "sampler must be one that any space can be given to"),
        ({"priority": 1}, "priority must be True, False or 'deviation', got 1"),
        ({"choices": "kernel"}, "choices must be a list of names, got 'kernel'"),
        ({"choices": [1]}, r"choices must be a list of names, got \(1,\)"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Forest(**arguments)


def test_a_sampler_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a sampler of Optuna"):
        Random(KERNELS, trials=2, max_steps=2, sampler=Forest(3))


def test_the_identity_tells_forests_apart() -> None:
    forests = [
        Forest(),
        Forest(TPESampler()),
        Forest(complexity=False),
        Forest(priority=False),
        Forest(choices=["kernel"]),
    ]
    identities = [json.dumps(forest.source(KERNELS, 3).identity()) for forest in forests]
    assert len(set(identities)) == 5
    assert identities[0] == json.dumps(dt.Forest().source(KERNELS, 9).identity())


def test_a_forest_is_simulated_under_asha() -> None:
    def curve(values: Any, step: int) -> float:
        offset = {"linear": 0.3, "rbf": 0.2, "poly": 0.1}[values["kernel"]]
        return offset + values["C"] / 100 / step

    tuner = ASHA(
        KERNELS, trials=40, max_steps=16, seed=1, sampler=Forest(TPESampler(), priority=False)
    )
    result = dt.simulate(tuner, curve, workers=4)
    assert result.summary()["best_value"] < 0.11
    assert sum(model.trials for model in tuner.source.model_weights) == 40  # type: ignore[attr-defined]
