"""Predictions: which worker gets a question, and the result if it does not answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from dasktune._driver.parts import Answer, Subject
from dasktune._driver.predictions import MOST_TRIES, Predictions
from dasktune._engine.outcome import RunAssessment, RunPrediction
from dasktune._engine.timeouts import PREDICTION_RETRY_SECONDS, PREDICTION_SECONDS
from dasktune._worker.messages import PredictionAnswer
from dasktune._worker.plugin import answer_to
from dasktune.algos.curves import Curve, Persistence, Prediction, Question
from dasktune.algos.forest.priority import PriorityQuestion
from dasktune.errors import ConfigurationError
from dasktune.types import Assess

QUESTION = Question(
    predictor=Persistence(),
    curve=Curve(steps=(1, 2), scores=(0.1, 0.2), max_steps=9),
    steps=(9,),
)


class Asked:
    """Keeps what was asked: of whom, and which question."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.questions: list[bytes] = []
        self.predictions = Predictions()

    def add(self, *trials: int) -> None:
        for trial in trials:
            self.predictions.add(RunPrediction(trial=trial, question=QUESTION))

    def send(self, *workers: str, at: float = 0.0) -> list[tuple[str, int]]:
        """Return the questions that are due now: (worker, number)."""
        due = self.predictions.due(workers, at)
        self.questions += [asked.question for asked in due]
        sent = [(asked.worker, asked.number) for asked in due]
        self.sent += sent
        return sent

    def take(
        self, number: int, worker: str, answer: Mapping[str, Any] | str | None, at: float = 0.0
    ) -> tuple[Subject, Answer | None] | None:
        message = PredictionAnswer(worker=worker, number=number, answer=answer)
        answered = self.predictions.answered(message, at)
        return None if answered is None else (answered.subject, answered.answer)


def test_question_is_sent_once_and_answered_for_its_trial() -> None:
    asked = Asked()
    asked.add(7)
    assert asked.send("a") == [("a", 1)]
    assert asked.send("a") == []
    (question,) = asked.questions
    answer = Prediction.from_json(answer_to(question))
    assert answer == QUESTION.answer()
    assert asked.take(1, "a", answer.to_json()) == (7, answer)
    assert asked.take(1, "a", answer.to_json()) is None, "it is not open any more"


def test_predictor_of_unknown_module_travels_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("of_the_user")
    code = "from dasktune.algos.curves import Persistence\nclass Mine(Persistence): pass"
    exec(compile(code, "of_the_user.py", "exec"), module.__dict__)
    asked = Asked()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        predictor = module.__dict__["Mine"]()
        question = Question(predictor=predictor, curve=QUESTION.curve, steps=QUESTION.steps)
        asked.predictions.add(RunPrediction(trial=0, question=question))
    asked.send("a")
    assert answer_to(asked.questions[0]) == QUESTION.answer().to_json()


def test_questions_are_shared_out_evenly() -> None:
    asked = Asked()
    asked.add(0, 1, 2, 3)
    assert asked.send("a", "b") == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    asked.take(1, "a", "no")
    asked.take(3, "a", "no")
    asked.add(4)
    assert asked.send("b", "a") == [("a", 5)]


def test_a_question_waits_until_there_is_a_worker() -> None:
    asked = Asked()
    asked.add(0)
    assert asked.send() == []
    assert asked.send("a") == [("a", 1)]


def test_questions_of_lost_worker_are_asked_again_at_once() -> None:
    asked = Asked()
    asked.add(0, 1)
    asked.send("a", "b")
    asked.predictions.lose("a", is_blameless=False)
    assert asked.send("b") == [("b", 1)]
    # That nobody hears of the first any more is said twice.
    assert asked.take(1, "a", None) is None
    assert asked.send("b", "c", at=9.0) == []
    answer = QUESTION.answer()
    assert asked.take(1, "b", answer.to_json()) == (0, answer)


def test_a_question_that_workers_are_lost_with_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Asked()
    asked.add(5)
    for worker in "abc":
        assert asked.send(worker) == [(worker, 1)]
        assert asked.predictions.overdue(0.0) == []
        asked.predictions.lose(worker, is_blameless=False)
    assert asked.predictions.overdue(0.0) == [5]
    assert asked.send("d") == []
    assert "3 workers were lost with it" in caplog.text


def test_workers_that_go_together_are_no_tries() -> None:
    asked = Asked()
    asked.add(5)
    for _ in range(2 * MOST_TRIES):
        asked.send("a")
        asked.predictions.lose("a", is_blameless=True)
    assert asked.predictions.overdue(0.0) == []
    assert asked.send("a") == [("a", 1)]


