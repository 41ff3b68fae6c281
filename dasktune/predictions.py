"""Predictions on the cluster: asked of workers beside their stages, never waited for."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import cloudpickle

from dasktune.algos.curves.curve import Prediction
from dasktune.engine import RunPrediction

logger = logging.getLogger(__name__)

MOST_TRIES = 3
"""Workers that are asked one after the other for a prediction that does not come."""


class Ask(Protocol):
    """Sends a question to a worker; does not wait for the answer."""

    def __call__(self, worker: str, number: int, question: bytes) -> None:
        """Send question `number`."""


@dataclass(slots=True)
class _Open:
    order: RunPrediction
    question: bytes
    asked: list[str] = field(default_factory=list)


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

    def start(self, order: RunPrediction, workers: Collection[str]) -> bool:
        """Ask the worker with the fewest questions; return whether there was one to ask."""
        self._count += 1
        self._open[self._count] = _Open(order, cloudpickle.dumps(order.question))
        return self._send(self._count, workers)

    def take(
        self, number: int, answer: object, workers: Collection[str]
    ) -> tuple[int, Prediction | None] | None:
        """Take in what a worker answered.

        Parameters
        ----------
        number
            Of the question.
        answer
            The prediction as JSON; a text says why there is none; None that nobody answered.
        workers
            Who else can be asked.

        Returns
        -------
        tuple or None
            The trial and its prediction, None where it cannot be made; None if another worker
            has been asked, or the question is not open any more.
        """
        one = self._open.get(number)
        if one is None:
            return None
        if isinstance(answer, dict):
            del self._open[number]
            return one.order.trial, Prediction.from_json(answer)
        if answer is None and len(one.asked) < MOST_TRIES and self._send(number, workers):
            return None
        del self._open[number]
        why = "no worker answers" if answer is None else answer
        logger.warning("trial %d cannot be predicted: %s", one.order.trial, why)
        return one.order.trial, None

    def lose(self, worker: str) -> list[int]:
        """Return the questions that a worker that is gone was asked last."""
        return [number for number, one in self._open.items() if one.asked[-1:] == [worker]]

    def _send(self, number: int, workers: Collection[str]) -> bool:
        one = self._open[number]
        asked = [other.asked[-1] for other in self._open.values() if other.asked]
        fresh = [worker for worker in workers if worker not in one.asked]
        if not fresh:
            return False
        worker = min(fresh, key=asked.count)
        one.asked.append(worker)
        self._ask(worker, number, one.question)
        return True
