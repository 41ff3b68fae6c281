"""The part of predictors and workers in a game: checks and answers questions in any order."""

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
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.errors import ConfigurationError
from dasktune.types import Assess, Decision, Predict

Answers = Literal["any", "at once", "last", "never"]
"""When the tuner receives predictions:

- any: in any order; some after further reports, and None instead of some;
- at once: before any other call;
- last: when no trial is in training any more;
- never: it receives None instead of each prediction.
"""

_QUANTILES: Final = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
_SPREADS: Final = (0.01, 0.1, 1.0)


class Oracle:
    """Keeps the open questions of a game, and answers them with random predictions.

    Parameters
    ----------
    seed
        Decides the order of the answers, and their values.
    answers
        See `Answers`.
    """

    def __init__(self, seed: int, answers: Answers) -> None:
        self.open: dict[int, Question] = {}
        self.models: dict[int, PriorityQuestion] = {}
        self._answers = answers
        self._random = np.random.default_rng((seed, 1))

    def next(self, *, is_idle: bool) -> int | Assess | None:
        """Return the trial whose prediction comes now, or the model whose priority does, or None.

        Parameters
        ----------
        is_idle
            Whether no other call can follow.
        """
        models = [Assess(model=model) for model in sorted(self.models)]
        subjects: list[int | Assess] = [*sorted(self.open), *models]
        if not subjects or (self._answers == "last" and not is_idle):
            return None
        if self._answers == "at once":
            return next(iter(self.open), subjects[0])
        if not is_idle and self._random.random() < 0.5:
            return None
        return subjects[self._random.integers(len(subjects))]

    def question_after(self, decision: Decision) -> Question | PriorityQuestion | None:
        """Return the open question that a decision has asked, or None."""
        match decision:
            case Predict():
                return self.open.get(decision.trial)
            case Assess():
                return self.models.get(decision.model)
            case _:
                return None

    def asks_anew(self) -> bool:
        """Return whether the tuner repeats its question first, as it does in a new run."""
        return bool(self._random.random() < 0.5)

    def answer(self, question: Question) -> Prediction | None:
        """Return a prediction, rounded as in the event log, or None if it failed."""
        return None if self._is_lost() else self._prediction(question)

    def assess(self) -> Priority | None:
        """Return the priority of a model, whatever its losses are, or None if it failed."""
        if self._is_lost():
            return None
        shortest, longest = sorted(self._random.uniform(0.01, 10.0, size=2).tolist())
        return Priority(shortest=shortest, longest=longest)

    def _is_lost(self) -> bool:
        return self._answers == "never" or (
            self._answers == "any" and bool(self._random.random() < 0.2)
        )

    def _prediction(self, question: Question) -> Prediction:
        curve, steps = question.curve, question.steps
        last, spread = curve.measured[-1][1], _SPREADS[self._random.integers(len(_SPREADS))]
        middles = last + self._random.normal(0.0, 0.5, size=(len(steps), 1))
        low = -np.inf if curve.low is None else curve.low
        high = np.inf if curve.high is None else curve.high
        rows = np.clip(middles + spread * _QUANTILES, low, high)
        prediction = Prediction(
            after=curve.last_step,
            steps=steps,
            scores=tuple(map(tuple, rows.tolist())),
            deviations=(spread,) * len(steps),
        )
        return Prediction.from_json(prediction.to_json())


def question_of(tuner: Tuner, trial: int) -> Question | str:
    """Return a tuner's question about a trial, or as text the rule that it breaks."""
    before = json.dumps(tuner.snapshot(), sort_keys=True)
    try:
        question: object = tuner.question(trial)
    except Exception as error:  # noqa: BLE001 - the tuner is a user's
        return f"question({trial}) must return a Question, got {error!r}"
    if not isinstance(question, Question) or not isinstance(question.predictor, Predictor):
        return f"question({trial}) must be a Question with a Predictor, got {question!r}"
    try:
        check_question(question.curve, question.steps)
    except ConfigurationError as error:
        return f"question({trial}) must have an answer: {error}"
    if json.dumps(tuner.snapshot(), sort_keys=True) != before:
        return f"question({trial}) must leave the state as it was, {before}"
    return question


def model_question_of(tuner: Tuner, model: int) -> PriorityQuestion | str:
    """Return a tuner's question about a model, or as text the rule that it breaks."""
    before = json.dumps(tuner.snapshot(), sort_keys=True)
    try:
        question: object = tuner.model_question(model)
    except Exception as error:  # noqa: BLE001 - the tuner is a user's
        return f"model_question({model}) must return a PriorityQuestion, got {error!r}"
    if not isinstance(question, PriorityQuestion):
        return f"model_question({model}) must return a PriorityQuestion, got {question!r}"
    if not 0 < len(question.points) == len(question.losses):
        return f"model_question({model}) must have a loss for each point, got {question!r}"
    if json.dumps(tuner.snapshot(), sort_keys=True) != before:
        return f"model_question({model}) must leave the state as it was, {before}"
    return question


def in_full(question: Question | PriorityQuestion) -> str:
    """Return a question as text, equal for questions that have the same answer."""
    if isinstance(question, PriorityQuestion):
        return repr(question)
    identity = json.dumps(question.predictor.identity(), sort_keys=True)
    return f"{identity}, {question.curve!r}, {question.steps}, {question.seed}"
