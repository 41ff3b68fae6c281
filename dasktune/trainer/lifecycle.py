"""The order in which a trainer's methods are called, in one place."""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from dasktune._numbers import measured, not_measured
from dasktune.errors import (
    InternalError,
    ResumeError,
    StateError,
    TrainerError,
    name_problems,
    plain,
    text_of,
)
from dasktune.sequences import as_sequence
from dasktune.trainer.base import GivenTrainer, has_setup
from dasktune.trainer.given import as_trainer
from dasktune.trainer.given_config import plain_config
from dasktune.trainer.isolation import give_own_generator
from dasktune.trainer.opening import is_library_file
from dasktune.trainer.proof.arrays import arrays_of
from dasktune.trainer.proof.differences import Difference
from dasktune.trainer.proof.proof import MOST_NAMED, Witness, clocks
from dasktune.trainer.proof.remedies import (
    Next,
    Proving,
    deciding,
    refuse_changes_by_state,
    remedy,
)
from dasktune.trainer.proof.written_files import WRITTEN_FILES
from dasktune.trainer.settings import apply_settings
from dasktune.types import Config, HyperParameters, Step, Value

Values = Mapping[str, Value]
"""The hyper-parameters at one step by name."""

_HERE = os.path.dirname(os.path.dirname(__file__))


