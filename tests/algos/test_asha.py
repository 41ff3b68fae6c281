"""ASHA gives the jobs of Algorithm 2, in its order, whatever happens on the way."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.algos.asha import ASHA
from dasktune.algos.samplers import RandomSource
from dasktune.errors import ConfigurationError
from dasktune.space import Float, Space
from dasktune.types import Decision, Extend, Finish, Register
from tests.algos.reports import arrived

SPACE = Space(x=Float(0.0, 1.0))

Job = tuple[int, int]
"""A trial, and the rung it is trained to."""


class LearningSource(RandomSource):
    """Says that it learns, so that it must not be asked before a worker is free."""

    learns = True


class AlgorithmTwo:
    """The paper's pseudo-code with one bracket, and a limit on the base rung."""

    def __init__(self, *, trials: int, rungs: int, eta: int) -> None:
        self.rungs: list[list[tuple[float, int]]] = [[] for _ in range(rungs)]
        self.promoted: list[set[int]] = [set() for _ in range(rungs)]
        self.trials, self.eta, self.drawn = trials, eta, 0

    def get_job(self) -> Job | None:
        for level in range(len(self.rungs) - 2, -1, -1):
            rung = self.rungs[level]
            candidates = sorted(rung, key=lambda entry: entry[0])[: len(rung) // self.eta]
            promotable = [
                trial
                for loss, trial in candidates
                if loss < math.inf and trial not in self.promoted[level]
            ]
            if promotable:
                self.promoted[level].add(promotable[0])
                return promotable[0], level + 1
        if self.drawn < self.trials:
            self.drawn += 1
            return self.drawn - 1, 0
        return None

    def completed(self, job: Job, loss: float) -> None:
        trial, level = job
        self.rungs[level].append((loss, trial))

    def dropped(self, job: Job) -> None:
        pass


class Queue:
    """A tuner behind the same interface: what it asks for, the higher priority first."""

    def __init__(self, tuner: ASHA, capacity: int) -> None:
        self.tuner, self.capacity, self.order = tuner, capacity, count()
        self.waiting: list[tuple[float, int, Job]] = []
        self.finished = False
        self.steps = tuner.brackets[0].steps

    def get_job(self) -> Job | None:
        if not self.waiting and not self.finished:
            self.take(self.tuner.ask(self.capacity))
        return heappop(self.waiting)[2] if self.waiting else None

    def take(self, decisions: list[Decision]) -> None:
        for one in decisions:
            if isinstance(one, Extend):
                job = (one.trial, self.steps.index(one.until))
                # Promotions go first, then new trials in their order.
                assert one.priority == (job[1] or -one.trial)
                heappush(self.waiting, (-one.priority, next(self.order), job))
            self.finished |= isinstance(one, Finish)

    def completed(self, job: Job, loss: float) -> None:
        self.take(self.tuner.tell(arrived(job[0], self.steps[job[1]], loss)))

    def dropped(self, job: Job) -> None:
        self.take(self.tuner.tell_failure(job[0]))


def run(
    policy: AlgorithmTwo | Queue,
    *,
    workers: int,
    seconds: Callable[[Job], float],
    loss: Callable[[Job], float | None],
) -> list[Job]:
    """Return the jobs in the order in which they begin; a loss of None drops one."""
    jobs: list[Job] = []
    busy: list[tuple[float, int, Job]] = []
    now, idle = 0.0, workers
    while True:
        while idle and (job := policy.get_job()) is not None:
            jobs.append(job)
            heappush(busy, (now + seconds(job), len(jobs), job))
            idle -= 1
        if not busy:
            return jobs
        now, _, job = heappop(busy)
        idle += 1
        value = loss(job)
        if value is None:
            policy.dropped(job)
        else:
            policy.completed(job, value)


def make(trials: int, rungs: int, eta: int, *, learns: bool = False) -> ASHA:
    sampler = LearningSource(SPACE, 0) if learns else None
    found = ASHA(
        SPACE,
        trials=trials,
        max_steps=eta ** (rungs - 1),
        min_steps=1,
        eta=eta,
        brackets="aggressive",
        sampler=sampler,
    )
    assert len(found.brackets[0].steps) == rungs
    return found


@dataclass(frozen=True, kw_only=True)
class Scene:
    """How long jobs last and what comes of them, decided by a seed."""

    seed: int
    workers: int
    rungs: int
    eta: int
    extra: int
    drops: float
    learns: bool

    @property
    def trials(self) -> int:
        return self.eta ** (self.rungs - 1) + self.extra

    def tuner(self) -> ASHA:
        return make(self.trials, self.rungs, self.eta, learns=self.learns)

    def seconds(self, job: Job) -> float:
        dice = random.Random(f"{self.seed} {job}")
        return dice.choice([1.0, 1.0, 2.5, 7.0]) * self.eta ** job[1]

    def loss(self, job: Job) -> float | None:
        dice = random.Random(f"loss {self.seed} {job}")
        dropped = dice.random() < self.drops
        return None if dropped else dice.choice([0.1, 0.2, 0.3, 0.4, math.inf])

    def run(self, policy: AlgorithmTwo | Queue) -> list[Job]:
        return run(policy, workers=self.workers, seconds=self.seconds, loss=self.loss)

    def expected(self) -> list[Job]:
        return self.run(AlgorithmTwo(trials=self.trials, rungs=self.rungs, eta=self.eta))


def scenes(*, rungs: int, eta: int, extra: int) -> st.SearchStrategy[Scene]:
    return st.builds(
        Scene,
        seed=st.integers(0, 2**32),
        workers=st.integers(1, 9),
        rungs=st.integers(1, rungs),
        eta=st.integers(2, eta),
        extra=st.integers(0, extra),
        drops=st.sampled_from([0.0, 0.2, 0.6]),
        learns=st.booleans(),
    )


@given(scene=scenes(rungs=4, eta=4, extra=40))
@settings(deadline=None)
def test_the_jobs_are_those_of_algorithm_two_in_its_order(scene: Scene) -> None:
    queue = Queue(scene.tuner(), 1 if scene.learns else scene.workers)
    assert scene.run(queue) == scene.expected()
    assert queue.finished
    assert queue.tuner.registered == scene.trials


def begin(tuner: ASHA) -> ASHA:
    tuner.ask(1)
    return tuner


def test_first_ask_extends_every_trial_to_its_base_rung() -> None:
    tuner = ASHA(SPACE, trials=25, max_steps=60)
    decisions = tuner.ask(1)
    assert [type(one) for one in decisions] == [Register] * 25 + [Extend] * 25
    bases = [one.until for one in decisions if isinstance(one, Extend)]
    assert [bases.count(step) for step in (3, 15, 60)] == [18, 7, 0]
    priorities = [one.priority for one in decisions if isinstance(one, Extend)]
    assert priorities == [-trial for trial in range(25)], "each in its turn"
    assert tuner.ask(4) == []


def test_learning_source_gives_one_trial_for_each_worker() -> None:
    tuner = make(5, 2, 2, learns=True)
    assert [type(one) for one in tuner.ask(2)] == [Register] * 2 + [Extend] * 2
    assert tuner.ask(0) == []
    assert [one.trial for one in tuner.ask(9) if isinstance(one, Extend)] == [2, 3, 4]
    assert tuner.ask(9) == []


@given(trials=st.integers(25, 90))
def test_brackets_are_filled_side_by_side(trials: int) -> None:
    """At any time each bracket has its share, give or take less than two trials."""
    tuner = ASHA(SPACE, trials=trials, max_steps=60, sampler=LearningSource(SPACE, 0))
    for drawn in range(1, trials + 1):
        tuner.ask(1)
        for bracket in tuner.brackets:
            assert abs(bracket.filled - bracket.width * drawn / trials) < 2
    assert [one.filled for one in tuner.brackets] == [one.width for one in tuner.brackets]


def test_first_promotion_comes_with_arrival_number_eta() -> None:
    tuner = begin(make(8, 2, 4))
    assert [tuner.tell(arrived(trial, 1, 0.4 - trial / 10)) for trial in range(4)] == [
        [],
        [],
        [],
        [Extend(trial=3, until=4, priority=1)],
    ]


def test_last_arrival_at_the_top_rung_finishes() -> None:
    tuner = begin(make(4, 2, 2))
    answers = [tuner.tell(arrived(trial, 1, trial / 10)) for trial in range(4)]
    assert answers == [
        [],
        [Extend(trial=0, until=2, priority=1)],
        [],
        [Extend(trial=1, until=2, priority=1)],
    ]
    assert tuner.tell(arrived(0, 2, 0.0)) == []
    assert tuner.tell(arrived(1, 2, 0.0)) == [Finish()]
    assert tuner.tell(arrived(1, 2, 0.0)) == []


def test_one_rung_is_random_search() -> None:
    tuner = begin(make(2, 1, 4))
    assert tuner.tell(arrived(0, 1, 0.1)) == []
    assert tuner.tell(arrived(1, 1, 0.2)) == [Finish()]


def test_a_failed_trial_keeps_its_place_where_it_reported() -> None:
    """Trial 0 is promoted and fails; one of two is in the top, and it is still that one."""
    tuner = begin(make(4, 3, 2))
    tuner.tell(arrived(0, 1, 0.1))
    assert tuner.tell(arrived(1, 1, 0.2)) == [Extend(trial=0, until=2, priority=1)]
    assert tuner.tell_failure(0) == []
    assert tuner.tell(arrived(2, 1, 0.3)) == []
    assert tuner.tell(arrived(3, 1, 0.4)) == [Extend(trial=1, until=2, priority=1)]


def test_a_trial_that_fails_while_it_is_paused_is_passed_over() -> None:
    tuner = begin(make(4, 2, 2))
    tuner.tell(arrived(0, 1, 0.1))
    tuner.tell(arrived(1, 1, 0.0))
    assert tuner.tell_failure(0) == []
    tuner.tell(arrived(2, 1, 0.3))
    assert tuner.tell(arrived(3, 1, 0.4)) == []
    assert tuner.tell(arrived(1, 2, 0.0)) == [Finish()]


def test_a_trial_that_never_reported_has_no_place() -> None:
    tuner = begin(make(4, 2, 2))
    assert tuner.tell_failure(0) == []
    assert tuner.tell(arrived(1, 1, 0.1)) == []
    assert tuner.tell(arrived(2, 1, 0.2)) == [Extend(trial=1, until=2, priority=1)]


def test_reports_on_the_way_decide_nothing() -> None:
    tuner = begin(make(2, 2, 2))
    tuner.tell(arrived(0, 1, 0.1))
    assert tuner.tell(arrived(0, 1, 0.1)) == []
    assert tuner.tell(arrived(1, 0, 0.2)) == []
    assert tuner.tell(arrived(1, 1, 0.2)) == [Extend(trial=0, until=2, priority=1)]


def test_only_infinite_losses_come_to_an_end_at_the_base_rung() -> None:
    tuner = begin(make(8, 3, 2))
    answers = [tuner.tell(arrived(trial, 1, math.inf)) for trial in range(8)]
    assert answers == [[]] * 7 + [[Finish()]]


def test_widening_splits_more_trials_like_the_first() -> None:
    wide = ASHA(SPACE, trials=50, max_steps=60)
    tuner = wide.widened_from(ASHA(SPACE, trials=25, max_steps=60).identity())
    assert tuner is not None
    queue = Queue(tuner, 4)
    queue.steps = (3, 15, 60)
    open_trials = [one for one in tuner.ask(4) if isinstance(one, Extend)]
    reported: set[int] = set()
    finished = False
    while not finished:
        one = open_trials.pop(0)
        reported.add(one.trial)
        decisions = tuner.tell(arrived(one.trial, one.until, one.trial / 100))
        open_trials += [found for found in decisions if isinstance(found, Extend)]
        finished = Finish() in decisions
    assert reported == set(range(25))
    decisions = tuner.widen(50)
    assert [one.trial for one in decisions if isinstance(one, Register)] == list(range(25, 50))
    assert [(one.width, one.filled) for one in tuner.brackets] == [(36, 36), (14, 14)]
    assert tuner.identity() == wide.identity()
    # The rungs still know who was there: another four in the base rung promote one more.
    first = [one.trial for one in decisions if isinstance(one, Extend) and one.until == 3]
    promotions = [found for trial in first[:4] for found in tuner.tell(arrived(trial, 3, 1.0))]
    assert len(promotions) == 1
    (promoted,) = promotions
    assert isinstance(promoted, Extend)
    assert promoted.trial < 25


def test_widening_keeps_the_rungs_that_few_trials_had() -> None:
    """Six trials reach from 15, not from 3; a restart with more trials must not mix the two."""
    tuner = ASHA(SPACE, trials=50, max_steps=60).widened_from(
        ASHA(SPACE, trials=6, max_steps=60).identity()
    )
    assert tuner is not None
    tuner.ask(1)
    tuner.widen(50)
    restored = ASHA(SPACE, trials=50, max_steps=60)
    assert restored.brackets[0].steps == (3, 15, 60)
    restored.restore(json.loads(json.dumps(tuner.snapshot())))
    assert [one.steps for one in restored.brackets] == [(15, 60)]
    assert [one.width for one in restored.brackets] == [50]


def test_an_infinite_horizon_goes_as_far_as_the_trials_reach() -> None:
    tuner = ASHA(SPACE, trials=70, min_steps=2, brackets="aggressive")
    assert tuner.max_steps == 128
    assert tuner.brackets[0].steps == (2, 8, 32, 128)
    assert tuner.identity()["max_steps"] is None
    narrow = ASHA(SPACE, trials=16, min_steps=2, brackets="aggressive")
    assert narrow.max_steps == 32
    assert narrow.identity()["horizon"] == "grows"


def reported(tuner: ASHA, trial: int, step: int, loss: float) -> list[Decision]:
    return tuner.tell(arrived(trial, step, loss))


def after_four(tuner: ASHA) -> None:
    """Report trials 0 to 3 at step 2; the best goes on to step 8, the top for four trials."""
    tuner.ask(1)
    for trial, loss in enumerate([0.4, 0.1, 0.3, 0.2]):
        reported(tuner, trial, 2, loss)
    assert reported(tuner, 1, 8, 0.1) == [Finish()]


def test_an_infinite_horizon_grows_with_the_trials() -> None:
    wide = ASHA(SPACE, trials=16, min_steps=2, brackets="aggressive")
    narrow = ASHA(SPACE, trials=4, min_steps=2, brackets="aggressive")
    tuner = wide.widened_from(json.loads(json.dumps(narrow.identity())))
    assert tuner is not None
    after_four(tuner)
    decisions = tuner.widen(16)
    assert tuner.max_steps == 32
    assert tuner.brackets[0].steps == (2, 8, 32)
    assert sum(isinstance(each, Register) for each in decisions) == 12
    assert tuner.identity() == wide.identity()
    for trial in range(4, 16):
        reported(tuner, trial, 2, 0.5 + trial)
    promoted = [reported(tuner, trial, 8, 0.2 + trial) for trial in (3, 2, 0)]
    assert promoted[-1] == [Extend(trial=1, until=32, priority=2)]


def test_the_best_at_the_old_top_go_on_when_the_horizon_grows() -> None:
    tuner = ASHA(SPACE, trials=2, min_steps=2, eta=2, brackets="aggressive")
    tuner.ask(1)
    for trial, loss in enumerate([0.2, 0.1]):
        reported(tuner, trial, 2, loss)
    reported(tuner, 1, 4, 0.1)
    assert tuner.widen(3)[0].trial == 2, "three trials reach no further"  # type: ignore[union-attr]
    reported(tuner, 2, 2, 0.05)
    reported(tuner, 2, 4, 0.3)
    snapshot = json.loads(json.dumps(tuner.snapshot()))
    decisions = tuner.widen(4)
    assert decisions[0] == Extend(trial=1, until=8, priority=2)
    again = ASHA(SPACE, trials=3, min_steps=2, eta=2, brackets="aggressive")
    again.restore(snapshot)
    assert again.widen(4) == decisions
    assert again.snapshot() == tuner.snapshot()


def test_brackets_are_added_when_the_horizon_grows() -> None:
    tuner = ASHA(SPACE, trials=4, min_steps=2)
    assert [bracket.steps for bracket in tuner.brackets] == [(2, 8)]
    tuner.ask(1)
    tuner.widen(64)
    assert [bracket.steps for bracket in tuner.brackets] == [
        (2, 8, 32, 128),
        (8, 32, 128),
        (32, 128),
    ]
    assert [bracket.filled for bracket in tuner.brackets] == [
        bracket.width for bracket in tuner.brackets
    ]


def test_all_that_is_wrong_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ASHA(SPACE, trials=0, max_steps=8, min_steps=9, eta=1, brackets="bold", seed=-1)
    assert len(caught.value.problems) == 5
    with pytest.raises(ConfigurationError) as caught:
        ASHA(SPACE, trials=9, max_steps=256, min_steps=1, seed=-1)
    assert ">= 363" in caught.value.problems[0]
    assert "seed" in caught.value.problems[1]
    with pytest.raises(ConfigurationError, match="max_steps must be given"):
        ASHA(SPACE, trials=9)
