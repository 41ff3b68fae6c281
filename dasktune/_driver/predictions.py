"""Predictions and priorities on the cluster: workers answer questions beside their stages."""

from __future__ import annotations

import logging
import math
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dasktune._driver.parts import (
    Answer,
    Answered,
    AskedQuestion,
    Draining,
    Following,
    News,
    Part,
    Subject,
)
from dasktune._engine.outcome import AskOrder, RunAssessment
from dasktune._engine.timeouts import PREDICTION_RETRY_SECONDS, PREDICTION_SECONDS
from dasktune._worker.messages import PredictionAnswer
from dasktune.algos.curves.curve import Prediction, Predictor, Question
from dasktune.algos.forest.priority import PriorityQuestion
from dasktune.errors import ConfigurationError, text_of
from dasktune.trainer.code import dumps_by_value

logger = logging.getLogger(__name__)

MOST_TRIES = 3
"""How many workers are asked the same question, one after the other."""


@dataclass(slots=True)
class _OpenQuestion:
    """An open question.

    `worker` was asked last; None: another one is to be asked. `since` is when it was asked, or
    when it refused.
    """

    order: AskOrder
    question: bytes
    asked: list[str] = field(default_factory=list)
    worker: str | None = None
    since: float = -math.inf


class Predictions(Part):
    """The open questions, each asked of one worker after the other.

    Workers compute them in a thread of their own: a prediction takes nothing but CPU time
    from the stage that runs there. While a run is drained, the next run asks them again.
    """

    def __init__(self, workers: Collection[str] = ()) -> None:
        self._workers = workers
        """Those of the run, at any time."""
        self._is_draining = False
        self._open: dict[int, _OpenQuestion] = {}
        self._count = 0
        self._packed: tuple[Predictor, bytes] | None = None
        self._stuck: set[str] = set()

    def add(self, order: AskOrder) -> None:
        """Add a question, for `due` to return."""
        self._count += 1
        self._open[self._count] = _OpenQuestion(order, self._pack(order.question))

    def _pack(self, question: Question | PriorityQuestion) -> bytes:
        """Return a question as `dasktune._worker.plugin` opens it, its predictor by value."""
        if isinstance(question, PriorityQuestion):
            return pickle.dumps(question)
        if self._packed is None or self._packed[0] is not question.predictor:
            self._packed = question.predictor, _by_value(question.predictor)
        return pickle.dumps((self._packed[1], question.curve, question.steps, question.seed))

    def receive(self, news: News, now: float) -> Iterable[Following]:
        """Return the answer that follows from a message, if it answers an open question."""
        self._is_draining |= isinstance(news, Draining)
        if self._is_draining or not isinstance(news, PredictionAnswer):
            return ()
        answered = self.answered(news, now)
        return () if answered is None else (answered,)

    def turn(self, now: float) -> Iterable[Following]:
        """Yield the questions that are given up, then those that are due."""
        if not self._is_draining:
            for subject in self.overdue(now):
                yield Answered(subject=subject, answer=None)
            yield from self.due(self._workers, now)

    def due(self, workers: Collection[str], now: float) -> list[AskedQuestion]:
        """Return the questions to send now, each to a worker that was not asked it yet.

        Of several such workers it is the one with the fewest questions.

        Workers that have not answered for long are asked last: they take one after the other.
        """
        if not workers:
            return []
        due = []
        load = Counter(pending.worker for pending in self._open.values())
        for number, pending in self._open.items():
            if pending.worker is None and now - pending.since >= PREDICTION_RETRY_SECONDS:
                pending.since = now
                *_, worker = min(
                    (name in self._stuck, pending.asked.count(name), load[name], name)
                    for name in workers
                )
                pending.worker = worker
                pending.asked.append(worker)
                load[worker] += 1
                due.append(AskedQuestion(worker=worker, number=number, question=pending.question))
        return due

    def answered(self, message: PredictionAnswer, now: float) -> Answered | None:
        """Return the answer that follows from a message, at a time in seconds.

        None if another worker will be asked, or the question is not open any more.
        """
        number, worker, answer = message.number, message.worker, message.answer
        if answer is not None:
            self._stuck.discard(worker)
        pending = self._open.get(number)
        if pending is None or (answer is None and pending.worker != worker):
            return None
        if answer is None and len(pending.asked) < MOST_TRIES:
            pending.worker, pending.since = None, now
            return None
        del self._open[number]
        if isinstance(answer, Mapping):
            try:
                read = pending.order.question.read(answer)
                return Answered(subject=pending.order.subject, answer=read)
            except (LookupError, TypeError, ValueError) as error:
                answer = f"its worker sent no answer: {error!r}"
        why = "no worker answers" if answer is None else answer
        logger.warning("%s: %s", pending.order, why)
        return Answered(subject=pending.order.subject, answer=None)

    def lose(self, worker: str, *, is_blameless: bool) -> None:
        """Ask other workers the questions of a worker that is gone.

        It counts as a try, unless the question cannot be the reason.
        """
        self._stuck.discard(worker)
        self._ask_others(worker, is_blameless=is_blameless)

    def overdue(self, now: float) -> list[Subject]:
        """Return the trials, and models, whose questions are given up.

        Other workers are asked the questions that wait behind them.
        """
        given_up: list[Subject] = []
        stuck: set[str] = set()
        for number, pending in list(self._open.items()):
            why = ""
            if pending.worker is None and len(pending.asked) >= MOST_TRIES:
                why = f"{MOST_TRIES} workers were lost with it"
            elif pending.worker is not None and now - pending.since > PREDICTION_SECONDS:
                why = f"it takes longer than {PREDICTION_SECONDS:.0f} s"
                stuck.add(pending.worker)
            if why:
                del self._open[number]
                logger.warning("%s: %s", pending.order, why)
                given_up.append(pending.order.subject)
        for worker in stuck:
            self._ask_others(worker, is_blameless=True)
        self._stuck |= stuck
        return given_up

    def _ask_others(self, worker: str, *, is_blameless: bool) -> None:
        for pending in self._open.values():
            if pending.worker == worker:
                pending.worker, pending.since = None, -math.inf
                if is_blameless:
                    pending.asked.remove(worker)


def _by_value(predictor: Predictor) -> bytes:
    try:
        return dumps_by_value(predictor)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise ConfigurationError(
            f"predictor {type(predictor).__qualname__} cannot be sent to workers: {error}"
        ) from error


def answer_or_none(
    order: AskOrder, answer: Callable[[Question], Prediction] = Question.answer
) -> Answer | None:
    """Return the answer to a question; None, and a line of log, if it cannot be computed.

    A predictor that raises ends no study: its tuner goes on without the prediction.

    Parameters
    ----------
    order
        The question, and what it is about.
    """
    try:
        if isinstance(order, RunAssessment):
            return order.question.answer()
        return answer(order.question)
    except Exception as error:  # noqa: BLE001 - a predictor of the user's may run here
        why = f"{type(error).__name__}: {text_of(error)}"
        logger.warning("%s: %s", order, why)
        return None
