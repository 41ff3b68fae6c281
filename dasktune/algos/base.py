"""The tuner: all that a class must do to decide what is trained, on one page.

A tuner is a state machine. The engine calls it and carries out the decisions it returns:

1. `Tuner.prepare` once, before everything else;
2. `Tuner.ask` when workers have nothing to do, until it returns `Finish`;
3. `Tuner.tell` for each report: at the step that an `Extend` asked for, and at the steps in
   its ``reports``. The reports of a trial come in the order of their steps, those of
   different trials in any order;
4. `Tuner.tell_failure` for a trial that failed and reports no more;
5. `Tuner.tell_prediction` for a prediction that it asked for with `Predict`,
   `Tuner.tell_priority` for the priority of a model that it asked for with `Assess`, and
   `Tuner.tell_time` when the time `Tuner.due_seconds` has come.

Each returns decisions: `Register` a trial (numbered from 0, in order), `Extend` it to a
step, `Stop` it, `Rank` it, `Predict` it, `Assess` a model of its sampler, `Finish`. A trial that
is not extended is paused.

The same calls in the same order must give the same decisions, so that the event log of a
study can be replayed: time, randomness and samples come only from the arguments.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import ClassVar, Final

from dasktune._lazy import method_of
from dasktune._numbers import whole_of
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.algos.unreached import unreached_changes
from dasktune.errors import ConfigurationError, InternalError, call_problems, refuse, shown
from dasktune.sequences import Sequence
from dasktune.space import Configuration, Space
from dasktune.types import Decision, Report, Step

_MOST_PROBLEMS = 10

_OF_OPTUNA: Final = {
    "n_trials": "trials=...",
    "n_startup_trials": "sampler=optuna.samplers.TPESampler(n_startup_trials=...)",
    "timeout": "study.optimize(tuner, limits=dasktune.Limits(seconds=...))",
    "n_jobs": "study.optimize(tuner, workers=...)",
    "study_name": "dasktune.create_study(train, name=...)",
    "direction": "dasktune.create_study(train, direction=...)",
}
"""Keywords of Optuna that are easily given to a tuner, and what to write in their place."""

Inputs = Mapping[str, object]
"""The inputs of a tuner before it begins; JSON. See `Tuner.prepare`."""

Proposal = Mapping[str, object]
"""The proposal of a sampler; JSON. It is an input of the tuner, and stands in the event log."""


class Tuner(ABC):
    """Decides what is trained next, and does nothing else.

    Examples
    --------
    Train three values to step 2, and the best of them to step 10:

    >>> from dasktune.sequences import Constant
    >>> from dasktune.types import Extend, Finish, Register
    >>> class BestOfThree(Tuner):
    ...     max_steps = 10
    ...     state = ("losses",)
    ...     def __init__(self):
    ...         self.losses = None
    ...     def ask(self, capacity):
    ...         if self.losses is not None:
    ...             return []
    ...         self.losses = []
    ...         return [
    ...             decision
    ...             for trial, lr in enumerate([0.1, 0.2, 0.4])
    ...             for decision in (
    ...                 Register(trial=trial, sequences={"lr": Constant(lr)}, max_steps=10),
    ...                 Extend(trial=trial, until=2),
    ...             )
    ...         ]
    ...     def tell(self, report):
    ...         return [Finish()] if report.step == 10 else self.count(report.loss, report.trial)
    ...     def tell_failure(self, trial):
    ...         return self.count(float("inf"), trial) if len(self.losses) < 3 else [Finish()]
    ...     def count(self, loss, trial):
    ...         self.losses.append([loss, trial])
    ...         if len(self.losses) < 3:
    ...             return []
    ...         loss, trial = min(self.losses)
    ...         return [Extend(trial=trial, until=10)] if loss < float("inf") else [Finish()]
    ...     def identity(self):
    ...         return {"tuner": "BestOfThree"}
    >>> from dasktune.simulate import simulate
    >>> simulate(BestOfThree(), lambda values, step: values["lr"] / step).summary()["best_value"]
    0.01
    """

    max_steps: Step
    """The largest step that a trial is trained to."""

    state: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that make up its state: JSON values, with text as keys.

    A tuner with other attributes overrides `snapshot` and `restore`.
    """

    trains_in_full: ClassVar[bool] = False
    """Whether every trial that does not fail is trained to `max_steps`."""

    several_objectives: ClassVar[bool] = False
    """Whether it can be used with more than one objective."""

    takes_back: ClassVar[bool] = False
    """Whether a failed trial can be taken back with `tell_retry`."""

    timed: ClassVar[bool] = False
    """Whether it decides by time: its reports then have a `dasktune.types.Now`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Check the calls of a constructor: an error names the class and all problems."""
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _checking(cls.__name__, cls.__init__)  # type: ignore[method-assign]

    def prepare(self, inputs: Inputs) -> None:
        """Receive the inputs that are known before the start.

        Parameters
        ----------
        inputs
            ``earlier``: finished trials of other tuners, each with ``point``, ``step`` and
            ``losses``; ``queued``: points that a user wants to be tried first. Either may be
            missing. A timed tuner also gets ``directions``, one for each objective.
        """

    @abstractmethod
    def ask(self, capacity: int) -> list[Decision]:
        """Return decisions when `capacity` workers have nothing to do.

        A call that returns no decision must change nothing.
        """

    @abstractmethod
    def tell(self, report: Report) -> list[Decision]:
        """Return the decisions after a report."""

    @abstractmethod
    def tell_failure(self, trial: int) -> list[Decision]:
        """Return the decisions after the failure of a trial, which reports no more."""

    def tell_retry(self, trial: int, step: Step) -> list[Decision]:
        """Return the decisions after a failed trial was taken back, also after the end.

        Parameters
        ----------
        trial
            Its number.
        step
            The step of its last report, 0 without one.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot take a failed trial back: it has decided without it"
        )

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON: equal for tuners that decide alike."""

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models of its space, with their weights; empty if its sampler has none."""
        return []

    @property
    def searched_space(self) -> Space | None:
        """The space of its configurations, whose branches may have needs; None if unknown."""
        return None

    _repr_html_ = method_of("dasktune.report.notebook:tuner_html")

    def __repr__(self) -> str:
        try:
            shown = options_of(self)
        except AttributeError:  # its constructor has not ended
            return f"<{type(self).__name__}>"
        texts = [f"{name}={value!r}" for name, value in shown.items()]
        if self.searched_space is not None:
            texts.insert(0, f"space of {', '.join(self.searched_space.names)}")
        return f"{type(self).__name__}({', '.join(texts)})"

    # For tuners that predict learning curves, ask for priorities, or decide by time.

    def question(self, trial: int) -> Question:
        """Return the question to the predictor after a `Predict` for a trial."""
        raise InternalError(f"{type(self).__name__} predicts nothing, asked for trial {trial}")

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Return the decisions after a prediction, which is None if it failed.

        A prediction may be late: meanwhile its trial may have been trained further, even to
        its end. None comes for a trial that was stopped or failed. Questions that are open
        when a run is interrupted are asked again by the next run; for a trial that has ended
        by then, the answer is None.
        """
        return []

    def model_question(self, model: int) -> PriorityQuestion:
        """Return the question for the priority of a model after an `Assess`."""
        raise InternalError(f"{type(self).__name__} has no models, asked for model {model}")

    def tell_priority(self, model: int, priority: Priority | None) -> list[Decision]:
        """Return the decisions after the priority of a model, which is None if it failed.

        It may be late: the model may have had further reports. Questions that are open when a
        run is interrupted are asked again by the next run.
        """
        return []

    @property
    def due_seconds(self) -> float | None:
        """The next time at which `tell_time` is called, in seconds as in `Now`, or None."""
        return None

    def tell_time(self, seconds: float) -> list[Decision]:
        """Return the decisions when `due_seconds` has come; it must be later afterwards."""
        return []

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON."""
        state: dict[str, object] = json.loads(json.dumps({n: getattr(self, n) for n in self.state}))
        return state

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Continue with the snapshot of a tuner of the same identity."""
        if snapshot.keys() != set(self.state):
            raise ConfigurationError(
                f"a snapshot of {type(self).__name__} must have {', '.join(self.state)}, "
                f"got {', '.join(snapshot) or 'nothing'}"
            )
        for name, value in json.loads(json.dumps(dict(snapshot))).items():
            setattr(self, name, value)

    @property
    def metrics_needed(self) -> frozenset[str]:
        """Names of the metrics that each report must have besides those of the objectives."""
        return frozenset()

    @property
    def value_bounds(self) -> tuple[float | None, float | None]:
        """The least and the largest value that the metric may have, as far as they are bounded."""
        return None, None

    def contradictions(self, metric: str) -> Iterator[str]:
        """Yield the arguments that contradict each other in a study of a metric of this name."""
        yield from ()

    @property
    def learns(self) -> bool:
        """Whether its sampler learns from ``earlier`` trials."""
        return False

    @property
    def most_queued(self) -> int:
        """The largest number of ``queued`` points that it takes."""
        return 0

    @property
    def to_begin(self) -> int | None:
        """The number of trials that it would still begin for free workers; None if unknown."""
        return None

    @property
    def most_steps(self) -> Step | None:
        """The budget of steps for all trials together; None if time or trials are the limit."""
        return None

    # For tuners with a sampler, or with a number of trials that may grow.

    @property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """The configurations that will be tried; None if they are unknown before the start."""
        return None

    @property
    def advice(self) -> list[str]:
        """Sentences on what its arguments do that its user may not have meant.

        The first run and `dasktune preview` show them.
        """
        known = self.configurations or ()
        undrawn = [each.problem for each in known if each.problem]
        failing = f"{len(undrawn):,} of {len(known):,} trials fail before they train"
        return [
            *unreached_changes(known, self.max_steps),
            *([f"{failing}, such as: {undrawn[0]}"] if undrawn else []),
        ]

    def take_proposals(self) -> list[Proposal]:
        """Return the proposals of a sampler in the last call, for the event log."""
        return []

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Receive the proposals that a call had the first time, before it is replayed."""

    def widened_from(self, identity: Mapping[str, object]) -> Tuner | None:
        """Return this tuner with the number of trials in `identity`.

        None if the two differ in more than that number. `widen` then raises the number to
        that of this tuner, also after the end.
        """
        return None

    def widen(self, trials: int) -> list[Decision]:
        """Return the decisions that raise the number of trials to `trials`.

        It may raise `max_steps`. These decisions, and all later ones, may then extend the trials
        that were registered up to the old number to the new one.
        """
        raise ConfigurationError(f"{type(self).__name__} cannot be given more trials")


def _checking(owner: str, constructor: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of a class that refuses a wrong call with all its problems."""
    signature = inspect.signature(constructor)

    @wraps(constructor)
    def check(self: Tuner, *args: object, **options: object) -> None:
        # A constructor of a user's class may call that of its base wrongly.
        name = type(self).__name__ if type(self).__init__ is check else owner
        hints = [
            f"{option} is Optuna's: write {_OF_OPTUNA[option]}"
            for option in options
            if option in _OF_OPTUNA and option not in signature.parameters
        ]
        problems = call_problems(name, signature, (self, *args), options)
        refuse([*problems, *hints] if problems else ())
        constructor(self, *args, **options)

    return check


