"""Predictions of learning curves, computed where they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dasktune.algos.curves.curve import Prediction, Question
from dasktune.engine.outcome import RunPrediction

logger = logging.getLogger(__name__)


def answer_or_none(
    order: RunPrediction, answer: Callable[[Question], Prediction] = Question.answer
) -> Prediction | None:
    """Return a prediction; None, and a line of log, if it cannot be made.

    A predictor that raises ends no study: its tuner goes on without the prediction.

    Parameters
    ----------
    order
        What is to be predicted, of which trial.
    answer
        Computes it.
    """
    try:
        return answer(order.question)
    except Exception as error:  # noqa: BLE001 - a predictor of the user's may run here
        why = f"{type(error).__name__}: {error}"
        logger.warning("trial %d cannot be predicted: %s", order.trial, why)
        return None
