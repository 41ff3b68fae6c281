"""Every tuner that halves keeps the contract of tuners: order, failures, state, widening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dasktune.algos.asha import ASHA
from dasktune.algos.base import Tuner
from dasktune.algos.hyperband import AsyncHyperband, Hyperband
from dasktune.algos.milestones import Milestones
from dasktune.algos.sha import SHA
from dasktune.algos.sources import RandomSource
from dasktune.algos.stopping_asha import StoppingASHA
from dasktune.space import Float, Space
from dasktune.testing import TunerConformance

SPACE = Space(lr=Float(0.01, 1.0, log=True))


class LearningSource(RandomSource):
    learns = True
    logged = True


class Halving(TunerConformance):
    seeds: ClassVar[Sequence[int]] = range(8)


class TestASHA(Halving):
    def make(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=25, max_steps=60, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=40, max_steps=60, seed=seed)


class TestASHAWithASampler(Halving):
    def make(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=14, max_steps=9, eta=3, sampler=LearningSource(SPACE, seed))

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=20, max_steps=9, eta=3, sampler=LearningSource(SPACE, seed))


class TestASHAWithAnInfiniteHorizon(Halving):
    def make(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=16, min_steps=2, eta=2, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return ASHA(SPACE, trials=40, min_steps=2, eta=2, seed=seed)


class TestStoppingASHA(Halving):
    def make(self, seed: int) -> Tuner:
        return StoppingASHA(SPACE, trials=25, max_steps=60, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return StoppingASHA(SPACE, trials=40, max_steps=60, seed=seed)


class TestSHA(Halving):
    def make(self, seed: int) -> Tuner:
        return SHA(SPACE, trials=12, max_steps=9, min_steps=1, eta=3, seed=seed)


class TestSHAWithASampler(Halving):
    # Brackets with the same rungs are ranked each for itself.
    ranks: ClassVar[bool] = False

    def make(self, seed: int) -> Tuner:
        sampler = LearningSource(SPACE, seed)
        return SHA(SPACE, trials=9, max_steps=9, eta=3, brackets=2, sampler=sampler)


class TestMilestones(Halving):
    def make(self, seed: int) -> Tuner:
        space = Space(lr=[0.1, 0.2, 0.3, 0.4], momentum=[0.0, 0.9])
        return Milestones(space, keep={5: 4, 7: 2}, max_steps=10)


class TestHyperband(Halving):
    def make(self, seed: int) -> Tuner:
        return Hyperband(SPACE, trials=17, max_steps=9, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return Hyperband(SPACE, trials=30, max_steps=9, eta=3, seed=seed)


class TestHyperbandWithASampler(Halving):
    ranks: ClassVar[bool] = False

    def make(self, seed: int) -> Tuner:
        sampler = LearningSource(SPACE, seed)
        return Hyperband(SPACE, trials=21, max_steps=9, eta=3, sampler=sampler)

    def make_wider(self, seed: int) -> Tuner:
        sampler = LearningSource(SPACE, seed)
        return Hyperband(SPACE, trials=30, max_steps=9, eta=3, sampler=sampler)


class TestAsyncHyperband(Halving):
    def make(self, seed: int) -> Tuner:
        return AsyncHyperband(SPACE, trials=21, max_steps=9, eta=3, seed=seed)

    def make_wider(self, seed: int) -> Tuner:
        return AsyncHyperband(SPACE, trials=30, max_steps=9, eta=3, seed=seed)
