"""Every tuner passes the conformance suite that a user's own tuner must pass."""

from __future__ import annotations

from bisect import bisect
from typing import Any, cast

from optuna.samplers import TPESampler

from dasktune.algos import Random, Tuner
from dasktune.algos.asha import ASHA
from dasktune.algos.auto import Auto
from dasktune.algos.bandit import Bandit
from dasktune.algos.branching import Branching
from dasktune.algos.curves import Persistence
from dasktune.algos.early_term import EarlyTerm
from dasktune.algos.freeze_thaw import FreezeThaw
from dasktune.algos.hyperband import AsyncHyperband, Hyperband
from dasktune.algos.milestones import Milestones
from dasktune.algos.optuna_sampler import OptunaSource
from dasktune.algos.pbt import PBT
from dasktune.algos.pop import POP
from dasktune.algos.repeats import Repeats
from dasktune.algos.sha import SHA
from dasktune.algos.stopping import MedianStopping, PatienceStopping, PercentileStopping
from dasktune.algos.stopping_asha import StoppingASHA
from dasktune.sequences import Exponential
from dasktune.space import Float, Int, Space
from dasktune.testing import TunerConformance
from tests.effort import is_quick

SPACE = Space(
    lr=Float(0.01, 1.0, log=True),
    batch_size=Int(16, 64, step=16),
    decay=[0.5, Exponential(0.5, gamma=0.9)],
)


class Conformance(TunerConformance):
    # All capacities, or two; with and without inputs, restored tuners prepared and not.
    seeds = (0, 3) if is_quick() else range(4)


class CostlyConformance(TunerConformance):
    """The same in fewer games, for tuners whose parts are in other classes here, too."""

    seeds = (0, 3)  # with and without inputs, restored tuners prepared and not


def tpe(seed: int) -> OptunaSource:
    return OptunaSource(SPACE, TPESampler(n_startup_trials=3), seed)


