"""A game with a tuner: every call that an engine could make, and every rule checked.

No training, no workers and no clock: the game keeps what the tuner registered and asked
for, and answers with reports and failures in an order that nothing but a seed decides.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import numpy as np

from dasktune.algos.base import Inputs, Tuner
from dasktune.errors import ConfigurationError
from dasktune.testing.calls import (
    Ask,
    Call,
    Cause,
    ConformanceError,
    Fail,
    Tell,
    Widen,
    difference,
    in_words,
    perform,
)
from dasktune.types import (
    Decision,
    Direction,
    Extend,
    Finish,
    Objective,
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


@dataclass(slots=True, kw_only=True)
class Trial:
    """What a game knows of a trial.

    Parameters
    ----------
    registered
        The decision that made it known.
    told
        The steps that it has reported, ascending.
    until
        How far it was asked for at last.
    coming
        The steps at which it will report.
    stopped, failed
        Whether its tuner ended it, or it failed: it reports no more.
    """

    registered: Register
    told: list[Step] = field(default_factory=list)
    until: Step = 0
    coming: deque[Step] = field(default_factory=deque)
    stopped: bool = False
    failed: bool = False

    @property
    def number(self) -> int:
        """Its number, counted from 0."""
        return self.registered.trial

    @property
    def step(self) -> Step:
        """The last step it has reported, 0 before the first."""
        return self.told[-1] if self.told else 0

    @property
    def reach(self) -> Step:
        """How far its tuner let it go: what it was asked for, or has reported if stopped."""
        return self.step if self.stopped else max(self.step, self.until)

    def extend(self, decision: Extend) -> None:
        """Take a request in the place of the one before."""
        self.until = decision.until
        self.coming = deque((*decision.reports, decision.until))


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
    ) -> None:
        self.tuner = tuner
        self.inputs: Inputs = dict(inputs or {})
        self.trials: list[Trial] = []
        self.calls: list[Call] = []
        self.finished = False
        self._loss, self._capacity, self._failures = loss, capacity, failures
        self._in_turn, self._most_calls = in_turn, most_calls
        self._random = np.random.default_rng(seed)
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
            running = [trial for trial in self.trials if trial.coming]
            idle = self._capacity - len(running)
            if idle > 0 and not self._nothing_to_ask and self._asks(running):
                self._ask(idle)
            elif running:
                self._hear(self._next(running))
            else:
                self._fail("a tuner that waits for nothing must finish or ask for something")
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
        self._nothing_to_ask = False
        step = trial.coming.popleft()
        if self._random.random() < self._failures:
            trial.failed = True
            trial.coming.clear()
            self._call(Fail(trial=trial.number))
            return
        trial.told.append(step)
        metrics = {"loss": self._loss(trial.number, step, trial.registered.sequences)}
        losses = _OBJECTIVE.losses(metrics)
        report = Report(trial=trial.number, step=step, metrics=metrics, losses=losses)
        self._call(Tell(report=report))

    def _call(self, cause: Cause) -> Call:
        decisions = perform(self.tuner, cause, self.calls)
        call = Call(cause=cause, decisions=decisions, proposals=tuple(self.tuner.take_proposals()))
        self.calls.append(call)
        for decision in decisions:
            self._apply(decision)
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
            case Finish():
                self.finished = True
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
                return self._wrong_trial(decision)
            case Extend() | Stop() | Rank():
                if not 0 <= decision.trial < len(self.trials):
                    return f"trial {decision.trial} must be registered before {decision}"
                if not isinstance(decision, Stop) and not math.isfinite(decision.priority):
                    return f"a priority must be finite, got {decision}"
                return self._wrong_request(decision) if isinstance(decision, Extend) else ""
            case Finish():
                return ""
            case _:
                return f"a tuner must return decisions, got {decision!r}"

    def _wrong_trial(self, decision: Register) -> str:
        expected, horizon = len(self.trials), decision.max_steps
        if decision.trial != expected:
            return f"trials must be numbered 0, 1, 2...: expected {expected}, got {decision.trial}"
        if not 1 <= horizon <= self.tuner.max_steps:
            return f"max_steps must be from 1 to the tuner's {self.tuner.max_steps}, got {horizon}"
        for name, sequence in decision.sequences.items():
            try:
                sequence(horizon - 1)
            except ConfigurationError as error:
                return f"{name} must be defined for {horizon} steps: {error}"
        domains = {name: dict(domain) for name, domain in decision.domains.items()}
        try:
            for one in (dict(decision.params), dict(decision.point), domains):
                json.dumps(one, allow_nan=False)
        except (TypeError, ValueError) as error:
            return f"params, point and domains must be JSON: {error}"
        return ""

    def _wrong_request(self, decision: Extend) -> str:
        trial = self.trials[decision.trial]
        if trial.failed or trial.stopped:
            how = "failed" if trial.failed else "was stopped"
            return f"trial {trial.number} {how} and must not be extended, got {decision}"
        if not trial.step < decision.until <= trial.registered.max_steps:
            return (
                f"trial {trial.number} is at step {trial.step}, its max_steps is "
                f"{trial.registered.max_steps}: until must lie between, got {decision}"
            )
        steps = (trial.step, *decision.reports, decision.until)
        if any(later <= earlier for earlier, later in pairwise(steps)):
            return (
                f"trial {trial.number} is at step {trial.step}: reports must ascend from there "
                f"to before until, got {decision}"
            )
        return ""


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
    ).run()


def replay(
    game: Game,
    tuner: Tuner,
    why: str,
    *,
    renew: Renew | None = None,
    change: Callable[[Report], Report] | None = None,
    feed: bool = False,
) -> None:
    """Give another tuner the calls of a game, and compare what it decides.

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
    change
        Tells each report in another way.
    feed
        Whether the tuner is given what the sampler proposed, before each call.

    Raises
    ------
    ConformanceError
        At the first decision that differs.
    """
    tuner.prepare(game.inputs)
    tuner = renew(tuner) if renew else tuner
    for number, call in enumerate(game.calls):
        if isinstance(call.cause, Ask) and not call.decisions:
            continue
        cause = call.cause
        if change and isinstance(cause, Tell):
            cause = Tell(report=change(cause.report))
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


def mirrored(report: Report) -> Report:
    """Return a report of the same losses, of a metric that is maximised."""
    metrics: Mapping[str, float] = {name: -value for name, value in report.metrics.items()}
    losses = Objective.single("loss", Direction.MAXIMIZE).losses(metrics)
    return Report(trial=report.trial, step=report.step, metrics=metrics, losses=losses)
