"""Whether studies on one cluster get their fair shares, and whether its workers stay busy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from figures import Figure, main
from simulated import engine_of, runner_of

import dasktune as dt
from dasktune._driver.worker_demand import usable_slots
from dasktune._engine.timeouts import CLAIM_SECONDS
from dasktune.graph.events import Granted
from dasktune.graph.fair_shares import Claim, StudyShares, even_shares
from dasktune.simulate.jobs import Mishaps
from dasktune.simulate.runner import SimulatedRunner
from dasktune.traces.timing import Overheads

WORKERS, SHORT_WORKERS = 64, 6
MANY, SHORT_MANY = 512, 12
SECONDS, SHORT_SECONDS = 3600, 600
WINDOW_SECONDS = 600
STUDIES, SHORT_STUDIES = (2, 4, 8), (2, 3)
WEIGHTS = (1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0)
STEP_SECONDS = (5.0, 20.0)
"""Least and most of the mean seconds of a step of a study."""

TRIALS, SHORT_TRIALS = 1_500, 200
"""More than a study can end."""

MAX_STEPS = 81
OVERHEADS = Overheads(load=0.5, save=0.2, report=0.1)

LEAST_SHARE = 0.9
IDLE = 0.05


@dataclass(slots=True)
class SimulatedStudy:
    """A study on the shared cluster, whose runner knows all workers.

    Each second it notes how many workers it used, and how many were due.
    """

    name: str
    runner: SimulatedRunner
    weight: float
    is_here: bool = True
    granted: frozenset[str] | None = frozenset()
    given_back: frozenset[str] = frozenset()
    used: list[float] = field(default_factory=list)
    due: list[float] = field(default_factory=list)

    def claim(self, shares: StudyShares, now: float) -> Claim:
        """Claim workers at time `now`, and use those that are granted."""
        self.runner.now = now
        view = self.runner.engine.view
        most = len(view.slots)
        usable = usable_slots(view, now, left=self.runner.engine.to_begin, most=most)
        claim = Claim(workers=usable, weight=self.weight)
        busy = frozenset(name for name, slot in view.slots.items() if slot.queue)
        self.use(shares.claim(self.name, claim, now, busy))
        return claim

    def use(self, granted: frozenset[str]) -> None:
        """Use these workers alone."""
        if granted != self.granted:
            self.granted = granted
            self.runner.tell(Granted(workers=granted))

    def gives_back(self) -> bool:
        """Whether it has left a worker since the last call that it must return."""
        view = self.runner.engine.view
        before = self.given_back
        self.given_back = frozenset(name for name in view.withheld if not view.slots[name].queue)
        return self.given_back != before

    @property
    def busy(self) -> int:
        """Number of its workers that have a stage."""
        return self.runner.engine.view.busy_workers


class SharedCluster:
    """Simulated studies on one cluster, on one clock: they begin in this order, all at 0."""

    def __init__(self, studies: Sequence[SimulatedStudy], workers: int) -> None:
        self.studies = studies
        self.workers = workers
        self.shares = StudyShares()
        for index in range(workers):
            self.shares.join(f"w{index}", 0.0)

    def run(self, seconds: float, away: tuple[float, float]) -> None:
        """Run all; the last study is away from one time to another."""
        second = 0.0
        while second < seconds:
            last = self.studies[-1]
            was_here, last.is_here = last.is_here, not away[0] <= second < away[1]
            if was_here and not last.is_here:
                last.use(frozenset())
                self.shares.leave(last.name, second)
            self._claim_all(second)
            second += CLAIM_SECONDS
            self._run_until(second)

    def _claim_all(self, now: float) -> None:
        here = [study for study in self.studies if study.is_here]
        claims = {study.name: study.claim(self.shares, now) for study in here}
        shares = even_shares(claims, self.workers)
        for study in self.studies:
            study.used.append(float(study.busy) if study.is_here else 0.0)
            study.due.append(shares.get(study.name, 0.0))

    def _run_until(self, end: float) -> None:
        while True:
            nexts = [
                (at, place)
                for place, study in enumerate(self.studies)
                if (at := study.runner.next_at()) is not None and at < end
            ]
            if not nexts:
                return
            at, place = min(nexts)
            study = self.studies[place]
            study.runner.advance(at)
            if study.is_here and study.gives_back():
                study.claim(self.shares, at)


def study_of(place: int, workers: int, trials: int, seed: int) -> SimulatedStudy:
    """Return a study that runs ASHA without end: it can use as many workers as there are."""
    random = np.random.default_rng([seed, place])
    mean = float(random.uniform(*STEP_SECONDS))

    runner = runner_of(
        engine_of(f"study-{place}", prefix=f"s{place}"),
        lambda sequences, kind: mean * (0.5 + float(abs(sequences["lr"](0)))),
        workers,
        curve=lambda values, step: abs(float(values["lr"]) - 0.3) + 1 / step,
        mishaps=Mishaps(straggling=0.3, drop=0.0, seed=seed + place),
        overheads=OVERHEADS,
    )
    runner.tell(Granted(workers=frozenset()))  # until the first claim is answered
    space = dt.Space(lr=dt.Float(0.0, 1.0))
    runner.begin(dt.algos.ASHA(space, trials=trials, max_steps=MAX_STEPS, eta=3, seed=seed + place))
    return SimulatedStudy(name=f"study-{place}", runner=runner, weight=WEIGHTS[place])


def least_share(study: SimulatedStudy, seconds: int) -> float:
    """Return the least part of its share that a study got in any window in which it was here."""
    used, due = (np.concatenate([[0.0], np.cumsum(each)]) for each in (study.used, study.due))
    is_here = np.array(study.due) > 0
    parts = [
        (used[end] - used[end - seconds]) / (due[end] - due[end - seconds])
        for end in range(seconds, len(study.used) + 1)
        if is_here[end - seconds : end].all()
    ]
    return min(parts, default=1.0)


def measure(short: bool) -> list[Figure]:
    """Run 2, 4 and 8 studies on one cluster, and 8 on a large one; one of them leaves and comes."""
    seconds = SHORT_SECONDS if short else SECONDS
    window = WINDOW_SECONDS // 3 if short else WINDOW_SECONDS
    workers, many = (SHORT_WORKERS, SHORT_MANY) if short else (WORKERS, MANY)
    trials = SHORT_TRIALS if short else TRIALS
    counts = SHORT_STUDIES if short else STUDIES
    figures = []
    for count, size in [*((count, workers) for count in counts), (counts[-1], many)]:
        studies = [study_of(place, size, trials, seed=1) for place in range(count)]
        cluster = SharedCluster(studies, size)
        cluster.run(seconds, away=(seconds / 3, seconds * 2 / 3))
        shares = [least_share(study, window) for study in studies]
        used, due = (
            float(np.sum([getattr(study, name)[60:] for study in studies]))
            for name in ("used", "due")
        )
        repeated = sum(study.runner.engine.view.steps_repeated for study in studies)
        figures += [
            Figure(
                name=f"missing from the share of a study, {count} studies on {size} workers",
                value=1 - float(min(shares)),
                at_most=1 - LEAST_SHARE,
                note=f"worst of all windows of {window} s; each: "
                + ", ".join(f"{share:.3f}" for share in shares),
            ),
            Figure(
                name=f"idle share of {size} workers, {count} studies",
                value=1 - used / due,
                at_most=IDLE,
                note=f"while there is work, after a minute; {repeated:,} steps repeated",
            ),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main("fair_share", measure))