def test_a_prediction_that_takes_too_long_is_not_waited_for() -> None:
    asked = Asked()
    asked.add(5)
    asked.send("a", at=10.0)
    assert asked.predictions.overdue(10.0 + PREDICTION_SECONDS) == []
    assert asked.predictions.overdue(10.1 + PREDICTION_SECONDS) == [5]
    assert asked.take(1, "a", QUESTION.answer().to_json()) is None


def test_questions_behind_a_hanging_one_go_to_others() -> None:
    asked = Asked()
    asked.add(5)
    assert asked.send("a", at=10.0) == [("a", 1)]
    asked.add(6)
    assert asked.send("a", at=20.0) == [("a", 2)]
    at = 11.0 + PREDICTION_SECONDS
    assert asked.predictions.overdue(at) == [5]
    assert asked.send("a", "b", at=at) == [("b", 2)]
    asked.add(7)
    assert asked.send("a", "b", at=at) == [("b", 3)], "though it has more to answer"


def test_a_worker_that_answers_again_is_asked_like_others() -> None:
    asked = Asked()
    asked.add(5)
    asked.send("a")
    assert asked.predictions.overdue(1.0 + PREDICTION_SECONDS) == [5]
    asked.take(1, "a", QUESTION.answer().to_json())
    asked.add(6, 7)
    assert asked.send("a", "b", at=400.0) == [("a", 2), ("b", 3)]


def test_a_worker_that_hangs_is_asked_where_there_is_no_other() -> None:
    asked = Asked()
    asked.add(5, 6)
    asked.send("a")
    assert asked.predictions.overdue(1.0 + PREDICTION_SECONDS) == [5, 6]
    asked.add(7)
    assert asked.send("a", at=400.0) == [("a", 3)]
    assert asked.predictions.overdue(401.0) == []
    assert asked.send("a", at=402.0) == [], "once"


def test_worker_that_refuses_is_asked_again_after_a_pause() -> None:
    asked = Asked()
    asked.add(5)
    asked.send("a")
    asked.take(1, "a", None, at=7.0)
    assert asked.send("a", at=7.0 + PREDICTION_RETRY_SECONDS / 2) == []
    assert asked.send("a", at=7.0 + PREDICTION_RETRY_SECONDS) == [("a", 1)]


def test_a_predictor_that_cannot_travel_is_named() -> None:
    class Held(Persistence):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    question = Question(predictor=Held(), curve=QUESTION.curve, steps=QUESTION.steps)
    with pytest.raises(ConfigurationError, match="Held cannot be sent to workers"):
        Asked().predictions.add(RunPrediction(trial=0, question=question))


def test_late_answer_counts_while_another_is_asked() -> None:
    asked = Asked()
    asked.add(0)
    asked.send("a")
    asked.take(1, "a", None)
    asked.send("b", at=PREDICTION_RETRY_SECONDS)
    answer = QUESTION.answer()
    assert asked.take(1, "a", answer.to_json()) == (0, answer)
    assert asked.take(1, "b", None) is None


def test_prediction_is_given_up_after_the_last_try(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    asked.add(5)
    for tried in range(MOST_TRIES):
        ((worker, number),) = asked.send("a", "b", at=9.0 * tried)
        assert worker == "ab"[tried % 2]
        found = asked.take(number, worker, None, at=9.0 * tried)
        assert found == ((5, None) if tried == MOST_TRIES - 1 else None)
    assert "trial 5 cannot be predicted: no worker answers" in caplog.text


def test_a_predictor_that_raises_is_asked_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    asked.add(5)
    asked.send("a")
    assert asked.take(1, "a", "ValueError: cloudy") == (5, None)
    assert asked.send("a", "b") == []
    assert "trial 5 cannot be predicted: ValueError: cloudy" in caplog.text


def test_a_model_is_asked_about_and_answered_like_a_trial() -> None:
    asked = Asked()
    question = PriorityQuestion(
        points=((0.1,), (0.4,), (0.6,), (0.9,)), losses=(0.1, 0.9, 0.0, 0.4)
    )
    asked.predictions.add(RunAssessment(model=3, question=question))
    asked.send("a")
    answer = answer_to(asked.questions[0])
    assert asked.take(1, "a", answer) == (Assess(model=3), question.answer())
    asked.predictions.add(RunAssessment(model=4, question=question))
    asked.send("a")
    assert asked.take(2, "a", {"shortest": 1.0}) == (Assess(model=4), None)
