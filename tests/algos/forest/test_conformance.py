"""Tuners with a forest keep the protocol of all tuners."""

from __future__ import annotations

from bisect import bisect

from optuna.samplers import TPESampler

from dasktune.algos import ASHA, PBT, POP, Hyperband, Random, Repeats, Tuner
from dasktune.algos.forest import Forest
from dasktune.space import Branch, DefinedByRun, Float, Int, Space
from dasktune.space.define_by_run import AnySpace, Suggesting
from dasktune.testing import TunerConformance

SPACE = Space(
    lr=Float(0.01, 1.0, log=True),
    optimizer=[
        Branch("sgd", Space(momentum=Float(0.0, 0.9))),
        Branch("adam", Space(beta=Float(0.0, 0.9), warmup=Int(1, 5))),
        "none",
    ],
)


def by_run(trial: Suggesting) -> dict[str, object]:
    """Suggest a momentum for one of two optimizers."""
    lr = trial.suggest_float("lr", 0.01, 1.0)
    if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
        return {"lr": lr, "momentum": trial.suggest_float("momentum", 0.0, 0.9)}
    return {"lr": lr}


BY_RUN = DefinedByRun(by_run)


def asha(space: AnySpace, seed: int, forest: Forest) -> ASHA:
    """Return a small tuner of one bracket."""
    return ASHA(
        space, trials=13, max_steps=9, min_steps=1, eta=3, brackets=(0,), seed=seed, sampler=forest
    )


class Conformance(TunerConformance):
    seeds = (0, 3)  # with and without inputs, restored tuners prepared and not


class TestRandom(Conformance):
    def make(self, seed: int) -> Tuner:
        return Random(SPACE, trials=12, max_steps=9, seed=seed, sampler=Forest())

    def make_wider(self, seed: int) -> Tuner:
        return Random(SPACE, trials=18, max_steps=9, seed=seed, sampler=Forest())


class TestASHAWithTPE(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        forest = Forest(TPESampler(n_startup_trials=3))
        return asha(SPACE, seed, forest)


class TestASHAByDeviation(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return asha(SPACE, seed, Forest(TPESampler(n_startup_trials=3), priority="deviation"))


class TestASHAByRun(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        forest = Forest(TPESampler(n_startup_trials=3), complexity=False)
        return asha(BY_RUN, seed, forest)


class TestHyperband(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Hyperband(
            SPACE, trials=22, max_steps=9, min_steps=1, eta=3, seed=seed, sampler=Forest()
        )

    def rivals(self, tuner: Tuner, trial: int) -> object:
        return bisect([9, 14, 17], trial)


class TestPOP(Conformance):
    # A prediction decides, and that may come late.
    ranks = False

    def make(self, seed: int) -> Tuner:
        forest = Forest(TPESampler(n_startup_trials=3))
        return POP(SPACE, trials=9, max_steps=12, every=3, seed=seed, sampler=forest)


class TestPBT(Conformance):
    def make(self, seed: int) -> Tuner:
        return PBT(SPACE, population=5, max_steps=12, every=4, seed=seed, sampler=Forest())


class TestRepeats(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Repeats(asha(SPACE, seed, Forest(TPESampler(n_startup_trials=3))), seeds=2)
