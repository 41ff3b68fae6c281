"""Predictions on the cluster: asked of workers beside their stages, never waited for."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from dasktune.algos.curves.curve import Prediction, Predictor, Question
from dasktune.orders import RunPrediction
from dasktune.trainer.code import dumps_by_value

logger = logging.getLogger(__name__)

MOST_TRIES = 3
"""How often a prediction is asked for that does not come, of one worker after another."""


class Ask(Protocol):
    """Sends a question to a worker; does not wait for the answer."""

    def __call__(self, worker: str, number: int, question: bytes) -> None:
        """Send question `number`."""


@dataclass(slots=True)
class _Open:
    """A question; `worker` is who was asked last, None if another is to be asked."""

    order: RunPrediction
    question: bytes
    asked: list[str] = field(default_factory=list)
    worker: str | None = None


class Predictions:
    """The predictions that are waited for, each asked of one worker after the other.

    Workers compute them in a thread of their own: a prediction takes nothing but CPU time
    from the stage that runs there.

    Parameters
    ----------
    ask
        See `Ask`. What comes of it is given to `take`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._open: dict[int, _Open] = {}
        self._count = 0
        self._packed: tuple[Predictor, bytes] | None = None

    def add(self, order: RunPrediction) -> None:
        """Take a question, for `send` to ask."""
        self._count += 1
        self._open[self._count] = _Open(order, self._pack(order.question))

    def _pack(self, question: Question) -> bytes:
        """Return a question as `dasktune.plugin` opens it; its predictor by value, packed once."""
        if self._packed is None or self._packed[0] is not question.predictor:
            self._packed = question.predictor, dumps_by_value(question.predictor)
        return pickle.dumps((self._packed[1], question.curve, question.steps, question.seed))

    def send(self, workers: Collection[str]) -> None:
        """Ask what nobody is asked: of workers that were not yet, with the fewest questions."""
        if not workers:
            return
        load = Counter(one.worker for one in self._open.values())
        for number, one in self._open.items():
            if one.worker is None:
                _, _, worker = min((one.asked.count(name), load[name], name) for name in workers)
                one.worker = worker
                one.asked.append(worker)
                load[worker] += 1
                self._ask(worker, number, one.question)

    def take(
        self, number: int, worker: str, answer: object
    ) -> tuple[int, Prediction | None] | None:
        """Take in what a worker answered.

        Parameters
        ----------
        number
            Of the question.
        worker
            Who answered.
        answer
            The prediction as JSON; a text says why there is none; None that it did not answer.

        Returns
        -------
        tuple or None
            The trial and its prediction, None where it cannot be made; None if another worker
            will be asked, or the question is not open any more.
        """
        one = self._open.get(number)
        if one is None or (answer is None and one.worker != worker):
            return None
        if answer is None and len(one.asked) < MOST_TRIES:
            one.worker = None
            return None
        del self._open[number]
        if isinstance(answer, dict):
            return one.order.trial, Prediction.from_json(answer)
        why = "no worker answers" if answer is None else answer
        logger.warning("trial %d cannot be predicted: %s", one.order.trial, why)
        return one.order.trial, None

    def lose(self, worker: str) -> list[int]:
        """Return the questions that a worker that is gone was asked last."""
        return [number for number, one in self._open.items() if one.worker == worker]
