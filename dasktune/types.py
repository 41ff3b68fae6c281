"""The types that every other part uses: values, reports, decisions, trial states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NoReturn, Protocol

from dasktune.errors import ConfigurationError, UnknownValueError, unknown
from dasktune.needs import Needs

Step = int
"""One logical training iteration: the one unit of progress."""

Value = int | float | bool | str | None
"""The value of a hyper-parameter at one step, as a trainer receives it."""

Metrics = Mapping[str, float]
"""Metric values of one state by name."""


ENDED_AT: Final = "ended_at"
"""Metric of a trainer that has ended by itself: the last step that it has trained.

Later steps train nothing, and no figure counts them.
"""


def ended_at(metrics: Metrics) -> Step | None:
    """Return the last step that was trained, if the trainer has ended by itself.

    Examples
    --------
    >>> ended_at({"loss": 0.1, "ended_at": 12.0}), ended_at({"loss": 0.1})
    (12, None)
    """
    at = metrics.get(ENDED_AT, math.nan)
    return int(at) if math.isfinite(at) and at >= 0 else None


class ValueFunction(Protocol):
    """A hyper-parameter as a pure function of the step.

    `dasktune.sequences.Sequence` implements it; the graph and the tuners use only these
    methods.
    """

    @property
    def end(self) -> int | None:
        """Number of steps for which the function is defined; None if it is unlimited."""

    def __call__(self, step: Step) -> Value:
        """Return the value at `step`, counted from 0."""

    def values(self, start: Step, stop: Step) -> list[Value]:
        """Return the values at the steps from `start` up to, not including, `stop`."""

    def constant_until(self, step: Step) -> int | None:
        """Return the first later step at which the value may differ, or None."""

    def boundaries(self, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the steps strictly between at which a piecewise value changes."""

    def leaf_at(self, step: Step) -> tuple[ValueFunction, Step, int | None]:
        """Return the function that applies at `step`, its first step and its end."""

    def to_json(self) -> dict[str, object]:
        """Return the function as a JSON document."""


Sequences = Mapping[str, ValueFunction]
"""The hyper-parameters of one trial by name."""


class HyperParameters(dict[str, Value]):
    """The hyper-parameters that a trainer gets: a dict of some, from which all can be read.

    Parameters
    ----------
    given
        What iteration, ``items()``, ``get`` and ``in`` show: for ``setup``, the changed values.
    current
        All values of the step by name.

    Examples
    --------
    >>> hp = HyperParameters({"lr": 0.1}, {"lr": 0.1, "width": 8})
    >>> hp, hp["width"], "width" in hp
    ({'lr': 0.1}, 8, False)
    """

    __slots__ = ("current",)

    def __init__(self, given: Any = (), current: Mapping[str, Value] | None = None) -> None:
        super().__init__(given)
        self.current: Mapping[str, Value] = {} if current is None else current

    def __missing__(self, name: str) -> Value:
        if name not in self.current:
            refuse_unknown_value(name, {**self.current, **self})
        return self.current[name]


class Config(dict[str, Any]):
    """The config of a trainer: a dict whose error for an unknown key lists the known keys."""

    __slots__ = ()

    def __missing__(self, key: object) -> NoReturn:
        raise UnknownValueError(
            f"{unknown('config key', key, map(str, self))}; "
            "it is given as create_study(config={...})"
        )


def refuse_unknown_value(name: object, known: Mapping[str, object]) -> NoReturn:
    """Raise the error for a hyper-parameter that a trial does not have.

    Raises
    ------
    UnknownValueError
        Always.
    """
    raise UnknownValueError(unknown("hyper-parameter", name, known))


_OF_LOSSES = frozenset({"loss", "error"})
_TURNED = frozenset(
    {"neg", "negative", "negated", "minus", "inverse", "reduction", "improvement", "correction"}
)
"""Words of names of metrics: of those to be minimized, and those that put it in doubt."""


