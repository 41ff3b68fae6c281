"""The rules of the protocol that a decision of a tuner can break, one by one."""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from dasktune.errors import ConfigurationError
from dasktune.types import Extend, Predict, Rank, Register, Step, Stop


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

    @property
    def ended(self) -> str:
        """How it ended, in words, if it can report no more; empty if it can."""
        return "failed" if self.failed else "was stopped" if self.stopped else ""

    def extend(self, decision: Extend) -> None:
        """Take a request in the place of the one before."""
        self.until = decision.until
        self.coming = deque((*decision.reports, decision.until))


def wrong_trial(decision: Register, expected: int, most_steps: Step) -> str:
    """Return what is wrong with a new trial; empty if nothing is.

    Parameters
    ----------
    decision
        That registers it.
    expected
        The number that it must have.
    most_steps
        The tuner's `max_steps`.
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
        for one in (dict(decision.params), dict(decision.point), domains):
            json.dumps(one, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"params, point and domains must be JSON: {error}"
    return ""


def wrong_wish(decision: Extend | Stop | Rank | Predict, trial: Trial, *, is_asked: bool) -> str:
    """Return what is wrong with a decision about a trial; empty if nothing is.

    Parameters
    ----------
    decision
        About it.
    trial
        As it stands.
    is_asked
        Whether a prediction of it is waited for.
    """
    match decision:
        case Extend() | Rank() if not math.isfinite(decision.priority):
            return f"a priority must be finite, got {decision}"
        case Extend() | Predict() if trial.ended:
            what = "extended" if isinstance(decision, Extend) else "predicted"
            return f"trial {trial.number} {trial.ended} and must not be {what}, got {decision}"
        case Extend():
            return _wrong_request(decision, trial)
        case Predict() if is_asked:
            return f"trial {trial.number} must not be predicted again before it was told"
        case _:
            return ""


def _wrong_request(decision: Extend, trial: Trial) -> str:
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
