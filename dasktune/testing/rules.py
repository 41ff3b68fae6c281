"""The rules of the protocol that a tuner's decision can break."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from dasktune.errors import ConfigurationError
from dasktune.types import Extend, Predict, Rank, Register, Step, Stop


@dataclass(slots=True, kw_only=True)
class GameTrial:
    """A trial in a game.

    Parameters
    ----------
    registered
        The decision that registered it.
    reported
        The steps that it has reported, ascending.
    until
        The last step of its latest request.
    coming
        The steps at which it will report.
    stopped, failed
        Whether its tuner stopped it, or it failed: it reports no more.
    """

    registered: Register
    reported: list[Step] = field(default_factory=list)
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
        return self.reported[-1] if self.reported else 0

    @property
    def reach(self) -> Step:
        """The last step of its request, or its last report if it was stopped."""
        return self.step if self.stopped else max(self.step, self.until)

    @property
    def ended(self) -> str:
        """How the trial ended, in words; empty if it can still report."""
        return "failed" if self.failed else "was stopped" if self.stopped else ""

    def extend(self, decision: Extend) -> None:
        """Replace the request."""
        self.until = decision.until
        self.coming = deque((*decision.reports, decision.until))


def problem_of_registration(decision: Register, expected: int, most_steps: Step) -> str:
    """Return the rule that a registration breaks, or an empty text.

    The trial must have the number `expected`; `most_steps` is the tuner's `max_steps`.
    """
    horizon = decision.max_steps
    if decision.trial != expected:
        return f"trials must be numbered 0, 1, 2...: expected {expected}, got {decision.trial}"
    if not 1 <= horizon <= most_steps:
        return f"max_steps must be from 1 to the tuner's {most_steps}, got {horizon}"
    for name, sequence in decision.sequences.items():
        try:
            sequence(horizon - 1)
        except ConfigurationError as error:
            return f"{name} must be defined for {horizon} steps: {error}"
    domains = {name: dict(domain) for name, domain in decision.domains.items()}
    try:
        for document in (dict(decision.params), dict(decision.point), domains):
            json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"params, point and domains must be JSON: {error}"
    return ""


def problem_of_decision(
    decision: Extend | Stop | Rank | Predict, trial: GameTrial, *, is_asked: bool
) -> str:
    """Return the rule that a decision about a trial breaks, or an empty text.

    `is_asked` is whether the tuner waits for a prediction of the trial.
    """
    match decision:
        case Extend() | Rank() if not math.isfinite(decision.priority):
            return f"a priority must be finite, got {decision}"
        case Extend() | Predict() if trial.ended:
            what = "extended" if isinstance(decision, Extend) else "predicted"
            return f"trial {trial.number} {trial.ended} and must not be {what}, got {decision}"
        case Extend():
            return _problem_of_request(decision, trial)
        case Predict() if is_asked:
            return f"trial {trial.number} must not be predicted again before its prediction came"
        case _:
            return ""


def _problem_of_request(decision: Extend, trial: GameTrial) -> str:
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