def known_configurations(tuner: Tuner) -> tuple[Configuration, ...]:
    """Return the configurations that a tuner will train.

    Raises
    ------
    ConfigurationError
        If they are unknown before it runs.
    """
    if (configurations := tuner.configurations) is not None:
        return tuple(each for each in configurations if not each.problem)
    raise ConfigurationError(
        f"the configurations of {type(tuner).__name__} must be known before it runs, got a "
        f"sampler that proposes them one by one: at most {tuner.max_steps:,} steps a trial"
    )


def check_horizon(configurations: Iterable[Configuration], max_steps: Step) -> None:
    """Refuse sequences without a value at some step before `max_steps`.

    Raises
    ------
    ConfigurationError
        With these sequences and the names of their hyper-parameters, 10 at most.
    """
    seen: set[tuple[str, Sequence]] = set()
    problems: list[str] = []
    for configuration in configurations:
        for name, sequence in configuration.sequences.items():
            if (name, sequence) not in seen:
                seen.add((name, sequence))
                problems += [f"{name}: {text}" for text in _horizon_problems(sequence, max_steps)]
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more like these"]
    refuse(problems)


def _horizon_problems(sequence: Sequence, max_steps: Step) -> tuple[str, ...]:
    if sequence.end is not None and sequence.end < max_steps:
        return (f"{sequence!r} ends at step {sequence.end}, max_steps is {max_steps}",)
    try:
        # A sequence overflows only by growing: if its last value exists, all do.
        sequence(max_steps - 1)
    except ConfigurationError as error:
        return error.problems
    return ()


def max_steps_problem(tuner: Tuner) -> str | None:
    """Return the problem of the `max_steps` of a tuner, which may be one of a user."""
    steps = getattr(tuner, "max_steps", None)
    if whole_of(steps) is not None:
        return None
    return (
        f"{type(tuner).__name__}.max_steps must be an int >= 1, the largest step that a trial is "
        f"trained to, got {shown(steps)}"
    )


def options_of(tuner: Tuner) -> dict[str, object]:
    """Return the plain values of a tuner's identity by name; those that are None are left out."""
    return {
        name: value
        for name, value in tuner.identity().items()
        if name != "tuner" and isinstance(value, str | int | float)
    }
