"""Observations: the trials of a source, as a sampler sees them.

Tuners that stop or pause trials get reports at several steps. Losses at different steps are
not comparable, so a sampler sees all trials at one *level*: the largest step at which
enough of them have reported [1].

References
----------
[1] Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at
Scale", ICML 2018, section 4.1: the model of the largest budget with enough observations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dasktune.errors import ConfigurationError, InternalError
from dasktune.types import Sequences, Step, TrialState, Value

Losses = tuple[float, ...]


class TrialOutcome(NamedTuple):
    """A trial as a sampler sees it.

    Attributes
    ----------
    state
        ``RUNNING``, ``COMPLETE``, ``FAIL`` or ``PRUNED``: there was nothing to train.
    losses
        Finite; empty unless it is complete.
    """

    state: TrialState
    losses: Losses = ()


RUNNING = TrialOutcome(TrialState.RUNNING)
FAILED = TrialOutcome(TrialState.FAIL)
PRUNED = TrialOutcome(TrialState.PRUNED)


@dataclass(slots=True, kw_only=True)
class Observed:
    """The observations of one trial.

    Parameters
    ----------
    trial
        Its number; None for an earlier trial, of another tuner or study.
    point
        Values by coordinate.
    domains
        The domain of each coordinate, as in `dasktune.space.Configuration`.
    sequences
        Its hyper-parameters by name.
    notes
        Notes of its sampler for itself; JSON.
    losses
        By step: finite or plus infinity.
    failed
        Whether it reports no more.
    is_undrawn
        Whether it failed since no configuration could be drawn there: a sampler shall avoid it.
    """

    trial: int | None
    point: Mapping[str, Value]
    domains: Mapping[str, Mapping[str, object]]
    sequences: Sequences = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    losses: dict[Step, Losses] = field(default_factory=dict)
    failed: bool = False
    is_undrawn: bool = False

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, without domains and sequences; an infinite loss is null."""
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
        The observations of each.
    expected
        The number of losses of a report; None until it is known.
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
        """The number of losses of a report; 1 until it is known."""
        return self.expected or 1

    def add(self, observed: Observed) -> None:
        """Add a trial, with its reports."""
        reported, observed.losses = observed.losses, {}
        place = len(self.trials)
        self.trials.append(observed)
        if observed.trial is not None:
            self._places[observed.trial] = place
        self._coordinates.update(observed.point)
        for step, losses in reported.items():
            self._report(observed, step, losses)

    def report(self, trial: int, step: Step, losses: Losses) -> None:
        """Add a report of a trial."""
        self._report(self.of(trial), step, losses)

    def fail(self, trial: int) -> None:
        """Mark a trial as failed: it reports no more."""
        self.of(trial).failed = True

    def retry(self, trial: int) -> None:
        """Mark a failed trial as under way again."""
        self.of(trial).failed = False

    def level(self, at_least: int = 0) -> Step | None:
        """Return the step at which trials are compared.

        It is the largest step at which enough trials have reported: two more than there are
        coordinates, and `at_least`. While there is none, it is the step with the most reports,
        the larger of equals; None before the first report. Earlier trials count, but only at
        steps of this tuner's own trials: it might never arrive at others.
        """
        enough = max(len(self._coordinates) + 2, at_least)
        reached = [step for step in self._levels if self._reports[step] >= enough]
        if reached:
            return max(reached)
        return max(self._levels, key=lambda step: (self._reports[step], step), default=None)

    def outcomes(self, at_least: int = 0) -> list[TrialOutcome]:
        """Return each trial as a sampler sees it.

        A trial that has reported at the level is complete with its loss there, even if it
        failed later. Any other has failed or is running, also if it waits on a lower rung or
        began on a higher one. Earlier trials are always complete.

        An infinite loss is replaced by the worst finite loss of the objective: a sampler
        avoids diverging trials without calculating with infinity. Before there is a finite
        one the trial is running.
        """
        level = self.level(at_least) or 0
        shown = [
            each.losses.get(level) if each.trial is not None else _only(each)
            for each in self.trials
        ]
        worst = [
            max((row[at] for row in shown if row and math.isfinite(row[at])), default=None)
            for at in range(self.objectives)
        ]
        return [
            _outcome(each, losses, worst) for each, losses in zip(self.trials, shown, strict=True)
        ]

    def of(self, trial: int) -> Observed:
        """Return the observations of a trial that was proposed."""
        if trial not in self._places:
            raise InternalError(f"trial {trial} has a report, and was never proposed")
        return self.trials[self._places[trial]]

    def _report(self, observed: Observed, step: Step, losses: Losses) -> None:
        self.expected = self.expected or len(losses)
        if len(losses) != self.expected:
            raise ConfigurationError(
                f"all trials must have as many losses, got {self.expected} and {len(losses)}"
            )
        if step not in observed.losses:
            self._reports[step] += 1
        observed.losses[step] = losses
        if observed.trial is not None:
            self._levels.add(step)


def _only(earlier: Observed) -> Losses:
    return next(iter(earlier.losses.values()))


def _outcome(observed: Observed, losses: Losses | None, worst: list[float | None]) -> TrialOutcome:
    if losses is not None:
        capped = [
            loss if math.isfinite(loss) else most for loss, most in zip(losses, worst, strict=True)
        ]
        known = tuple(loss for loss in capped if loss is not None)
        if len(known) == len(capped):
            return TrialOutcome(TrialState.COMPLETE, known)
    if not observed.failed:
        return RUNNING
    return PRUNED if observed.is_undrawn else FAILED
