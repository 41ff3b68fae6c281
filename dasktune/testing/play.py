"""A game with a tuner: every call that an engine could make, and every rule checked.

No training, no workers and a clock of its own: the game keeps what the tuner registered and
asked for, and answers with reports, failures and predictions in an order that nothing but a
seed decides.
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
from dasktune.testing.calls import (
    Answer,
    Ask,
    Call,
    Cause,
    ConformanceError,
    Fail,
    Tell,
    Time,
    Widen,
    difference,
    in_words,
    perform,
)
from dasktune.testing.oracle import Answers, Oracle, in_full, question_of
from dasktune.testing.rules import Trial, wrong_trial, wrong_wish
from dasktune.types import (
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
"""Returns the tuner that goes on in the place of the one it is given."""

MOST_CALLS = 10_000
"""Calls within which a tuner must end, unless a test says otherwise."""

_EAGERNESS = 0.8
_OBJECTIVE = Objective.single("loss", Direction.MINIMIZE)


class Game:
    """Plays the engine's part against a tuner.

    Parameters
    ----------
    tuner
        Who is played with; it must not have been used before.
    seed
        Decides the order of reports and asks, and which trials fail; at least 0.
    loss
        What trials report.
    capacity
        How many trials are trained at a time before the tuner is asked for no more.
    failures
        With which probability a trial fails where it would have reported.
    in_turn
        Whether reports come by step, then by trial, and the tuner is asked as soon as it
        can be. False leaves both to the seed.
    inputs
        For `Tuner.prepare`.
    most_calls
        Within how many calls the tuner must end.
    answers
        When predictions come that the tuner asks for.
    pace
        Seconds from one report to the next in the mean, on the clock of the game.
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
        directions = [one.value for one in _OBJECTIVE.directions]
        self.inputs: Inputs = {"directions": directions, **(inputs or {})}
        self.trials: list[Trial] = []
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
            At the first rule that is broken.
        """
        end = math.inf if calls is None else len(self.calls) + calls
        while not self.finished and len(self.calls) < end:
            if len(self.calls) >= self._most_calls:
                self._fail(f"a tuner must finish within {self._most_calls} calls")
            self._move()
        return self

    def widen(self, trials: int, tuner: Tuner) -> None:
        """Go on with a tuner that took over the state of the first, and is given more trials.

        Raises
        ------
        ConformanceError
            If a rule is broken.
        """
        self.tuner, self.finished, self._nothing_to_ask = tuner, False, False
        self._call(Widen(trials=trials))

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
        elif (trial := self._oracle.next(is_idle=not running)) is not None:
            self._answer(trial)
        elif running:
            self._hear(self._next(running))
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
        self._call(Time(seconds=self.seconds))
        if not self.finished and self._due() <= self.seconds:
            self._fail(
                f"due_seconds must move on when the time is told, {self.seconds}, "
                f"got {self.tuner.due_seconds}"
            )

    def _answer(self, number: int) -> None:
        """Tell a prediction; the question may have been asked anew by then, as by a new run."""
        question, trial = self._oracle.open.pop(number), self.trials[number]
        if self._oracle.asks_anew() and trial.step < trial.registered.max_steps:
            question = self._question(number)
        self._call(Answer(trial=number, prediction=self._oracle.answer(question)))

    def _question(self, trial: int) -> Question:
        found = question_of(self.tuner, trial)
        if isinstance(found, str):
            raise ConformanceError(found, self.calls)
        return found

    def _asks(self, running: list[Trial]) -> bool:
        return self._in_turn or not running or self._random.random() < _EAGERNESS

    def _next(self, running: list[Trial]) -> Trial:
        if self._in_turn:
            return min(running, key=lambda trial: (trial.coming[0], trial.number))
        return running[self._random.integers(len(running))]

    def _ask(self, idle: int) -> None:
        before = self.snapshot()
        call = self._call(Ask(capacity=idle))
        self._nothing_to_ask = not call.decisions
        if not call.decisions and (self.snapshot() != before or call.proposals):
            self._fail(
                "an ask that returns nothing must change nothing, "
                f"the state was {before} and is {self.snapshot()}"
            )

    def _hear(self, trial: Trial) -> None:
        step = trial.coming.popleft()
        self.seconds += self._pace * (1.0 if self._in_turn else float(self._clock.exponential()))
        if self._random.random() < self._failures:
            trial.failed = True
            trial.coming.clear()
            self._oracle.open.pop(trial.number, None)
            self._call(Fail(trial=trial.number))
            return
        now = self._now(trial, step) if self.tuner.timed else None
        trial.told.append(step)
        metrics = self._metrics(trial, step)
        losses = _OBJECTIVE.losses(metrics)
        report = Report(trial=trial.number, step=step, metrics=metrics, losses=losses, now=now)
        self._call(Tell(report=report))

    def _metrics(self, trial: Trial, step: Step) -> Mapping[str, float]:
        return {"loss": self._loss(trial.number, step, trial.registered.sequences)}

    def _now(self, trial: Trial, step: Step) -> Now:
        """Return what a timed tuner is told: of some trials all steps, of others only these."""
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
        decisions = perform(self.tuner, cause, self.calls)
        call = Call(cause=cause, decisions=decisions, proposals=tuple(self.tuner.take_proposals()))
        self.calls.append(call)
        for decision in decisions:
            self._apply(decision)
        asked = [one.trial for one in decisions if isinstance(one, Predict)]
        questions = tuple(self._oracle.open[one] for one in asked if one in self._oracle.open)
        self.calls[-1] = replace(call, questions=questions)
        return call

    def _apply(self, decision: Decision) -> None:
        problem = self._wrong(decision)
        if problem:
            self._fail(problem)
        match decision:
            case Register():
                self.trials.append(Trial(registered=decision))
            case Extend():
                self.trials[decision.trial].extend(decision)
            case Stop():
                self.trials[decision.trial].stopped = True
                self.trials[decision.trial].coming.clear()
                self._oracle.open.pop(decision.trial, None)
            case Predict():
                self._oracle.open[decision.trial] = self._question(decision.trial)
            case Finish():
                self.finished = True
                self._oracle.open.clear()
                for trial in self.trials:
                    trial.coming.clear()
            case Rank():
                pass

    # ------------------------------------------------------------------------ the rules

    def _fail(self, problem: str) -> None:
        raise ConformanceError(problem, self.calls)

    def _wrong(self, decision: Decision) -> str:
        """Return the rule that a decision breaks; empty if none."""
        if self.finished:
            return f"nothing may be decided after Finish, got {in_words([decision])}"
        match decision:
            case Register():
                return wrong_trial(decision, len(self.trials), self.tuner.max_steps)
            case Extend() | Stop() | Rank() | Predict():
                if not 0 <= decision.trial < len(self.trials):
                    return f"trial {decision.trial} must be registered before {decision}"
                trial = self.trials[decision.trial]
                return wrong_wish(decision, trial, is_asked=trial.number in self._oracle.open)
            case Finish():
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
    """Return the game that was played with a tuner until it finished; see `Game`.

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
    """Give another tuner the calls of a game, and compare what it decides and wants predicted.

    As in the log of a study, an ask that came to nothing is left out.

    Parameters
    ----------
    game
        What was played before.
    tuner
        Must not have been used before.
    why
        What the decisions must be the same in spite of, for the message.
    renew
        Exchanges the tuner before the first call and after each.
    mirror
        Whether the metric changes its sign, and is maximised.
    feed
        Whether the tuner is given what the sampler proposed, before each call.

    Raises
    ------
    ConformanceError
        At the first decision that differs.
    """
    tuner.prepare({**game.inputs, **({"directions": ["maximize"]} if mirror else {})})
    tuner = renew(tuner) if renew else tuner
    for number, call in enumerate(game.calls):
        if isinstance(call.cause, Ask) and not call.decisions:
            continue
        cause = call.cause
        if mirror and isinstance(cause, Tell):
            cause = Tell(report=_mirrored(cause.report))
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
    """Compare what a tuner wants predicted with what was, in a call of a game."""
    call = game.calls[number]
    asked = [one.trial for one in call.decisions if isinstance(one, Predict)]
    for trial, expected in zip(asked, call.questions, strict=False):
        found = question_of(tuner, trial)
        text = found if isinstance(found, str) else in_full(found)
        if text != in_full(expected):
            raise ConformanceError(
                f"questions must be the same {why}: call {number}, {call.cause}, gave {text}, "
                f"before it was {in_full(expected)}",
                game.calls[: number + 1],
            )


def _mirrored(report: Report) -> Report:
    """Return a report of the same losses, of a metric that is maximised."""
    metrics: Mapping[str, float] = {name: -value for name, value in report.metrics.items()}
    losses = Objective.single("loss", Direction.MAXIMIZE).losses(metrics)
    return replace(report, metrics=metrics, losses=losses)
