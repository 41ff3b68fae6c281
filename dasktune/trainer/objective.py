"""An objective of Optuna as a trainer: it runs as it is, a step is what it does between reports."""

from __future__ import annotations

import inspect
import logging
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ClassVar, NoReturn

from dasktune._numbers import measured, not_measured
from dasktune.errors import (
    ConfigurationError,
    StateError,
    TrainerError,
    UnknownValueError,
    name_problems,
    refuse,
    shown,
)
from dasktune.space.define_by_run import Suggesting
from dasktune.space.domains import Choice, Float, Int
from dasktune.trainer.base import Trainer, problems_of
from dasktune.trainer.function import OPTIONS, drawn_from
from dasktune.trainer.suggesting_part import run_suggestions
from dasktune.trainer.turns import Turns
from dasktune.types import Value

logger = logging.getLogger(__name__)

VALUE = "value"
"""The metric that an objective reports and returns."""

_PAGE = "docs/from-optuna.md"


def from_optuna(
    objective: Callable[[Any], object], *, ends_early: bool = False
) -> Callable[[Any], Mapping[str, object]]:
    """Return an objective of Optuna in a form that studies and tuners take, without any change.

    A step lasts from one ``trial.report(value, step)`` to the next; the metric is ``"value"``.
    ``return`` ends one more step, whose metric is the returned value. So an objective with
    9 reports is trained for ``max_steps=9``, or 10 with its end. One that only returns has
    one step.

    An objective does not say what its state is, so **no model is saved**. What is saved are the
    values that it has reported. A trial that goes on elsewhere or after another one is trained
    again from its start up to where it was, and fails if it reports other values than before.
    These steps are repeated each time, and no count of steps shows them.

    Parameters
    ----------
    objective
        A function of a trial. It must suggest its values in statements before those that report or
        return. All generators are seeded before it runs.
    ends_early
        Whether it may return before the last report. Its value then holds for all
        later steps; False refuses these, since `max_steps` is probably too large.

    Returns
    -------
    callable
        To be given both to `dasktune.create_study` and to a tuner in place of the space.

    Raises
    ------
    ConfigurationError
        If it is not a function of one argument.

    Examples
    --------
    >>> def objective(trial):
    ...     x, lr = 1.0, trial.suggest_float("lr", 0.0, 0.5)
    ...     for step in range(2):
    ...         x -= lr * 2 * x
    ...         trial.report(x**2, step)
    ...     return x**2
    >>> from dasktune.trainer.lifecycle import run_alone
    >>> run_alone(from_optuna(objective), {"lr": 0.25}, 2).metrics
    {1: {'value': 0.25}, 2: {'value': 0.0625}}
    """
    if inspect.isclass(objective) or not inspect.isfunction(objective):
        raise ConfigurationError(_no_function(shown(objective)))
    if objective.__name__ == "<lambda>":
        raise ConfigurationError(_no_function("a lambda"))
    refuse(problem.replace("the run", "the trial") for problem in problems_of(objective))

    @wraps(objective)
    def drawn(trial: Any) -> Mapping[str, object]:
        if not isinstance(trial, Suggesting):
            raise ConfigurationError("dasktune runs what from_optuna returns: see " + _PAGE)
        run_suggestions(objective, ObjectiveTrial(trial.suggest))
        return trial.ended()

    options = {name: getattr(objective, name) for name in OPTIONS if hasattr(objective, name)}
    place = {"__module__": objective.__module__, "__qualname__": objective.__qualname__}
    members = {"objective": staticmethod(objective), "ends_early": ends_early, **place, **options}
    vars(drawn)[TRAINER] = type(objective.__name__, (ObjectiveTrainer,), members)
    return drawn


def _no_function(given: str) -> str:
    return (
        f"objective must be a function of a trial, made by def, got {given}; write a function that "
        "calls yours: def objective(trial): return yours(trial, ...)"
    )


TRAINER = "_dasktune_trainer"
"""Attribute of what `from_optuna` returns: the trainer class."""


