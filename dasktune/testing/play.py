"""A game with a tuner: makes every call that an engine could make, and checks every rule.

A game needs no training and no workers, and has its own clock. It keeps the tuner's trials and
requests, and answers with reports, failures and predictions. A seed decides their order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

import numpy as np

from dasktune.algos.base import Inputs, Tuner
from dasktune.algos.curves.curve import Question
from dasktune.algos.forest.priority import PriorityQuestion
from dasktune.testing.calls import (
    AnswerCall,
    AskCall,
    Call,
    Cause,
    ConformanceError,
    FailCall,
    PriorityCall,
    TellCall,
    TimeCall,
    WidenCall,
    difference,
    in_words,
    perform,
)
from dasktune.testing.oracle import Answers, Oracle, in_full, model_question_of, question_of
from dasktune.testing.rules import GameTrial, problem_of_decision, problem_of_registration
from dasktune.types import (
    Assess,
    Decision,
    Direction,
    Extend,
    Finish,
    Now,
    Objective,
    Predict,
    Rank,
    Register,
    Report,
    Sequences,
    Step,
    Stop,
)

Loss = Callable[[int, Step, Sequences], float]
"""The loss of a trial after so many steps, given its hyper-parameters; it may be NaN."""

Renew = Callable[[Tuner], Tuner]
"""Returns a tuner that replaces the given one in the middle of a game."""

MOST_CALLS = 10_000
"""Most calls of a game, unless a test sets another number."""

_EAGERNESS = 0.8
_OBJECTIVE = Objective.single("loss", Direction.MINIMIZE)


class Game:
    """Plays the engine's part against a tuner.

    Parameters
    ----------
    tuner
        A new tuner.
    seed
        Decides the order of reports and asks, and which trials fail; at least 0.
    loss
        The loss that trials report.
    capacity
        Most trials in training at a time.
    failures
        Probability that a trial fails instead of sending a report.
    in_turn
        Whether reports come ordered by step, then by trial, and the game calls `ask` as soon as
        it can. False leaves both to the seed.
    inputs
        Argument of `Tuner.prepare`.
    most_calls
        Number of calls within which the tuner must finish.
    answers
        When predictions come; see `Answers`.
    pace
        Mean number of seconds between two reports, on the clock of the game.
    """

    def __init__(
        self,
        tuner: Tuner,
        *,
        seed: int,
        loss: Loss,
        capacity: int = 4,
        failures: float = 0.0,
        in_turn: bool = False,
        inputs: Inputs | None = None,
        most_calls: int = MOST_CALLS,
        answers: Answers = "any",
        pace: float = 1.0,
    ) -> None:
        self.tuner = tuner
        self.seconds = 0.0
        directions = [direction.value for direction in _OBJECTIVE.directions]
        self.inputs: Inputs = {"directions": directions, **(inputs or {})}
        self.trials: list[GameTrial] = []
        self.calls: list[Call] = []
        self.finished = False
        self._loss, self._capacity, self._failures = loss, capacity, failures
        self._in_turn, self._most_calls = in_turn, most_calls
        self._random = np.random.default_rng(seed)
        self._oracle = Oracle(seed, answers)
        self._clock, self._pace = np.random.default_rng((seed, 2)), pace
        self._nothing_to_ask = False
        tuner.prepare(self.inputs)

    def run(self, calls: int | None = None) -> Self:
        """Play until the tuner has finished, or for a number of calls.

        Raises
        ------
        ConformanceError
            At the first rule that the tuner breaks.
        """
        end = math.inf if calls is None else len(self.calls) + calls
        while not self.finished and len(self.calls) < end:
            if len(self.calls) >= self._most_calls:
                self._fail(f"a tuner must finish within {self._most_calls} calls")
            self._move()
        return self

    def widen(self, trials: int, tuner: Tuner) -> None:
        """Continue with a tuner that has restored the state, and give it more trials.

        Raises
        ------
        ConformanceError
            If the tuner breaks a rule.
        """
        self.tuner, self.finished, self._nothing_to_ask = tuner, False, False
        self._call(WidenCall(trials=trials))

    def snapshot(self) -> str:
        """Return the tuner's state as text.

        Raises
        ------
        ConformanceError
            If it is not JSON.
        """
        try:
            return json.dumps(self.tuner.snapshot(), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConformanceError(f"a snapshot must be JSON: {error}", self.calls) from error

    # ----------------------------------------------------------------------- its moves

    def _move(self) -> None:
        running = [trial for trial in self.trials if trial.coming]
        idle, due = self._capacity - len(running), self._due()
        if due <= self.seconds:
            self._tell_time()
        elif idle > 0 and not self._nothing_to_ask and self._asks(running):
            self._ask(idle)
        elif (subject := self._oracle.next(is_idle=not running)) is not None:
            self._answer(subject)
        elif running:
            self._report(self._next(running))
        elif due < math.inf:
            self.seconds = due
        else:
            self._fail("a tuner that waits for nothing must finish or ask for something")

    def _due(self) -> float:
        due = self.tuner.due_seconds
        if due is None:
            return math.inf
        if not math.isfinite(due):
            self._fail(f"due_seconds must be None or finite, got {due}")
        return due

    def _tell_time(self) -> None:
        self._call(TimeCall(seconds=self.seconds))
        if not self.finished and self._due() <= self.seconds:
            self._fail(
                f"due_seconds must move on when the time is told, {self.seconds}, "
                f"got {self.tuner.due_seconds}"
            )

    def _answer(self, number: int | Assess) -> None:
        """Tell an answer, sometimes of a repeated question, as after a restart of the run."""
        if isinstance(number, Assess):
            self._answer_model(number.model)
            return
        question, trial = self._oracle.open.pop(number), self.trials[number]
        if self._oracle.asks_anew() and trial.step < trial.registered.max_steps:
            question = self._question(number)
        self._call(AnswerCall(trial=number, prediction=self._oracle.answer(question)))

    def _answer_model(self, model: int) -> None:
        del self._oracle.models[model]
        if self._oracle.asks_anew():
            self._model_question(model)
        self._call(PriorityCall(model=model, priority=self._oracle.assess()))

    def _model_question(self, model: int) -> PriorityQuestion:
        question = model_question_of(self.tuner, model)
        if isinstance(question, str):
            raise ConformanceError(question, self.calls)
        return question

    def _question(self, trial: int) -> Question:
        question = question_of(self.tuner, trial)
        if isinstance(question, str):
            raise ConformanceError(question, self.calls)
        return question

    def _asks(self, running: list[GameTrial]) -> bool:
        return self._in_turn or not running or self._random.random() < _EAGERNESS

    def _next(self, running: list[GameTrial]) -> GameTrial:
        if self._in_turn:
            return min(running, key=lambda trial: (trial.coming[0], trial.number))
        return running[self._random.integers(len(running))]

    def _ask(self, idle: int) -> None:
        before = self.snapshot()
        call = self._call(AskCall(capacity=idle))
        self._nothing_to_ask = not call.decisions
        if not call.decisions and (self.snapshot() != before or call.proposals):
            self._fail(
                "an ask that returns nothing must change nothing, "
                f"the state was {before} and is {self.snapshot()}"
            )

    def _report(self, trial: GameTrial) -> None:
        step = trial.coming.popleft()
        self.seconds += self._pace * (1.0 if self._in_turn else float(self._clock.exponential()))
        if self._random.random() < self._failures:
            trial.failed = True
            trial.coming.clear()
            self._oracle.open.pop(trial.number, None)
            self._call(FailCall(trial=trial.number))
            return
        now = self._now(trial, step) if self.tuner.timed else None
        trial.reported.append(step)
        metrics = self._metrics(trial, step)
        losses = _OBJECTIVE.losses(metrics)
        report = Report(trial=trial.number, step=step, metrics=metrics, losses=losses, now=now)
        self._call(TellCall(report=report))

    def _metrics(self, trial: GameTrial, step: Step) -> Mapping[str, float]:
        return {"loss": self._loss(trial.number, step, trial.registered.sequences)}

    def _now(self, trial: GameTrial, step: Step) -> Now:
        """Return time and speed for a timed tuner, with the steps in between for some trials."""
        every = trial.number % 3 + 1
        between = range(trial.step + 1, step, every) if every < 3 else ()
        return Now(
            seconds=self.seconds,
            step_seconds=0.5 * every,
            workers=self._capacity,
            between=tuple((at, _OBJECTIVE.losses(self._metrics(trial, at))) for at in between),
        )

    def _call(self, cause: Cause) -> Call:
        self._nothing_to_ask = False
        before = self.tuner.max_steps
        decisions = perform(self.tuner, cause, self.calls)
        if isinstance(cause, WidenCall):
            self._lengthen(before)
        call = Call(cause=cause, decisions=decisions, proposals=tuple(self.tuner.take_proposals()))
        self.calls.append(call)
        for decision in decisions:
            self._apply(decision)
        asked = [*map(self._oracle.question_after, decisions)]
        questions = tuple(question for question in asked if question is not None)
        self.calls[-1] = replace(call, questions=questions)
        return call

    def _lengthen(self, before: Step) -> None:
        """Raise `max_steps` of the trials if that of their tuner has grown."""
        longest = self.tuner.max_steps
        for trial in self.trials:
            if before == trial.registered.max_steps < longest:
                trial.registered = replace(trial.registered, max_steps=longest)

    def _apply(self, decision: Decision) -> None:
        problem = self._problem(decision)
        if problem:
            self._fail(problem)
        match decision:
            case Register():
                self.trials.append(GameTrial(registered=decision))
            case Extend():
                self.trials[decision.trial].extend(decision)
            case Stop():
                self.trials[decision.trial].stopped = True
                self.trials[decision.trial].coming.clear()
                self._oracle.open.pop(decision.trial, None)
            case Predict():
                self._oracle.open[decision.trial] = self._question(decision.trial)
            case Assess():
                self._oracle.models[decision.model] = self._model_question(decision.model)
            case Finish():
                self.finished = True
                self._oracle.open.clear()
                self._oracle.models.clear()
                for trial in self.trials:
                    trial.coming.clear()
            case Rank():
                pass

    # ------------------------------------------------------------------------ the rules

    def _fail(self, problem: str) -> None:
        raise ConformanceError(problem, self.calls)

    def _problem(self, decision: Decision) -> str:
        """Return the rule that a decision breaks, or an empty text."""
        if self.finished:
            return f"nothing may be decided after Finish, got {in_words([decision])}"
        match decision:
            case Register():
                return problem_of_registration(decision, len(self.trials), self.tuner.max_steps)
            case Extend() | Stop() | Rank() | Predict():
                if not 0 <= decision.trial < len(self.trials):
                    return f"trial {decision.trial} must be registered before {decision}"
                trial = self.trials[decision.trial]
                return problem_of_decision(
                    decision, trial, is_asked=trial.number in self._oracle.open
                )
            case Assess() | Finish():
                return ""
            case _:
                return f"a tuner must return decisions, got {decision!r}"


def play(
    tuner: Tuner,
    *,
    seed: int,
    loss: Loss,
    capacity: int = 4,
    failures: float = 0.0,
    in_turn: bool = False,
    inputs: Inputs | None = None,
    most_calls: int = MOST_CALLS,
    answers: Answers = "any",
    pace: float = 1.0,
) -> Game:
    """Play a game with a tuner until it finishes, and return the game; see `Game`.

    Raises
    ------
    ConformanceError
        At the first rule of the protocol that the tuner breaks, with all calls so far.

    Examples
    --------
    >>> from dasktune.algos import Random
    >>> from dasktune.space import Float, Space
    >>> tuner = Random(Space(lr=Float(0.01, 1.0)), trials=2, max_steps=8)
    >>> for call in play(tuner, seed=0, loss=lambda trial, step, sequences: 1 / step).calls:
    ...     print(call)
    ask(4) -> register 0; register 1; extend 0 to 8; extend 1 to 8
    ask(2) -> nothing
    tell(trial 1, step 8, loss 0.125) -> nothing
    ask(3) -> nothing
    tell(trial 0, step 8, loss 0.125) -> finish
    """
    return Game(
        tuner,
        seed=seed,
        loss=loss,
        capacity=capacity,
        failures=failures,
        in_turn=in_turn,
        inputs=inputs,
        most_calls=most_calls,
        answers=answers,
        pace=pace,
    ).run()


def replay(
    game: Game,
    tuner: Tuner,
    why: str,
    *,
    renew: Renew | None = None,
    mirror: bool = False,
    feed: bool = False,
) -> None:
    """Repeat the calls of a game with another tuner, and compare its decisions and questions.

    As in an event log, calls of `ask` without a decision are left out.

    Parameters
    ----------
    game
        A game that was played.
    tuner
        A new tuner.
    why
        Why the decisions must be the same, for the message.
    renew
        Replaces the tuner before the first call and after each call.
    mirror
        Whether the metric changes its sign and is maximised.
    feed
        Whether the tuner receives the recorded proposals of the sampler before each call.

    Raises
    ------
    ConformanceError
        At the first decision that differs.
    """
    tuner.prepare({**game.inputs, **({"directions": ["maximize"]} if mirror else {})})
    tuner = renew(tuner) if renew else tuner
    for number, call in enumerate(game.calls):
        if isinstance(call.cause, AskCall) and not call.decisions:
            continue
        cause = call.cause
        if mirror and isinstance(cause, TellCall):
            cause = TellCall(report=_mirrored(cause.report))
        if feed:
            tuner.feed_proposals(call.proposals)
        decisions = perform(tuner, cause, game.calls[:number])
        tuner.take_proposals()
        if decisions != call.decisions:
            raise ConformanceError(
                f"decisions must be the same {why}: call {number}, {cause}, gave "
                f"{difference(decisions, call.decisions)}",
                game.calls[: number + 1],
            )
        tuner = renew(tuner) if renew else tuner
        if not mirror:
            _compare_questions(game, number, tuner, why)


def _compare_questions(game: Game, number: int, tuner: Tuner, why: str) -> None:
    """Compare a tuner's questions with the recorded questions of a call."""
    call = game.calls[number]
    questions: list[Question | PriorityQuestion | str] = []
    for decision in call.decisions if call.questions else ():
        if isinstance(decision, Predict):
            questions.append(question_of(tuner, decision.trial))
        elif isinstance(decision, Assess):
            questions.append(model_question_of(tuner, decision.model))
    for question, expected in zip(questions, call.questions, strict=False):
        text = question if isinstance(question, str) else in_full(question)
        if text != in_full(expected):
            raise ConformanceError(
                f"questions must be the same {why}: call {number}, {call.cause}, gave {text}, "
                f"before it was {in_full(expected)}",
                game.calls[: number + 1],
            )


def _mirrored(report: Report) -> Report:
    """Return a report with the same losses for the negated, maximised metric."""
    metrics: Mapping[str, float] = {name: -value for name, value in report.metrics.items()}
    losses = Objective.single("loss", Direction.MAXIMIZE).losses(metrics)
    return replace(report, metrics=metrics, losses=losses)