class TestSHA(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return SHA(SPACE, trials=9, max_steps=27, min_steps=3, eta=3, seed=seed)


class TestSHAWithBrackets(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return SHA(SPACE, trials=9, max_steps=27, min_steps=3, eta=3, brackets=2, seed=seed)

    def rivals(self, tuner: Tuner, trial: int) -> object:
        return trial // 9


class TestMilestones(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Milestones(SPACE, keep={2: 6, 5: 3}, max_steps=9, trials=10, seed=seed)


class TestMilestonesOfAGrid(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Milestones(Space(lr=[0.1, 0.2, 0.3, 0.4]), keep={2: 2}, max_steps=9)


class TestHyperband(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Hyperband(SPACE, trials=22, max_steps=9, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return Hyperband(SPACE, trials=30, max_steps=9, min_steps=1, eta=3, seed=seed)

    def rivals(self, tuner: Tuner, trial: int) -> object:
        return bisect([9, 14, 17], trial)


class TestASHA(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return ASHA(
            SPACE, trials=13, max_steps=9, min_steps=1, eta=3, brackets="aggressive", seed=seed
        )

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(
            SPACE, trials=20, max_steps=9, min_steps=1, eta=3, brackets="aggressive", seed=seed
        )


class TestASHAWithBrackets(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=18, max_steps=9, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=24, max_steps=9, min_steps=1, eta=3, seed=seed)


class TestASHAWithoutAHorizon(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return ASHA(Space(lr=Float(0.01, 1.0)), trials=8, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(Space(lr=Float(0.01, 1.0)), trials=30, min_steps=1, eta=3, seed=seed)


class TestStoppingASHAWithoutAHorizon(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return StoppingASHA(Space(lr=Float(0.01, 1.0)), trials=8, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return StoppingASHA(Space(lr=Float(0.01, 1.0)), trials=30, min_steps=1, eta=3, seed=seed)


class TestStoppingASHA(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return StoppingASHA(SPACE, trials=18, max_steps=9, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return StoppingASHA(SPACE, trials=24, max_steps=9, min_steps=1, eta=3, seed=seed)


class TestAsyncHyperband(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return AsyncHyperband(SPACE, trials=22, max_steps=9, min_steps=1, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return AsyncHyperband(SPACE, trials=30, max_steps=9, min_steps=1, eta=3, seed=seed)


class TestAuto(CostlyConformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Auto(SPACE, budget=90, max_steps=9, eta=3, seed=seed)


class TestMedianStopping(Conformance):
    def make(self, seed: int) -> Tuner:
        return MedianStopping(SPACE, trials=10, max_steps=8, every=2, min_trials=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return MedianStopping(SPACE, trials=15, max_steps=8, every=2, min_trials=3, seed=seed)


class TestPercentileStopping(Conformance):
    def make(self, seed: int) -> Tuner:
        return PercentileStopping(
            SPACE, trials=10, max_steps=8, every=2, grace=3, percentile=25, seed=seed
        )


class TestPatienceStopping(Conformance):
    def make(self, seed: int) -> Tuner:
        return PatienceStopping(SPACE, trials=8, max_steps=12, every=2, patience=4, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return PatienceStopping(SPACE, trials=11, max_steps=12, every=2, patience=4, seed=seed)


class TestRepeatsOfASHA(Conformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Repeats(ASHA(SPACE, trials=16, max_steps=9, min_steps=1, eta=3, seed=seed), seeds=2)

    def make_wider(self, seed: int) -> Tuner:
        return Repeats(ASHA(SPACE, trials=20, max_steps=9, min_steps=1, eta=3, seed=seed), seeds=2)


class TestRepeatsOfAStoppingRule(Conformance):
    # Repeats go on, each by itself, until all of them have reported and are judged as one.
    ranks = False

    def make(self, seed: int) -> Tuner:
        tuner = MedianStopping(SPACE, trials=8, max_steps=8, every=2, min_trials=3, seed=seed)
        return Repeats(tuner, seeds=2, aggregate="worst")


class TestRepeatsOfPBT(Conformance):
    # Repeats of one trial report in any order: the first report is not the one that counts.
    ranks = False

    def make(self, seed: int) -> Tuner:
        inner = PBT(SPACE, population=5, max_steps=6, every=2, seed=seed)
        return Repeats(inner, seeds=3, aggregate="median")


class TestPBT(Conformance):
    def make(self, seed: int) -> Tuner:
        return PBT(SPACE, population=8, max_steps=20, every=5, truncation=0.25, seed=seed)


class TestPBTWithPopulations(Conformance):
    def make(self, seed: int) -> Tuner:
        return PBT(
            SPACE,
            population=5,
            populations=2,
            max_steps=20,
            every=5,
            truncation=0.4,
            window=5,
            seed=seed,
        )

    def rivals(self, tuner: Tuner, trial: int) -> object:
        members = cast(Any, tuner.snapshot())["state"]["members"]
        return members[trial][0]


class TestRandomByTPE(CostlyConformance):
    def make(self, seed: int) -> Tuner:
        return Random(SPACE, trials=8, max_steps=9, sampler=tpe(seed))

    def make_wider(self, seed: int) -> Tuner:
        return Random(SPACE, trials=11, max_steps=9, sampler=tpe(seed))


class TestASHAByTPE(CostlyConformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=18, max_steps=9, min_steps=1, eta=3, sampler=tpe(seed))

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=24, max_steps=9, min_steps=1, eta=3, sampler=tpe(seed))


class TestHyperbandByTPE(CostlyConformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        return Hyperband(SPACE, trials=17, max_steps=9, min_steps=1, eta=3, sampler=tpe(seed))

    def rivals(self, tuner: Tuner, trial: int) -> object:
        return bisect([9, 14], trial)


class TestPBTByTPE(CostlyConformance):
    def make(self, seed: int) -> Tuner:
        return PBT(SPACE, population=5, max_steps=12, every=4, seed=seed, sampler=tpe(seed))


def early_term(seed: int, **changes: Any) -> EarlyTerm:
    arguments = {"trials": 8, "max_steps": 12, "every": 3, "delta": 0.3, **changes}
    return EarlyTerm(SPACE, predictor=Persistence(), seed=seed, **arguments)


class TestBandit(Conformance):
    def make(self, seed: int) -> Tuner:
        return Bandit(SPACE, trials=10, max_steps=12, every=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return Bandit(SPACE, trials=14, max_steps=12, every=3, seed=seed)


class TestBanditWithBounds(Conformance):
    def make(self, seed: int) -> Tuner:
        return Bandit(SPACE, trials=8, max_steps=12, every=2, grace=4, bounds=(0, 2), seed=seed)

    def make_mirrored(self, seed: int) -> Tuner:
        return Bandit(SPACE, trials=8, max_steps=12, every=2, grace=4, bounds=(-2, 0), seed=seed)


class TestEarlyTerm(Conformance):
    # A prediction decides, and that may come late.
    ranks = False

    def make(self, seed: int) -> Tuner:
        return early_term(seed)

    def make_wider(self, seed: int) -> Tuner:
        return early_term(seed, trials=12)


class TestEarlyTermWithBounds(Conformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return early_term(seed, delta=0.9, bounds=(0, 1))

    def make_mirrored(self, seed: int) -> Tuner:
        return early_term(seed, delta=0.9, bounds=(-1, 0))


class TestRepeatsOfEarlyTerm(Conformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return Repeats(early_term(seed, trials=5), seeds=2)

    def make_wider(self, seed: int) -> Tuner:
        return Repeats(early_term(seed, trials=7), seeds=2)


class TestEarlyTermByTPE(CostlyConformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return early_term(seed, sampler=tpe(seed))


def pop(seed: int, **changes: Any) -> POP:
    arguments = {"trials": 8, "max_steps": 12, "every": 3, **changes}
    return POP(SPACE, predictor=Persistence(), seed=seed, **arguments)


class TestPOP(Conformance):
    # Who goes on depends on how many may.
    ranks = False

    def make(self, seed: int) -> Tuner:
        return pop(seed, target=0.05, within=40.0)

    def make_mirrored(self, seed: int) -> Tuner:
        return pop(seed, target=-0.05, within=40.0)


class TestPOPWithoutATarget(CostlyConformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return pop(seed, ends_poor=False, window=2)

    def make_wider(self, seed: int) -> Tuner:
        return pop(seed, ends_poor=False, window=2, trials=12)


class TestPOPWithBarriers(CostlyConformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return pop(seed, barrier=True)


class TestRepeatsOfPOP(CostlyConformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return Repeats(pop(seed, trials=5, kill=0.95, bounds=(0, 1)), seeds=2)

    def make_mirrored(self, seed: int) -> Tuner:
        return Repeats(pop(seed, trials=5, kill=-0.95, bounds=(-1, 0)), seeds=2)


def branching() -> Branching:
    return Branching(startup=2, explore=0.5)


class TestRandomByBranching(CostlyConformance):
    def make(self, seed: int) -> Tuner:
        return Random(SPACE, trials=7, max_steps=12, seed=seed, sampler=branching())


class TestASHAByBranching(CostlyConformance):
    promotes = True

    def make(self, seed: int) -> Tuner:
        arguments: dict[str, Any] = {"max_steps": 9, "min_steps": 1, "eta": 3}
        return ASHA(SPACE, trials=13, seed=seed, sampler=branching(), **arguments)


class TestPOPByBranching(CostlyConformance):
    ranks = False

    def make(self, seed: int) -> Tuner:
        return pop(seed, trials=5, ends_poor=False, window=2, sampler=branching())


class TestPBTByBranching(CostlyConformance):
    def make(self, seed: int) -> Tuner:
        return PBT(SPACE, population=5, max_steps=12, every=4, seed=seed, sampler=branching())


class TestFreezeThaw(CostlyConformance):
    # The model decides who goes on, not the loss alone.
    ranks = False
    promotes = True

    def make(self, seed: int) -> Tuner:
        return FreezeThaw(SPACE, budget=24, max_steps=9, seed=seed)