class Direction(Enum):
    """Whether a metric is better when it is larger or smaller.

    Attributes
    ----------
    MAXIMIZE
        Larger is better.
    MINIMIZE
        Smaller is better.
    """

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

    @classmethod
    def of_metric(cls, name: str) -> Direction | None:
        """Return the direction that the name of a metric leaves no doubt about, if there is one.

        Examples
        --------
        >>> [Direction.of_metric(name) for name in ("valLoss", "error_rate", "accuracy", "-loss")]
        [<Direction.MINIMIZE: 'minimize'>, <Direction.MINIMIZE: 'minimize'>, None, None]
        """
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        # Of "-loss" and "1-error", too, the sign is not that of the word.
        is_clear = name[:1].isalpha() and words & _OF_LOSSES and not words & _TURNED
        return cls.MINIMIZE if is_clear else None

    def better(self, first: float, second: float) -> bool:
        """Return whether `first` is strictly better than `second`; NaN never is."""
        return first > second if self is Direction.MAXIMIZE else first < second


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The objective of a study: one metric, or several with a trade-off.

    Parameters
    ----------
    metrics
        Names of the metrics.
    directions
        One for each metric.
    """

    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]

    @classmethod
    def single(cls, metric: str, direction: str | Direction) -> Objective:
        """Return the objective of one metric."""
        return cls(metrics=(metric,), directions=(Direction.parse(direction),))

    def values(self, metrics: Metrics) -> tuple[float, ...]:
        """Return the values of the objective's metrics, all of which must be present."""
        return tuple(metrics[name] for name in self.metrics)

    def losses(self, metrics: Metrics) -> tuple[float, ...]:
        """Return the values as losses: smaller is better, and NaN becomes infinite.

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
    """The state of a trial; names and meanings are those of Optuna, and PAUSED.

    Attributes
    ----------
    RUNNING
        Its tuner has asked for steps that it does not have yet.
    PAUSED
        It has all steps that its tuner has asked for; the tuner may ask for more.
    COMPLETE
        It has reached its last step.
    PRUNED
        Its tuner has stopped it before its last step.
    FAIL
        It has failed, and reports no more.
    """

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def is_finished(self) -> bool:
        """Whether the trial accepts no more reports."""
        return self not in (TrialState.RUNNING, TrialState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Time and capacity of the run at a report, for tuners that use them.

    Parameters
    ----------
    seconds
        Running time of the tuner, without interruptions.
    step_seconds
        Time of a step of the report's trial, evaluation included; 0 before a measurement.
    workers
        Number of stages that can run at a time.
    between
        ``(step, losses)`` measured since the trial's last report, ascending: the learning curve
        between the few steps that are reported to the tuner.
    """

    seconds: float
    step_seconds: float
    workers: int
    between: tuple[tuple[Step, tuple[float, ...]], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the value as JSON, with null for infinite losses."""
        between = [
            [step, [loss if math.isfinite(loss) else None for loss in losses]]
            for step, losses in self.between
        ]
        document: dict[str, object] = {
            "seconds": self.seconds,
            "step_seconds": self.step_seconds,
            "workers": self.workers,
        }
        return {**document, "between": between} if between else document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Now:
        """Return the value of a document of `to_json`."""
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
    """The final metrics of one trial after `step` steps of training.

    Parameters
    ----------
    trial
        The trial's number.
    step
        Steps trained.
    metrics
        Values by name, as the trainer returned them.
    losses
        One for each objective of the study: smaller is better for every direction, and NaN and
        infinite values are infinite. Tuners decide by these.
    now
        Time and capacity, for tuners that use them; None for others.
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
        """The first objective's losses: those in `now` since the last report, then this one."""
        between = () if self.now is None else self.now.between
        return (*((step, losses[0]) for step, losses in between), (self.step, self.loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Register a trial; its training is requested separately.

    Parameters
    ----------
    trial
        Its number in the study, counted from 0.
    sequences
        Its hyper-parameters; each must be defined for `max_steps` steps.
    max_steps
        Largest step of training: branch points up to here are known from now on.
    params
        The sampled values by hyper-parameter; JSON values.
    point, domains
        The sampled values and the domains by coordinate of the space; JSON values for
        samplers.
    seed
        Added to the study's training seed, for repeats of a configuration.
    needs
        What its stages ask of their workers, beside the needs of the study. None where no trial
        of the tuner has needs of its own; beside others that have, `Needs()` for a trial without.
    model_rank
        The rank of its model among all models of its sampler when it was drawn, from 0 to 1: higher
        ranks go to better classes of workers where the speeds leave a choice. None without ranks.
    problem
        Why it cannot be trained: it fails with these words at its first request. Empty if it can.
    """

    trial: int
    sequences: Sequences
    max_steps: Step
    params: Mapping[str, object] = field(default_factory=dict)
    point: Mapping[str, Value] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    seed: int = 0
    needs: Needs | None = None
    model_rank: float | None = None
    problem: str = ""


LAST: Final = -(2.0**39)
"""A request with a priority below this goes behind all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Request the training of a trial up to step `until`, and a report there.

    Parameters
    ----------
    trial
        The trial's number.
    until
        The last step; replaces the earlier request.
    priority
        Higher goes first. Negative priorities are an order of trials that the tuner wants equally:
        on several classes of workers, the class that suits a trial counts before this order.
        Those below `LAST` go behind all others on every class.
    reports
        Earlier steps to report, too, ascending; the training continues after them unless the
        tuner stops it.
    """

    trial: int
    until: Step
    priority: float = 0.0
    reports: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a trial and withdraw its requests.

    Parameters
    ----------
    trial
        Its number.
    """

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """Change the priority of a trial's requests; higher goes first.

    Parameters
    ----------
    trial
        Its number.
    priority
        The new priority.
    """

    trial: int
    priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Predict:
    """Ask the tuner's predictor for the rest of a trial's learning curve.

    The prediction is computed during the training and sent to the tuner when it is ready. After
    that the tuner may ask for the trial again.

    Parameters
    ----------
    trial
        Its number.
    """

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assess:
    """Ask how much the losses of a model vary, for a sampler that searches models apart.

    The priority is computed during the training, and sent to the tuner when it is ready.

    Parameters
    ----------
    model
        The model's number in its forest.
    """

    model: int


@dataclass(frozen=True, slots=True)
class Finish:
    """End the tuner; its paused trials become pruned.

    Parameters
    ----------
    reason
        A text for people, for an end before the end of every trial. It has no effect, and
        comparisons ignore it.
    """

    reason: str = field(default="", compare=False)


Decision = Register | Extend | Stop | Rank | Predict | Assess | Finish
"""The decisions of a tuner."""