class TrainerRun:
    """A trainer in training, driven by the values of each step.

    Made by `start` or `resume`. Exceptions of the user's code are not changed.

    Attributes
    ----------
    step
        Number of steps trained since the start of the lineage.
    trainer
        The user's object.
    witness
        Writes down what it holds beside its state; None if nobody asks for that.

    Examples
    --------
    >>> from dasktune.trainer.base import Trainer
    >>> class Log(Trainer):
    ...     calls = []
    ...     def build(self, hp):
    ...         self.calls.append(f"build {hp}")
    ...     def setup(self, hp):
    ...         self.calls.append(f"setup {hp}")
    ...     def train(self):
    ...         self.calls.append("train")
    >>> run = TrainerRun.start(Log, {"lr": 0.1, "width": 8}, config={}, seed=0)
    >>> for lr in (0.1, 0.1, 0.2):
    ...     run.advance({"lr": lr, "width": 8})
    >>> print(*Log.calls, sep="; ")
    build {'lr': 0.1, 'width': 8}; setup {'lr': 0.1, 'width': 8}; train; train; \
setup {'lr': 0.2}; train
    """

    __slots__ = ("_values", "step", "trainer", "witness")

    def __init__(
        self, trainer: Any, step: Step, values: Values | None, witness: Witness | None = None
    ) -> None:
        self.trainer = trainer
        self.step = step
        self.witness = witness
        self._values = values

    @classmethod
    def start(
        cls,
        trainer_class: type,
        values: Values,
        *,
        config: Mapping[str, object],
        seed: int,
        device: str = "cpu",
        division: object | None = None,
        proving: Proving | None = None,
    ) -> TrainerRun:
        """Return a new lineage at step 0, built with the values of step 0.

        Parameters
        ----------
        division
            The part of this process if several processes train together.
        proving
            How later resumes prove themselves; None if `proof` will not be called.
        """
        trainer, witness = _built(trainer_class, values, config, seed, device, division, proving)
        return cls(trainer, 0, None, witness)

    @classmethod
    def resume(
        cls,
        trainer_class: type,
        *,
        step: Step,
        first_values: Values,
        last_values: Values,
        state: Mapping[str, object],
        config: Mapping[str, object],
        seed: int,
        device: str = "cpu",
        division: object | None = None,
        proving: Proving | None = None,
    ) -> TrainerRun:
        """Return a lineage that continues from a saved state.

        Parameters
        ----------
        step
            Number of steps that led to `state`; at least 1.
        first_values
            Hyper-parameters at step 0, with which the trainer is built.
        last_values
            Hyper-parameters at `step` - 1, the last trained step.
        state
            The result of `state` after `step` steps. The trainer may keep parts of it.
        division, proving
            See `start`.

        Raises
        ------
        ResumeError
            If the trainer cannot load the state, or is another one than that which saved it.
        """
        if step < 1:
            raise InternalError(f"a state is resumed at step >= 1, got {step}")
        trainer, witness = _built(
            trainer_class, first_values, config, seed, device, division, proving
        )
        last = dict(last_values)
        if has_setup(trainer):
            trainer.setup(HyperParameters(last, last))
        is_compared = proving is not None and proving.proof is not None
        arrays = arrays_of(state) if is_compared else []
        _load(trainer, state)
        if witness is not None and proving is not None:
            witness.sets_generators = proving.sets_generators
        if witness is not None and proving is not None and proving.proof is not None:
            differences = witness.differences(proving.proof, arrays)
            if proving.refuses:
                refuse_differences(trainer, witness, differences, proving.before)
        return cls(trainer, step, last, witness)

    def advance(self, values: Values) -> None:
        """Train one step with these values; `setup` is shown the changed values only.

        As in state keys, 1, 1.0 and True are three values, while -0.0 and 0.0 are equal.

        Raises
        ------
        TrainerError
            If a value changes, and the trainer has no `setup`.
        """
        changed = _changed(self._values, values)
        if changed:
            is_first = self._values is None
            # A copy, because the caller may reuse its dict; stored before setup may fail.
            self._values = dict(values)
            if has_setup(self.trainer):
                self.trainer.setup(HyperParameters(changed, self._values))
            elif not is_first:
                name = next(iter(changed))
                raise TrainerError(
                    f"{type(self.trainer).__name__} must define setup(): the value of {name!r} "
                    f"changes after step {self.step}, and would have no effect"
                )
        self.trainer.train()
        self.step += 1

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the model as plain floats.

        Raises
        ------
        TrainerError
            If `evaluate` does not return a mapping of names to real numbers.
        """
        with getattr(self.trainer, "evaluating", nullcontext)():
            metrics = self.trainer.evaluate()
        name = type(self.trainer).__name__
        if not isinstance(metrics, Mapping):
            raise TrainerError(
                f"{name}.evaluate must return metrics by name, got {_short(metrics)}"
            )
        return {_name(name, key): _number(name, key, value) for key, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """Return the result of `state_dict`: live objects, to copy before the next step.

        Raises
        ------
        StateError
            If it is not a mapping.
        TrainerError
            If `state_dict` changes the trainer: states are taken at steps that other trials decide.
        """
        before = None if self.witness is None else self.witness.before_state()
        state = self.trainer.state_dict()
        if before is not None and self.witness is not None:
            refuse_changes_by_state(self.witness, before)
        if not isinstance(state, Mapping):
            raise StateError("state", f"state_dict must return a mapping, got {_short(state)}")
        return dict(state)

    def proof(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of all that the trainer holds beside a state which it has just returned.

        Empty if it was made without a witness.
        """
        return {} if self.witness is None else self.witness.proof(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneRun:
    """Metrics and states of a configuration that was trained by itself.

    Parameters
    ----------
    metrics
        By step: the metrics after it.
    states
        By step: a copy of the state after it.
    """

    metrics: Mapping[Step, Mapping[str, float]]
    states: Mapping[Step, Mapping[str, Any]]


def run_alone(
    trainer_class: GivenTrainer,
    sequences: Mapping[str, object],
    steps: Step,
    *,
    config: Mapping[str, object] | None = None,
    seed: int = 0,
    device: str = "cpu",
    report_every: int = 1,
    states_at: Collection[Step] = (),
) -> LoneRun:
    """Train one configuration from step 0 in this process without interruption.

    This is the reference that every other way of training must equal bit for bit. Afterwards
    other packages of this process (Dask, clients of stores) have their own random generator.

    Parameters
    ----------
    sequences
        Hyper-parameters by name; a plain value is constant.
    steps
        Number of steps to train.
    report_every
        Number of steps between two evaluations; the last step is always evaluated.
    states_at
        Steps (1 to `steps`) after which a copy of the state is kept.
    """
    give_own_generator()
    made: type = as_trainer(trainer_class)
    functions = {name: as_sequence(value) for name, value in sequences.items()}

    def values(step: Step) -> dict[str, Value]:
        return {name: function(step) for name, function in functions.items()}

    given = plain_config(made, config)
    run = TrainerRun.start(made, values(0), config=given, seed=seed, device=device)
    metrics: dict[Step, dict[str, float]] = {}
    states: dict[Step, dict[str, Any]] = {}
    for step in range(steps):
        run.advance(values(step))
        if run.step % report_every == 0 or run.step == steps:
            metrics[run.step] = run.evaluate()
        if run.step in states_at:
            states[run.step] = copy.deepcopy(run.state())
    return LoneRun(metrics=metrics, states=states)


def _built(
    trainer_class: type,
    values: Values,
    config: Mapping[str, object],
    seed: int,
    device: str,
    division: object | None,
    proving: Proving | None,
) -> tuple[Any, Witness | None]:
    """Return a new trainer, and its witness if there will be proofs."""
    environment, began = (dict(os.environ), clocks()) if proving is not None else ({}, ())
    apply_settings(trainer_class)
    if proving is not None and proving.owns_process:
        WRITTEN_FILES.begin(trainer_class)
    trainer: Any = trainer_class()
    # A copy: a trainer that changes its config must not change that of the next trainer.
    trainer.config = Config(copy.deepcopy(dict(config)))
    trainer.seed = seed
    trainer.device = device
    if division is not None:
        trainer.division = division
    with getattr(trainer, "building", nullcontext)():
        trainer.build(HyperParameters(values, dict(values)))
    if proving is None:
        return trainer, None
    owns = proving.owns_process
    witness = Witness.of(
        trainer, device, environment, began, has_generators=owns, proof=proving.proof
    )
    return trainer, witness


def _load(trainer: Any, state: Mapping[str, object]) -> None:
    """Load a state; whatever that raises is about resuming, and not about training."""
    try:
        trainer.load_state_dict(state)
    except StateError as error:
        raise ResumeError(str(error), paths=[error.path]) from error
    except Exception as error:
        name = type(trainer).__name__
        text = "".join(traceback.format_exception(error))
        line = _last_own_line(error)
        raise ResumeError(
            f"{name}.load_state_dict raised {type(error).__name__}{line}: {plain(text_of(error))}",
            text,
        ) from error


def _last_own_line(error: Exception) -> str:
    """Return the line of own code that raised an error, for a message; empty if it is unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        each
        for each in frames
        if each.line and not (each.filename.startswith(_HERE) or is_library_file(each.filename))
    ]
    line = own[-1].line if own else ""
    return f" at `{line}`" if line and not line.startswith("raise") else ""


def refuse_differences(
    trainer: Any, witness: Witness, found: list[Difference], before: Next
) -> None:
    """Raise an error if a trainer that has loaded a state holds other parts than its maker."""
    made = type(trainer)
    differences = deciding(witness, found, before)
    if differences:
        named = differences[:MOST_NAMED]
        more = len(differences) - len(named)
        lines = [f"- {each}" for each in named] + ([f"- and {more} more"] if more else [])
        raise ResumeError(
            "\n".join([*lines, remedy(made, *[each.path for each in named])]),
            paths=[each.path for each in differences],
        )


def _changed(before: Values | None, now: Values) -> dict[str, Value]:
    """Return the changed values by name."""
    if before is None:
        return dict(now)
    if len(before) != len(now):
        raise InternalError(f"hyper-parameters {sorted(before)} became {sorted(now)}")
    return {
        name: value
        for name, value in now.items()
        if value is not (old := before[name]) and (value != old or type(value) is not type(old))
    }


def _name(trainer: str, key: object) -> str:
    if not isinstance(key, str):
        raise TrainerError(f"{trainer}.evaluate must name metrics by strings, got {key!r}")
    if problems := name_problems("a metric", key):
        raise TrainerError(f"{trainer}.evaluate: {problems[0]}")
    return key


def _number(trainer: str, key: object, value: object) -> float:
    """Return a metric as a float."""
    if (number := measured(value)) is not None:
        return number
    got = f"{not_measured(value)} ({type(value).__name__})"
    raise TrainerError(f"{trainer}.evaluate: metric {key!r} must be a {got}")


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
