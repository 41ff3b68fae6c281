"""Observations: what is known of the trials of a source, as a sampler is to see it.

Tuners that stop or pause trials report them at several steps. Losses at different steps
are not comparable, so a sampler is shown all trials at one *level*: the largest step at
which enough of them have reported [1].

References
----------
[1] Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at
Scale", ICML 2018, section 4.1: the model is that of the largest budget with enough
observations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dasktune.errors import ConfigurationError, InternalError
from dasktune.types import Step, TrialState, Value

Losses = tuple[float, ...]


class Outcome(NamedTuple):
    """A trial as a sampler is to see it.

    Attributes
    ----------
    state
        ``RUNNING``, ``COMPLETE`` or ``FAIL``.
    losses
        Finite; empty unless it is complete.
    """

    state: TrialState
    losses: Losses = ()


RUNNING = Outcome(TrialState.RUNNING)
FAILED = Outcome(TrialState.FAIL)


@dataclass(slots=True, kw_only=True)
class Observed:
    """One trial.

    Parameters
    ----------
    trial
        Its number; None if it is an earlier one, of another tuner or study.
    point
        Values by coordinate.
    domains
        What each coordinate may be, as `dasktune.space.Configuration` has it.
    notes
        What its sampler noted for itself; JSON.
    losses
        By step: finite or plus infinity.
    failed
        Whether it reports no more.
    """

    trial: int | None
    point: Mapping[str, Value]
    domains: Mapping[str, Mapping[str, object]]
    notes: Mapping[str, Any] = field(default_factory=dict)
    losses: dict[Step, Losses] = field(default_factory=dict)
    failed: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, without its domains; an infinite loss is null."""
        return {
            "trial": self.trial,
            "point": dict(self.point),
            "notes": dict(self.notes),
            "losses": [
                [step, [loss if math.isfinite(loss) else None for loss in losses]]
                for step, losses in self.losses.items()
            ],
            "failed": self.failed,
        }


def losses_of(document: Any) -> dict[Step, Losses]:
    """Return losses by step from their JSON."""
    return {
        step: tuple(math.inf if loss is None else loss for loss in losses)
        for step, losses in document
    }


class Observations:
    """All trials of a source, in the order in which they came.

    Attributes
    ----------
    trials
        What is known of each.
    expected
        How many losses a report has; None until it is known.
    """

    def __init__(self) -> None:
        self.trials: list[Observed] = []
        self._places: dict[int, int] = {}
        self._coordinates: set[str] = set()
        self._reports: Counter[Step] = Counter()
        self._levels: set[Step] = set()
        self.expected: int | None = None

    @property
    def objectives(self) -> int:
        """How many losses a report has; one until it is known."""
        return self.expected or 1

    def add(self, one: Observed) -> None:
        """Take in a trial, with what it has reported."""
        reported, one.losses = one.losses, {}
        place = len(self.trials)
        self.trials.append(one)
        if one.trial is not None:
            self._places[one.trial] = place
        self._coordinates.update(one.point)
        for step, losses in reported.items():
            self._report(one, step, losses)

    def report(self, trial: int, step: Step, losses: Losses) -> None:
        """Take in a report of a trial."""
        self._report(self._of(trial), step, losses)

    def fail(self, trial: int) -> None:
        """Take in that a trial reports no more."""
        self._of(trial).failed = True

    def level(self, at_least: int = 0) -> Step | None:
        """Return the step at which trials are compared.

        The largest at which enough have reported: two more than there are coordinates, and
        `at_least`. While there is none, the step with the most reports, the larger of
        equals; None before the first report. Earlier trials count with the others, but do
        not make a level of their own: this tuner might never arrive there.
        """
        enough = max(len(self._coordinates) + 2, at_least)
        reached = [step for step in self._levels if self._reports[step] >= enough]
        if reached:
            return max(reached)
        return max(self._levels, key=lambda step: (self._reports[step], step), default=None)

    def outcomes(self, at_least: int = 0) -> list[Outcome]:
        """Return each trial as a sampler is to see it.

        One that has reported at the level is complete with its loss there, whatever became
        of it later; otherwise it has failed or is running: also where it waits on a lower
        rung, or began on a higher one. Earlier trials are always complete.

        An infinite loss is the worst finite one of the objective, so that a sampler avoids
        what diverges without having to calculate with infinity; until there is a finite one,
        nothing is known of how bad it is, and the trial is running.
        """
        level = self.level(at_least) or 0
        shown = [
            one.losses.get(level) if one.trial is not None else _only(one) for one in self.trials
        ]
        worst = [
            max((found[at] for found in shown if found and math.isfinite(found[at])), default=None)
            for at in range(self.objectives)
        ]
        return [_outcome(one, found, worst) for one, found in zip(self.trials, shown, strict=True)]

    def _of(self, trial: int) -> Observed:
        if trial not in self._places:
            raise InternalError(f"trial {trial} has a report, and was never proposed")
        return self.trials[self._places[trial]]

    def _report(self, one: Observed, step: Step, losses: Losses) -> None:
        self.expected = self.expected or len(losses)
        if len(losses) != self.expected:
            raise ConfigurationError(
                f"all trials must have as many losses, got {self.expected} and {len(losses)}"
            )
        if step not in one.losses:
            self._reports[step] += 1
        one.losses[step] = losses
        if one.trial is not None:
            self._levels.add(step)


def _only(earlier: Observed) -> Losses:
    return next(iter(earlier.losses.values()))


def _outcome(one: Observed, found: Losses | None, worst: list[float | None]) -> Outcome:
    if found is not None:
        told = [
            loss if math.isfinite(loss) else most for loss, most in zip(found, worst, strict=True)
        ]
        known = tuple(loss for loss in told if loss is not None)
        if len(known) == len(told):
            return Outcome(TrialState.COMPLETE, known)
    return FAILED if one.failed else RUNNING
