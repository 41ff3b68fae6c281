"""The words that every other part uses: values, reports, decisions, trial states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from dasktune.errors import ConfigurationError

Step = int
"""One logical training iteration: the one unit of progress."""

Value = int | float | bool | str | None
"""What a trainer sees of a hyper-parameter at one step."""

Metrics = Mapping[str, float]
"""Metric values of one state by name."""


class ValueFunction(Protocol):
    """A hyper-parameter as a pure function of the step.

    `dasktune.sequences.Sequence` is the implementation; the graph and the tuners need
    no more than this.
    """

    @property
    def end(self) -> int | None:
        """Number of steps it is defined for; None if it never ends."""

    def __call__(self, step: Step) -> Value:
        """Return the value at `step`, counted from 0."""

    def constant_until(self, step: Step) -> int | None:
        """Return the first later step at which the value may differ; None if never."""

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the steps strictly between at which a piecewise value changes."""

    def leaf_at(self, step: Step) -> tuple[ValueFunction, Step, int | None]:
        """Return the function that rules at `step`, where it began, and where it ends."""

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""


Sequences = Mapping[str, ValueFunction]
"""The hyper-parameters of one trial by name."""


class Direction(Enum):
    """Whether a metric is better when it is larger or smaller."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"

    @classmethod
    def parse(cls, text: str | Direction) -> Direction:
        """Return the direction of that name.

        Raises
        ------
        ConfigurationError
            If the name is neither ``maximize`` nor ``minimize``.
        """
        try:
            return cls(text)
        except ValueError:
            raise ConfigurationError(
                f"direction must be 'maximize' or 'minimize', got {text!r}"
            ) from None

    def better(self, first: float, second: float) -> bool:
        """Return whether `first` is strictly better than `second`; NaN never is."""
        return first > second if self is Direction.MAXIMIZE else first < second


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What a study optimises: one metric, or several that are traded off.

    Parameters
    ----------
    metrics
        Their names.
    directions
        One for each.
    """

    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]

    @classmethod
    def single(cls, metric: str, direction: str | Direction) -> Objective:
        """Return the objective of one metric."""
        return cls(metrics=(metric,), directions=(Direction.parse(direction),))

    def values(self, metrics: Metrics) -> tuple[float, ...]:
        """Return the values of its metrics; they must be there."""
        return tuple(metrics[name] for name in self.metrics)

    def losses(self, metrics: Metrics) -> tuple[float, ...]:
        """Return its values as losses: smaller is better, and infinite what is not finite.

        Examples
        --------
        >>> best = Objective.single("accuracy", "maximize")
        >>> best.losses({"accuracy": 0.5}), best.losses({"accuracy": math.nan})
        ((-0.5,), (inf,))
        """
        return tuple(
            (-value if direction is Direction.MAXIMIZE else value)
            if math.isfinite(value)
            else math.inf
            for value, direction in zip(self.values(metrics), self.directions, strict=True)
        )


class TrialState(Enum):
    """The state of a trial; names and meaning are Optuna's, and PAUSED."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def is_finished(self) -> bool:
        """Whether the trial takes no more reports."""
        return self not in (TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What a timed tuner is told of the run at a report.

    Parameters
    ----------
    seconds
        Since the tuner began, without the time in which it did not run.
    step_seconds
        What a step of the report's trial takes, evaluation included; 0 while nothing has been
        measured.
    workers
        How many stages can run at a time.
    between
        ``(step, losses)`` of what was measured since the trial's last report, ascending: a
        tuner is told of few steps, and sees the curve between them here.
    """

    seconds: float
    step_seconds: float
    workers: int
    between: tuple[tuple[Step, tuple[float, ...]], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as JSON, which has no infinite numbers."""
        between = [
            [step, [loss if math.isfinite(loss) else None for loss in losses]]
            for step, losses in self.between
        ]
        found = {"seconds": self.seconds, "step_seconds": self.step_seconds}
        return {**found, "workers": self.workers, **({"between": between} if between else {})}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Now:
        """Return what `to_json` described."""
        return cls(
            seconds=document["seconds"],
            step_seconds=document["step_seconds"],
            workers=document["workers"],
            between=tuple(
                (step, tuple(math.inf if loss is None else loss for loss in losses))
                for step, losses in document.get("between", ())
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The metrics of one trial after `step` steps of training, final.

    Parameters
    ----------
    trial
        Which.
    step
        Steps trained.
    metrics
        By name, as the trainer gave them.
    losses
        One for each objective of the study: smaller is better whatever the direction, and
        infinite where a value is NaN or infinite. Tuners decide by these.
    now
        What a tuner that is timed is told besides; None for others.
    """

    trial: int
    step: Step
    metrics: Metrics
    losses: tuple[float, ...] = ()
    now: Now | None = None

    @property
    def loss(self) -> float:
        """The loss of the first objective."""
        return self.losses[0]

    @property
    def seen(self) -> tuple[tuple[Step, float], ...]:
        """The first objective's loss here, after those since the last report that `now` holds."""
        between = () if self.now is None else self.now.between
        return (*((step, losses[0]) for step, losses in between), (self.step, self.loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Make a trial known, before and apart from asking for its training.

    Parameters
    ----------
    trial
        Its number in the study, counted from 0.
    sequences
        Its hyper-parameters; each must be defined for `max_steps` steps.
    max_steps
        How far it may be trained: branch points up to here are known from now on.
    params
        What was sampled, by hyper-parameter; JSON values.
    point, domains
        The same by coordinate of the space, and what each coordinate may be: JSON values
        that a sampler understands.
    seed
        Added to the study's training seed: how repeats of a configuration differ.
    """

    trial: int
    sequences: Sequences
    max_steps: Step
    params: Mapping[str, object] = field(default_factory=dict)
    point: Mapping[str, Value] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Ask for a trial to be trained up to step `until` and reported there.

    Parameters
    ----------
    trial
        Which.
    until
        How far; takes the place of what was asked before.
    priority
        Higher goes first.
    reports
        Earlier steps to report as well, ascending; the training goes on meanwhile, until
        the tuner stops it.
    """

    trial: int
    until: Step
    priority: float = 0.0
    reports: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a trial: withdraw what is asked for it."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Change the priority of what is asked for a trial; higher goes first."""

    trial: int
    priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict:
    """Ask the tuner's predictor for the rest of a trial's learning curve.

    It is computed beside the training, and told when it is there. A trial may be asked for
    again when it has been told.
    """

    trial: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the tuner: what is paused becomes pruned.

    `reason` says why, for people, where it is not that every trial is at its end. It decides
    nothing, and tells no two of them apart.
    """

    reason: str = field(default="", compare=False)


Decision = Register | Extend | Stop | Rank | Predict | Finish
"""All that a tuner can do (DESIGN 5)."""
