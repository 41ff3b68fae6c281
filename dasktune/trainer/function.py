"""A training loop as a function: what it is given, and the trainer that runs it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from types import FrameType
from typing import Any, ClassVar, NoReturn

import numpy as np

from dasktune._numbers import measured, not_measured
from dasktune.errors import (
    ConfigurationError,
    StateError,
    TrainerError,
    UnknownValueError,
    refuse,
)
from dasktune.space.define_by_run import HINTS
from dasktune.space.domains import Choice, Float, Int
from dasktune.trainer import attributes
from dasktune.trainer.base import problems_of
from dasktune.trainer.carried import LoopVariables
from dasktune.trainer.data import ResumableLoader
from dasktune.trainer.liveness import Liveness
from dasktune.trainer.option_places import (
    OptionPlace,
    OptionPlaces,
    constants_of,
    is_same,
    own_copy,
)
from dasktune.trainer.optional_torch import torch
from dasktune.trainer.torch import TorchTrainer
from dasktune.trainer.turns import Turns
from dasktune.trainer.variables import Variables, refuse_untracked
from dasktune.types import Step, Value, refuse_unknown_value

OPTIONS = (
    "version",
    "ignored_config",
    "harmless_differences",
    "deterministic",
    "threads",
    "clears_gradients",
)
"""Attributes of a function that its trainer takes over."""


class Run(Mapping[str, Value]):
    """One training run, as a training function sees it.

    Reading it as a mapping gives the hyper-parameters: before the loop over `steps` their values
    at step 0, in the loop those of the present step. Before the loop the values are the same
    whether the training begins or goes on from a stored state, so what is made there is, too.

    Attributes
    ----------
    seed
        The training seed. The global generators of Python, NumPy and torch are seeded already.
    device
        Where to train, such as ``"cpu"`` or ``"cuda:0"``.
    config
        The ``config`` of the study.
    state
        Numbers, arrays and tensors of your own, by name, that later steps depend on: they are
        saved and restored. Set their first values before the loop.

    Examples
    --------
    >>> def train(run):
    ...     run.state["weight"] = 1.0
    ...     for step in run.steps():
    ...         run.state["weight"] -= run["lr"] * 2 * run.state["weight"]
    ...         run.report(loss=run.state["weight"] ** 2)
    >>> from dasktune.trainer.lifecycle import run_alone
    >>> run_alone(trainer_of(train), {"lr": 0.25}, 2).metrics
    {1: {'loss': 0.25}, 2: {'loss': 0.0625}}
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        *,
        seed: int,
        device: str,
        config: Mapping[str, object],
    ) -> None:
        self.seed, self.device, self.config = seed, device, config
        self.state: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        """What was reported in the last step."""
        self.tracked: dict[str, Any] = {}
        """The objects with a state, by name."""
        self.fixed: list[Any] = []
        """The objects whose state never changes."""
        self.variables = Variables()
        """The function's own variables while it pauses."""
        self.carried = LoopVariables(self, lambda: self.variables.frames)
        """Those of them that a state holds."""
        self._values = {name: own_copy(value) for name, value in values.items()}
        self._places: dict[str, OptionPlaces] = {}
        """The options that were made with each hyper-parameter; known once the loop begins."""
        self._unused: dict[str, Value] = {}
        self._unclear: dict[str, tuple[list[OptionPlace], Value | None]] = {}
        """Options, one of which the loop sets in this step, and their old value."""
        self.used: list[str] = []
        """The hyper-parameters that the loop has read, in the order of their names."""
        self._has_loop = self._is_looping = self._is_over = False
        self.step: Step = 0
        """Number of steps trained before the present one."""
        self.turns: Turns | None = None

    # ----------------------------------------------------------------- hyper-parameters

    def __getitem__(self, name: str) -> Value:
        self._refuse_over(f"run[{name!r}]")
        if name not in self._values:
            refuse_unknown_value(name, self._values)
        if self._is_looping and name not in self.used:
            self.used = sorted([*self.used, name])
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> NoReturn:
        hint = HINTS.get(name, "")
        if not name.startswith("_") and name in self._values:
            hint = f"; the value of this hyper-parameter is run[{name!r}]"
        raise AttributeError(f"a run has no attribute {name!r}{hint}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a hyper-parameter, or `default` if the run has none of that name."""
        if name not in self:
            return default
        return self[name]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return the value of a hyper-parameter that this function's tuner has drawn.

        Suggestions come first in a function: its tuner, such as ``dasktune.algos.ASHA(train,
        ...)``, runs it up to the first use of the run that is no suggestion.

        Parameters
        ----------
        name
            Of the hyper-parameter.
        low, high, step, log
            See `dasktune.space.Float`.

        Raises
        ------
        TrainerError
            If the tuner does not know the name, or the value is not of this domain.
        """
        return float(self._suggested(name, Float(low, high, step=step, log=log)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Return the value of an integer; see `suggest_float` and `dasktune.space.Int`."""
        return int(self._suggested(name, Int(low, high, step=step, log=log)))

    def suggest_categorical(self, name: str, choices: Iterable[Value]) -> Any:
        """Return one of the plain values; see `suggest_float`."""
        return self._suggested(name, Choice(choices))

    def _suggested(self, name: str, domain: Float | Int | Choice) -> Any:
        if self._is_looping:
            raise TrainerError(
                f"{name!r} must be suggested before the loop over run.steps(); in the loop, "
                f"run[{name!r}] is its value"
            )
        if name not in self._values:
            known = ", ".join(sorted(self._values))
            raise UnknownValueError(
                f"the value of {name!r} must be in the tuner's space, as all that the function "
                "suggests, or be suggested before the run is used otherwise (run.loader, "
                f"run.track, run.steps and so on); this trial has: {known}"
            )
        return drawn_from(domain, name, self._values[name])

    # -------------------------------------------------------------------- what is saved

    def track(self, *objects: Any, **named: Any) -> Any:
        """Save and restore objects with a state: modules, optimizers, schedulers, loaders.

        A single object is returned as it is, several as a tuple.

        When the value of a hyper-parameter changes that is an option of a tracked optimizer
        (such as ``lr``), or the ``batch_size`` of a tracked loader, the new value is set in the
        options that were made with ``run[name]``. An option with an equal constant keeps it. The
        origin of small integers and of computed numbers is not known: if several options have the
        old one, the step fails with the lines to write, unless the loop sets an option itself. An
        object with a method ``set_options(values)`` gets all values here, and then those that
        change; it returns the names that it has taken over.

        Parameters
        ----------
        objects
            Objects with ``state_dict`` and ``load_state_dict``, and random generators.
        named
            The same, with names for messages.

        Raises
        ------
        TrainerError
            If an object cannot save its state, or the loop has begun.
        """
        self._refuse_over("run.track")
        if self._is_looping:
            raise TrainerError("run.track must be called before the loop over run.steps()")
        names = _names_in(sys._getframe(1), objects)
        for name, item in [*zip(names, objects, strict=True), *named.items()]:
            if not attributes.is_object(item):
                raise TrainerError(
                    "run.track takes objects with state_dict() and load_state_dict(), and random "
                    f"generators, got {name}, a {type(item).__name__}; numbers, arrays and "
                    "tensors belong into run.state"
                )
            if any(item is known for known in self.tracked.values()):
                continue
            self.tracked[_free(name, self.tracked)] = item
            if hasattr(item, "set_options"):
                item.set_options(self._values)
        given = (*objects, *named.values())
        return given[0] if len(given) == 1 else given

    def keep_fixed(self, *objects: Any) -> None:
        """Name objects whose state never changes, such as a frozen teacher.

        They are not saved: what is made before the loop is made again where a training goes on.
        An object that each step makes anew, such as a generator, is named there.
        """
        if self.step <= 1:  # later steps are not checked, and need not hold them
            self.fixed += objects

    def loader(self, source: Any, batch_size: int | None = None, **options: Any) -> Any:
        """Return a tracked loader of batches: iterating over it gives the rest of an epoch.

        Parameters
        ----------
        source, batch_size, options
            See `dasktune.ResumableLoader`; its seed is that of the run unless one is given. Or a
            ``DataLoader`` of torch alone, see `dasktune.loader`.

        Raises
        ------
        TrainerError
            If the batch size is missing, or given beside a ``DataLoader``.
        """
        given = {"seed": self.seed, **options}
        is_of_torch = isinstance(source, torch.utils.data.DataLoader)
        made: Any
        if is_of_torch and batch_size is None:
            from dasktune.trainer.torch_loader import loader

            made = loader(source, **given)
            self.fixed += made.fixed
        elif not is_of_torch and batch_size is not None:
            made = ResumableLoader(source, batch_size, **given)
        else:
            raise TrainerError(
                "run.loader must get data and a batch_size, or a DataLoader of torch alone, got a "
                f"{type(source).__name__} and batch_size={batch_size!r}"
            )
        self.track(**{f"loader_{len(self.tracked)}": made})
        return made

    # -------------------------------------------------------------------------- the loop

    def steps(self, *arguments: object) -> Iterator[Step]:
        """Yield the number of the steps before, at the beginning of each step.

        All between two turns of the loop is one step. The loop never ends by itself: how far
        a trial is trained is the tuner's choice, and a trial that has paused may go on. What
        stands behind the loop is never run; ``finally`` blocks are.

        Parameters
        ----------
        arguments
            None is taken.

        Raises
        ------
        TrainerError
            If there is another loop, an object of the function has a state and is not tracked,
            or a value has changed and was not used.
        """
        if arguments:
            raise TrainerError(
                f"run.steps() must get no arguments, got {arguments[0]!r}: how far a trial is "
                "trained is the tuner's choice, up to its max_steps"
            )
        self._refuse_over("run.steps()")
        if self._has_loop:
            raise TrainerError("a function must have one loop over run.steps(), got a second one")
        if self.turns is None:
            raise TrainerError("run.steps() must be used while the training runs")
        self._has_loop = True
        return self._loop(self.turns)

    def _loop(self, turns: Turns) -> Iterator[Step]:
        self._is_looping = True
        while True:
            self.variables.look_from(sys._getframe(1), __name__)
            if self.step <= 1:
                known = (*self.tracked.values(), *self.fixed)
                refuse_untracked(self.variables, known, self, is_first=not self.step)
                self._begin_checked()
            turns.pause()
            yield self.step
            self.step += 1
            self._refuse_unused()

    def _begin_checked(self) -> None:
        """Note what there is before the first step; refuse variables that no state can hold."""
        if not self.step:
            self.carried.begin()
            constants = constants_of(self.variables.frames)
            self._places = {
                name: OptionPlaces.of(name, self._values, self.tracked, constants)
                for name in self._values
            }
        try:
            self.carried.saved(is_first=not self.step)
        except StateError as error:
            raise ConfigurationError(str(error)) from error

    def report(self, *values: object, **metrics: Any) -> None:
        """Give the metrics of the present step, as names and numbers.

        Parameters
        ----------
        values
            None is taken: each number has a name.
        metrics
            Python, NumPy, torch or JAX scalars by name, such as ``loss=0.1``.
        """
        self._refuse_over("run.report")
        if not self._is_looping:
            raise TrainerError("run.report must be called in the loop over run.steps()")
        if values or not metrics:
            got = f"{values[0]!r} without a name" if values else "none"
            raise TrainerError(
                f"run.report must get metrics by name, such as run.report(loss=0.1), got {got}"
            )
        self.metrics |= {name: _held(name, value) for name, value in metrics.items()}

    # -------------------------------------------------------------- for the trainer only

    def change(self, changed: Mapping[str, Value]) -> None:
        """Take over values that change at the coming step."""
        for name, value in changed.items():
            before = self._values.get(name)
            self._values[name] = value
            is_used = self._set_in_tracked(name, before, value)
            if not is_used and name not in self.used:
                self._unused[name] = value

    def end(self) -> None:
        """Note that the function has ended: from now on its run is of no use."""
        self._is_over = True
        self.variables.end()
        self.carried.end()

    def begin(self, values: Mapping[str, Value]) -> None:
        """Take over the values of the first step, or of the last one before the run goes on."""
        self._values = dict(values)

    def _set_in_tracked(self, name: str, before: Value | None, value: Value) -> bool:
        """Set a changed value where the old one was; return whether it was anywhere.

        Raises
        ------
        TrainerError
            If it is not known where it was, and the loop does not read it.
        """
        places, sure = OptionPlaces(), self._places.get(name, OptionPlaces()).sure
        if before is not None and name in self._places:
            places = self._places[name].holding(before)
        if places.possible or 0 < len(places.sure) < len(sure):
            if name not in self.used:
                self._refuse_unclear(name, [*places.sure, *places.possible], value)
            self._unclear[name] = [*places.sure, *places.possible], before
            return True
        for place in places.sure:
            place.put(value)
        takers = [item for item in self.tracked.values() if hasattr(item, "set_options")]
        taken = [item for item in takers if name in item.set_options({name: value})]
        return bool(places.sure or taken)

    def _refuse_unclear(self, name: str, places: Sequence[OptionPlace], value: Value) -> NoReturn:
        lines = " or ".join(f"{place.line} = run[{name!r}]" for place in places)
        raise TrainerError(
            f"the value of {name!r} changes to {value!r}, and it is not known which of the "
            f"options with the old value came from it; set the right ones in the loop: {lines}"
        )

    def _refuse_over(self, use: str) -> None:
        if self._is_over:
            raise TrainerError(
                f"{use} must be used in the training function, while it runs: it has ended, and "
                "its values are gone"
            )

    def _refuse_unused(self) -> None:
        unused = sorted(name for name in self._unused if name not in self.used)
        self._unused.clear()
        for name, (places, before) in self._unclear.items():
            if all(is_same(place.value, before) for place in places):
                self._refuse_unclear(name, places, self._values[name])
        self._unclear.clear()
        if unused:
            raise TrainerError(
                f"the value of {unused[0]!r} has changed, and nothing used it in step "
                f"{self.step}: read run[{unused[0]!r}] within the loop, or track the optimizer "
                "that was made with its value"
            )


class FunctionTrainer(TorchTrainer):
    """The trainer of a training function; made by `trainer_of`."""

    function: ClassVar[Callable[[Run], object]]
    _dasktune_run: Run
    variables: Mapping[str, Any]
    """The function's own variables while it pauses, for checks: they are not saved."""
    _is_set_up = False

    @property
    def run(self) -> Run:
        """The run that the function takes."""
        return self._dasktune_run

    def build(self, hp: Mapping[str, Value]) -> None:
        """Run the function up to its loop."""
        function, threads = type(self).function, self.threads
        # Under a name that the check does not look into: to read a value is to use it.
        self._dasktune_run = run = Run(hp, seed=self.seed, device=self.device, config=self.config)
        made = type(self)
        run.carried.is_memo = lambda name: Liveness.of(made).is_memo(f"trainer.variables[{name!r}]")
        run.carried.is_made_empty = lambda name: Liveness.of(made).is_made_empty(
            f"trainer.variables[{name!r}]"
        )
        self.variables = run.variables = Variables(function.__module__, run)

        def body() -> None:
            torch.set_num_threads(threads)  # each thread has a number of its own
            try:
                function(run)
            finally:
                run.end()

        run.turns = Turns(body)
        # The thread does not know the trainer: it would keep it alive, and wait for ever.
        weakref.finalize(self, run.turns.close)
        is_looping = run.turns.go_on()
        if not is_looping:
            raise TrainerError(f"{function.__name__} must loop over run.steps(), it has ended")

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over values: all of them at first, and then those that change."""
        if self._is_set_up:
            self.run.change(hp)
        else:
            self.run.begin(hp)
        self._is_set_up = True

    def train(self) -> None:
        """Run one turn of the loop."""
        self.run.metrics = {}
        is_looping = self.run.turns is not None and self.run.turns.go_on()
        if not is_looping:
            raise TrainerError(
                f"{type(self).function.__name__} must not leave the loop over run.steps(): how far "
                "a trial is trained is the tuner's choice"
            )

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics that the last step reported."""
        if not self.run.metrics:
            raise TrainerError(
                f"{type(self).function.__name__} must call run.report() in each step, got no "
                f"report in step {self.run.step}"
            )
        return self.run.metrics

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the step has measured already."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the tracked objects, of `Run.state`, and of carried variables.

        Raises
        ------
        StateError
            If `Run.state` or a carried variable holds what cannot be saved.
        """
        for name, value in self.run.state.items():
            if not attributes.is_value(value):
                raise StateError(
                    f"run.state[{name!r}]",
                    "must consist of numbers, strings, arrays, tensors, lists and dicts, got a "
                    f"{type(value).__name__}; objects with state_dict() belong into run.track",
                )
        state = super().state_dict()
        if variables := self.run.carried.saved():
            state["variables"] = variables
        if position := self.run.carried.position():
            state["position"] = position
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the tracked objects, `Run.state`, and the variables that the loop carries.

        Raises
        ------
        StateError
            If the state has other objects, or was saved elsewhere in the function than it pauses.
        """
        self.run.carried.refuse_other_position(state.get("position", ()))
        super().load_state_dict(state)
        self.run.carried.restore(state.get("variables", {}))

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("tracked", *_SAVED)}


