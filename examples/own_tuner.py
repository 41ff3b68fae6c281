"""A tuner of one's own: keep doubling the training of the better half, until one is left.

Run it with ``dasktune run examples/own_tuner.py``; it tunes the softmax regression of
``numpy_regression.py``. What a tuner must do stands in `dasktune.algos.base`.
"""

from __future__ import annotations

import numpy as np
from numpy_regression import SoftmaxRegression

import dasktune as dt
from dasktune.types import Decision, Extend, Finish, Register, Report


class Doubling(dt.algos.Tuner):
    """Trains all trials to 5 steps, the better half to 10, the better half of those to 20..."""

    state = ("until", "waiting", "reported")  # what a restart needs: JSON values

    def __init__(self, space: dt.Space, trials: int, max_steps: int, seed: int = 0) -> None:
        self.space, self.trials, self.max_steps, self.seed = space, trials, max_steps, seed
        self.until = 0  # step of the present round
        self.waiting = 0  # trials that it still lacks
        self.reported: list[list[float]] = []  # loss and trial of the others

    def ask(self, capacity: int) -> list[Decision]:
        """Register all trials and begin the first round, once."""
        if self.until:
            return []
        rng = np.random.default_rng(self.seed)
        drawn = [self.space.sample(rng) for _ in range(self.trials)]
        registered = [
            Register(trial=n, sequences=one.sequences, params=one.params, max_steps=self.max_steps)
            for n, one in enumerate(drawn)
        ]
        return [*registered, *self.round(list(range(self.trials)), 5)]

    def round(self, trials: list[int], until: int) -> list[Decision]:
        """Train these up to `until`, or end."""
        if not trials or self.until == self.max_steps:
            return [Finish()]
        self.until, self.waiting, self.reported = min(until, self.max_steps), len(trials), []
        return [Extend(trial=n, until=self.until) for n in trials]

    def tell(self, report: Report) -> list[Decision]:
        """Count a report; at the end of a round train the better half twice as far."""
        if report.loss < float("inf"):  # NaN is an infinite loss, too
            self.reported.append([report.loss, report.trial])
        return self.count()

    def tell_failure(self, trial: int) -> list[Decision]:
        """Count a failure: the trial is not in the next round."""
        return self.count()

    def count(self) -> list[Decision]:
        """Close the round when nobody is missing any more."""
        self.waiting -= 1
        if self.waiting:
            return []
        better = sorted(self.reported)[: (len(self.reported) + 1) // 2]
        return self.round([int(trial) for _, trial in better], 2 * self.until)

    def identity(self) -> dict[str, object]:
        """Return class and arguments: a known tuner goes on where it was."""
        arguments = {"trials": self.trials, "max_steps": self.max_steps, "seed": self.seed}
        return {"tuner": "Doubling", "space": self.space.to_json(), **arguments}


def study() -> dt.Study:
    """Return the study, continued if it was begun before."""
    return dt.create_study(
        SoftmaxRegression,
        name="own-tuner",
        storage="runs/own-tuner",
        metric="loss",
        report_every=5,
        load_if_exists=True,
    )


def tuner() -> Doubling:
    """Return the tuner over learning rate and momentum."""
    space = dt.Space(lr=dt.Float(0.01, 1.0, log=True), momentum=[0.5, 0.9], batch_size=[32, 64])
    return Doubling(space, trials=16, max_steps=80)
