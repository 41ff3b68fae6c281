"""What a tuner is: all that one must do, in one page.

A tuner is a state machine. The engine calls it and carries out the decisions it returns:

1. `Tuner.prepare` once, before everything else;
2. `Tuner.ask` when workers have nothing to do, until it returns `Finish`;
3. `Tuner.tell` for each report: at the end of what was asked for with `Extend`, and at the
   steps that were named in its ``reports``; a trial's reports come in the order of their
   steps, those of different trials in any order;
4. `Tuner.tell_failure` for a trial that reports no more;
5. `Tuner.tell_prediction` for what its predictor says of a trial, if it asked for that, and
   `Tuner.tell_time` when the time has come that it wants to be told of.

Each returns decisions: `Register` a trial (numbered from 0, in order), `Extend` it to a
step, `Stop` it, `Rank` it, `Predict` it, `Finish`. Not to extend a trial further is to pause
it. The same
calls in the same order must give the same decisions, so that the log of a study can be
replayed: a tuner takes time, randomness and samples from nowhere but its arguments.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from dasktune.algos.curves.curve import Prediction, Question
from dasktune.errors import ConfigurationError, InternalError, refuse
from dasktune.sequences import Sequence
from dasktune.space import Configuration
from dasktune.types import Decision, Report, Step

_MOST_PROBLEMS = 10

Inputs = Mapping[str, object]
"""What a tuner is given before it begins; JSON. See `Tuner.prepare`."""

Proposal = Mapping[str, object]
"""What a sampler proposed; JSON. It is an input of the tuner, and kept in the log."""


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
    """How far a trial is trained at most."""

    state: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that make up its state: JSON values, with text as keys.

    A tuner that keeps its state otherwise overrides `snapshot` and `restore`.
    """

    trains_in_full: ClassVar[bool] = False
    """Whether every trial that does not fail is trained to `max_steps`."""

    several_objectives: ClassVar[bool] = False
    """Whether it can be used with more than one objective."""

    timed: ClassVar[bool] = False
    """Whether it decides by time: reports then say what `dasktune.types.Now` holds."""

    def prepare(self, inputs: Inputs) -> None:
        """Take what is known before the start.

        Parameters
        ----------
        inputs
            ``earlier``: finished trials of other tuners, each with ``point``, ``step`` and
            ``losses``; ``queued``: points that a user wants to be tried first. Missing
            where there is nothing. For a timed tuner ``directions``, those of the objectives.
        """

    @abstractmethod
    def ask(self, capacity: int) -> list[Decision]:
        """Return decisions when `capacity` workers have nothing to do.

        One that returns nothing must change nothing.
        """

    @abstractmethod
    def tell(self, report: Report) -> list[Decision]:
        """Return what follows from a report."""

    @abstractmethod
    def tell_failure(self, trial: int) -> list[Decision]:
        """Return what follows from the failure of a trial, which reports no more."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON: equal for tuners that decide alike."""

    # What tuners do that predict learning curves, or decide by time.

    def question(self, trial: int) -> Question:
        """Return what is to be predicted of a trial for which `Predict` was decided."""
        raise InternalError(f"{type(self).__name__} predicts nothing, asked for trial {trial}")

    def tell_prediction(self, trial: int, prediction: Prediction | None) -> list[Decision]:
        """Return what follows from a prediction; None is one that could not be made.

        It may be late: the trial may have been trained further since, to its end even. It does
        not come for a trial that was stopped or failed. What is open when a run is interrupted
        is asked again by the next one; None is told of a trial that has ended by then.
        """
        return []

    @property
    def due_seconds(self) -> float | None:
        """When it wants to be told of the time next, in seconds as in `Now`; None if never."""
        return None

    def tell_time(self, seconds: float) -> list[Decision]:
        """Return what follows from the time's having come; `due_seconds` must move on."""
        return []

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON."""
        found: dict[str, object] = json.loads(json.dumps({n: getattr(self, n) for n in self.state}))
        return found

    def restore(self, snapshot: Mapping[str, object]) -> None:
        """Take over the state that a tuner of the same identity had."""
        if snapshot.keys() != set(self.state):
            raise ConfigurationError(
                f"a snapshot of {type(self).__name__} must have {', '.join(self.state)}, "
                f"got {', '.join(snapshot) or 'nothing'}"
            )
        for name, value in json.loads(json.dumps(dict(snapshot))).items():
            setattr(self, name, value)

    @property
    def learns(self) -> bool:
        """Whether its sampler learns from ``earlier`` trials."""
        return False

    @property
    def most_queued(self) -> int:
        """How many ``queued`` points it takes at most."""
        return 0

    @property
    def to_begin(self) -> int | None:
        """How many trials it would still begin for workers that are free; None if it is unknown."""
        return None

    # What tuners with a sampler, or a number of trials that may grow, do beyond that.

    @property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """What will be tried, as far as that is known before the start; None if it is not."""
        return None

    def take_proposals(self) -> list[Proposal]:
        """Return what was proposed by a sampler in the last call, for the log."""
        return []

    def feed_proposals(self, proposals: Iterable[Proposal]) -> None:
        """Give, before a call is replayed, what was proposed in it the first time."""

    def widened_from(self, identity: Mapping[str, object]) -> Tuner | None:
        """Return this tuner with the number of trials that `identity` has.

        None if it is not the same but for that number. `widen` then makes the one into the
        other if that has more, also after its end.
        """
        return None

    def widen(self, trials: int) -> list[Decision]:
        """Go on with more trials: `trials` in all."""
        raise ConfigurationError(f"{type(self).__name__} cannot be given more trials")


def known_configurations(tuner: Tuner) -> tuple[Configuration, ...]:
    """Return what a tuner will try.

    Raises
    ------
    ConfigurationError
        If that is not known before it runs.
    """
    found = tuner.configurations
    if found is None:
        raise ConfigurationError(
            f"what {type(tuner).__name__} tries must be known before it runs, got one whose "
            f"sampler proposes as it goes: at most {tuner.max_steps:,} steps a trial"
        )
    return found


def check_horizon(configurations: Iterable[Configuration], max_steps: Step) -> None:
    """Refuse sequences that have no value somewhere before `max_steps`.

    Raises
    ------
    ConfigurationError
        With every such sequence and the name of its hyper-parameter, as far as a person
        wants to read.
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
        # What can overflow grows: the last value speaks for those before it.
        sequence(max_steps - 1)
    except ConfigurationError as error:
        return error.problems
    return ()