def _of_run(name: str) -> property:
    """Return a property of a trainer that is an attribute of its run."""

    def put(trainer: FunctionTrainer, value: Any) -> None:
        setattr(trainer.run, name, _in_place(getattr(trainer.run, name), value))

    return property(lambda trainer: getattr(trainer.run, name), put)


_SAVED = ("state", "step", "metrics", "used")

for _name in ("tracked", *_SAVED):
    setattr(FunctionTrainer, _name, _of_run(_name))


def trainer_of(function: Callable[[Run], object]) -> type[FunctionTrainer]:
    """Return the trainer class of a training function.

    Parameters
    ----------
    function
        Takes a `Run`. Its attributes ``version``, ``ignored_config``, ``harmless_differences``,
        ``deterministic`` and ``threads``, if it has them, are those of the trainer.

    Raises
    ------
    ConfigurationError
        If it is not a function of one argument.
    """
    refuse(problems_of(function))
    options = {name: getattr(function, name) for name in OPTIONS if hasattr(function, name)}
    place = {"__module__": function.__module__, "__qualname__": function.__qualname__}
    members = {"function": staticmethod(function), "__doc__": function.__doc__, **place, **options}
    return type(function.__name__, (FunctionTrainer,), members)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name that is not taken: the name itself, or with a number behind it."""
    if name not in taken:
        return name
    return next(other for i in count(len(taken)) if (other := f"{name}_{i}") not in taken)


def _held(name: str, value: Any) -> Any:
    """Return a metric in a form that a state can hold and the rest of a step cannot change."""
    if isinstance(value, torch.Tensor) and not value.shape:
        return value.detach().clone()  # its number would wait for the GPU
    if (number := measured(value)) is None:
        raise TrainerError(f"run.report: metric {name!r} must be a {not_measured(value)}")
    return value if isinstance(value, (int, float, np.number, np.bool_)) else number


def _names_in(frame: FrameType, objects: tuple[Any, ...]) -> list[str]:
    """Return the names that objects have where a function is called, for messages."""
    names = {id(value): name for name, value in frame.f_locals.items()}
    return [names.get(id(item), type(item).__name__.lower()) for item in objects]


def _in_place(current: Any, loaded: Any) -> Any:
    """Return a loaded value in the dicts and lists that were made before the loop.

    The function may hold them in variables: ``seen = run.state["seen"] = []``.
    """
    if type(current) is not type(loaded):
        return loaded
    if isinstance(current, dict):
        items = {key: _in_place(current.get(key), value) for key, value in loaded.items()}
        current.clear()
        current.update(items)
        return current
    if isinstance(current, list):
        olds = [*current, *[None] * (len(loaded) - len(current))]
        current[:] = [_in_place(*pair) for pair in zip(olds, loaded, strict=False)]
        return current
    return loaded


def drawn_from(domain: Float | Int | Choice, name: str, value: Value) -> Value:
    """Return the value of a suggested hyper-parameter, which must be of its domain.

    Raises
    ------
    TrainerError
        If it is of another domain.
    """
    if isinstance(domain, Choice):
        is_in = any(is_same(option, value) for option in domain.options)
    else:
        is_in = isinstance(value, int | float) and value in domain
    if not is_in:
        raise TrainerError(f"the value of {name!r} must be in {domain}, got {value!r}")
    return value