class ObjectiveTrial:
    """The trial that an objective of Optuna gets under dasktune.

    Attributes
    ----------
    params
        The values that were suggested, by name.
    user_attrs
        What `set_user_attr` was given. Numbers are metrics of the trial, too.

    Parameters
    ----------
    value_of
        Returns the value of a hyper-parameter, by its name and domain.
    end_step
        Ends a step. None if the values are drawn, and nothing is trained.
    """

    def __init__(
        self,
        value_of: Callable[[str, Float | Int | Choice], Any],
        end_step: Callable[[], None] | None = None,
    ) -> None:
        self.params: dict[str, Any] = {}
        self.user_attrs: dict[str, Any] = {}
        self._value_of, self._end_step = value_of, end_step
        self._metrics: dict[str, float] = {}
        self._steps: set[int] = set()

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the value of a hyper-parameter; see `dasktune.space.Float`."""
        return float(self._suggested(name, Float(low, high, step=step, log=log)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return the value of an integer; see `dasktune.space.Int`."""
        return int(self._suggested(name, Int(low, high, step=step, log=log)))

    def suggest_categorical(self, name: str, choices: Iterable[Value]) -> Any:
        """Return one of the plain values."""
        return self._suggested(name, Choice(choices))

    def report(self, value: float, step: int) -> None:
        """End a step with its value; a second report of a step is ignored, as in Optuna."""
        if step in self._steps:
            logger.warning("the objective has reported step %s twice; the second is ignored", step)
            return
        self._steps.add(step)
        self._metrics[VALUE] = _number("trial.report", value)
        if self._end_step is not None:
            self._end_step()

    def should_prune(self) -> bool:
        """Return False: a trial that a tuner stops does not come back from its report."""
        return False

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value; a number is a metric from the present step on."""
        self.user_attrs[key] = value
        if (number := measured(value)) is None:
            if self._end_step is not None:
                logger.warning("user attribute %r is not kept: a trial keeps numbers only", key)
            return
        if key == VALUE or (problems := name_problems("a user attribute", key)):
            raise TrainerError(problems[0] if key != VALUE else f"{key!r} is the objective's value")
        self._metrics[key] = number

    def __getattr__(self, name: str) -> NoReturn:
        known = "params, report, set_user_attr, should_prune, suggest_categorical, suggest_float, "
        why = "; equal trials share their training, so it has no number" * (name == "number")
        raise AttributeError(
            f"a trial under dasktune has no {name!r}{why}; it has {known}suggest_int, user_attrs "
            f"({_PAGE})"
        )

    def _suggested(self, name: str, domain: Float | Int | Choice) -> Any:
        self.params[name] = self._value_of(name, domain)
        return self.params[name]


def trained_with(values: Mapping[str, Value]) -> Callable[[str, Float | Int | Choice], Value]:
    """Return a function that gives an objective the values that were drawn for its trial."""

    def value_of(name: str, domain: Float | Int | Choice) -> Value:
        if name not in values:
            known = ", ".join(sorted(values))
            raise UnknownValueError(
                f"the value of {name!r} must be suggested before the objective trains, and with "
                f"equal values before it in any case; the space has: {known}"
            )
        return drawn_from(domain, name, values[name])

    return value_of


class ObjectiveTrainer(Trainer):
    """The trainer of an objective; made by `from_optuna`.

    Attributes
    ----------
    deterministic, threads
        See `dasktune.TorchTrainer`; an objective may have them as attributes.
    """

    objective: ClassVar[Callable[[Any], object]]
    ends_early: ClassVar[bool] = False
    requires_process: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    threads: ClassVar[int] = 1

    def build(self, hp: Mapping[str, Value]) -> None:
        """Prepare the run of the objective; it begins with the first step."""
        kind, seed, device = type(self), self.seed, self.device
        # Hidden from the check, which compares what is saved: all else is made again.
        self._dasktune_reports: list[dict[str, float]] = []
        self._dasktune_returned: list[float] = []
        returned = self._dasktune_returned
        self._dasktune_trial = trial = ObjectiveTrial(trained_with(dict(hp)), lambda: turns.pause())

        from dasktune.trainer.torch import prepared  # it takes seconds where torch is installed

        def body() -> None:
            with prepared(seed, device, threads=kind.threads, is_deterministic=kind.deterministic):
                try:
                    value = kind.objective(trial)
                except Exception as error:
                    if not _is_pruned(error):
                        raise
                    value = math.nan
                returned.append(_number(f"the return value of {kind.__name__}", value))

        turns = self._dasktune_turns = Turns(body)
        weakref.finalize(self, turns.close)

    def train(self) -> None:
        """Run the objective up to its next report, or to its end."""
        reports, returned = self._dasktune_reports, self._dasktune_returned
        is_over = bool(returned)
        if is_over and not (self.ends_early or math.isnan(returned[0])):
            raise TrainerError(
                f"{type(self).__name__} has returned in step {len(reports)}, and is to be trained "
                f"for another one: max_steps must be at most {len(reports)}; if it may return "
                "before its last report, write dasktune.from_optuna(objective, ends_early=True)"
            )
        if is_over:
            reports.append(reports[-1])
            return
        is_paused = self._dasktune_turns.go_on()
        metrics = dict(self._dasktune_trial._metrics)
        if not is_paused:
            metrics[VALUE] = returned[0]
        reports.append(metrics)

    def evaluate(self) -> Mapping[str, float]:
        """Return the value of the last step, and the numbers of `set_user_attr`."""
        return self._dasktune_reports[-1]

    def state_dict(self) -> Mapping[str, object]:
        """Return the metrics of all steps, and the returned value if there is one."""
        reports = [dict(report) for report in self._dasktune_reports]
        return {"reports": reports, "returned": list(self._dasktune_returned)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Train again up to the saved step; nothing is trained if the objective has returned.

        Raises
        ------
        StateError
            If it reports other values than before.
        """
        if state["returned"]:
            self._dasktune_reports += map(dict, state["reports"])
            self._dasktune_returned += state["returned"]
            return
        for index, before in enumerate(state["reports"]):
            self.train()
            now = self._dasktune_reports[-1]
            if repr(sorted(now.items())) != repr(sorted(before.items())):
                raise StateError(
                    f"state['reports'][{index}]",
                    f"must be reported again as it was, {before}, got {now}: no model of an "
                    "objective is saved, so it is trained again from its start, with the same "
                    "seed. Something else decides its result, such as a generator without a seed",
                )


def _number(what: str, value: Any) -> float:
    if (number := measured(value)) is None:
        raise TrainerError(f"{what} must be one {not_measured(value)}")
    return number


def _is_pruned(error: Exception) -> bool:
    optuna = sys.modules.get("optuna")
    return optuna is not None and isinstance(error, optuna.TrialPruned)
