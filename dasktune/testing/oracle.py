"""The predictor's part in a game: questions are checked and kept, and answered in any order."""

from __future__ import annotations

import json
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from dasktune.algos.base import Tuner
from dasktune.algos.curves.curve import (
    LEVELS,
    Prediction,
    Predictor,
    Question,
    check_question,
)
from dasktune.errors import ConfigurationError

Answers = Literal["any", "at once", "last", "never"]
"""When predictions come: in any order, some after further reports and some not at all; before
all else; when nothing is trained any more; or never, so that the tuner is told None."""

_QUANTILES: Final = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
_SPREADS: Final = (0.01, 0.1, 1.0)


class Oracle:
    """Keeps the questions of a game, and answers them by chance, the good and the bad alike.

    Parameters
    ----------
    seed
        Decides when, and what.
    answers
        See `Answers`.
    """

    def __init__(self, seed: int, answers: Answers) -> None:
        self.open: dict[int, Question] = {}
        self._answers = answers
        self._random = np.random.default_rng((seed, 1))

    def next(self, *, is_idle: bool) -> int | None:
        """Return the trial whose prediction comes now; None if none does.

        Parameters
        ----------
        is_idle
            Whether nothing else can happen.
        """
        if not self.open or (self._answers == "last" and not is_idle):
            return None
        if self._answers == "at once":
            return next(iter(self.open))
        if not is_idle and self._random.random() < 0.5:
            return None
        return sorted(self.open)[self._random.integers(len(self.open))]

    def asks_anew(self) -> bool:
        """Whether the question is asked again before it is answered, as in another run."""
        return bool(self._random.random() < 0.5)

    def answer(self, question: Question) -> Prediction | None:
        """Return what is told of a question, rounded as the log keeps it."""
        lost = self._answers == "never" or (self._answers == "any" and self._random.random() < 0.2)
        return None if lost else self._prediction(question)

    def _prediction(self, question: Question) -> Prediction:
        curve, steps = question.curve, question.steps
        last, spread = curve.measured[-1][1], _SPREADS[self._random.integers(len(_SPREADS))]
        middles = last + self._random.normal(0.0, 0.5, size=(len(steps), 1))
        low = -np.inf if curve.low is None else curve.low
        high = np.inf if curve.high is None else curve.high
        rows = np.clip(middles + spread * _QUANTILES, low, high)
        found = Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=(spread,) * len(steps),
        )
        return Prediction.from_json(found.to_json())


def question_of(tuner: Tuner, trial: int) -> Question | str:
    """Return what a tuner wants to be predicted of a trial; or the rule that it breaks."""
    before = json.dumps(tuner.snapshot(), sort_keys=True)
    try:
        found: object = tuner.question(trial)
    except Exception as error:  # noqa: BLE001 - the tuner is a user's
        return f"question({trial}) must say what is to be predicted, got {error!r}"
    if not isinstance(found, Question) or not isinstance(found.predictor, Predictor):
        return f"question({trial}) must be a Question with a Predictor, got {found!r}"
    try:
        check_question(found.curve, found.steps)
    except ConfigurationError as error:
        return f"question({trial}) must be one that can be answered: {error}"
    if json.dumps(tuner.snapshot(), sort_keys=True) != before:
        return f"question({trial}) must change nothing, the state was {before}"
    return found


def in_full(question: Question) -> str:
    """Return all of a question as text: equal for those that have the same answer."""
    identity = json.dumps(question.predictor.identity(), sort_keys=True)
    return f"{identity}, {question.curve!r}, {question.steps}, {question.seed}"
