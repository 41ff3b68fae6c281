"""A ready trainer for Keras 3: a compiled model and the arguments of its `fit`, one epoch a step.

One `fit` of Keras runs in a thread of its own, and pauses where an epoch begins. There the trainer
saves its state. It loads a saved state, in place, into a fit that begins with that epoch. In Keras,
each thread has its own names of layers, dtype policy and generator for unseeded numbers. So each
trial has its own, too.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.integrations.arguments import (
    arguments_of,
    is_same,
    name_of,
    reads,
    refuse_ineffective,
    refuse_unknown,
)
from dasktune.integrations.held import HeldAttributes
from dasktune.integrations.installed import framework
from dasktune.trainer import attributes
from dasktune.trainer.optional_torch import torch
from dasktune.trainer.torch import TorchTrainer
from dasktune.trainer.turns import Turns
from dasktune.types import ENDED_AT, Value

_BACKENDS = ("torch", "jax")

_OPTIONS = {"lr": "learning_rate"}
"""Options of optimizers that Keras names otherwise."""

_OURS = {
    "initial_epoch": "where a trial goes on is dasktune's choice",
    "steps_per_epoch": "each epoch must begin the data anew, or a trial could not go on",
}
"""Arguments of `fit` that users must not give, and why."""

_WITHOUT_POSITION = ("tensorflow", "grain")
"""Packages whose data sets keep a position that cannot be saved."""

_UNSEEDED = "global_seed_generator"
"""Keras's name for the generator of numbers that are drawn without a seed."""


def trainer(make: Callable[..., Any]) -> type[KerasTrainer]:
    """Return a trainer class that trains a Keras model, one epoch of its `fit` a step.

    Its metrics are what `fit` logs: the ``history`` of each epoch, validation included.

    Parameters
    ----------
    make
        A function that returns a compiled model, and a dict with the arguments of its `fit`, as in
        ``return model, dict(x=x, y=y, validation_data=(x_val, y_val), callbacks=[...])``. It is
        called with the hyper-parameters, and the entries of the study's config, that its
        parameters name. Callbacks may read ``epochs``; no trial is trained beyond it.

    Raises
    ------
    ConfigurationError
        If `make` is not a function, Keras is missing, or its backend is neither torch nor JAX.
    """
    if not inspect.isroutine(make):
        raise ConfigurationError(
            "make must be a function that returns a compiled model and the arguments of its fit, "
            f"got {make!r:.80}"
        )
    backend = _keras().backend.backend()
    if backend not in _BACKENDS:
        raise ConfigurationError(
            f"the backend of Keras must be {' or '.join(_BACKENDS)}, got {backend!r}: set "
            "KERAS_BACKEND=torch in the environment before keras is imported"
        )
    members = {
        "__module__": make.__module__,
        "__qualname__": make.__qualname__,
        "__doc__": make.__doc__,
        "backend": _Backend(backend),
        "make": staticmethod(make),
    }
    return type(make.__name__, (KerasTrainer,), members)


class KerasTrainer(TorchTrainer):
    """The trainer of a Keras model; made by `trainer`.

    **State.** The variables of the model (seed generators included), of the optimizer and of the
    metrics; the global generators; numbers, strings and arrays in attributes of callbacks, of a
    ``PyDataset``, and of a model of the user's own class; generators of a torch ``DataLoader``.

    **Changed values** are set, where the old one was, in the optimizer's options (``lr`` is the
    ``learning_rate``), in the arguments of `fit` (``batch_size``), and in attributes of a
    ``PyDataset``. The method ``hyperparameters_changed(changed)`` of a model is called, if it has
    that. A value that nothing takes over is refused.

    Attributes
    ----------
    make
        Makes the model and the arguments of its fit from the hyper-parameters.
    backend
        The backend of Keras where the study was made.
    metrics
        The metrics of the last step.
    epochs
        The number of epochs that have been trained.
    """

    make: ClassVar[Callable[..., Any]]
    backend: ClassVar[str]
    metrics: Mapping[str, float]
    epochs: int

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make the model and the arguments of its fit."""
        make, backend = type(self).make, _keras().backend.backend()
        if backend != type(self).backend:
            raise ConfigurationError(
                f"the backend of Keras must be {type(self).backend!r} on workers, as it was where "
                f"the study was made, got {backend!r}: start workers with "
                f"KERAS_BACKEND={type(self).backend}"
            )
        values = {name: hp[name] for name in hp}
        refuse_unknown(values, make)
        arguments = arguments_of(make, values, self.config)
        self.metrics, self.epochs, self.has_ended = {}, 0, False
        self._dasktune_values = values
        self._dasktune_fit = fit = _Fit(
            lambda: make(**arguments), name_of(make), device=self.device, threads=self.threads
        )
        # The thread must not hold the trainer: that would keep it alive, and the thread waiting.
        weakref.finalize(self, fit.turns.close)
        fit.turns.go_on()

    @property
    def model(self) -> Any:
        """The Keras model."""
        return self._dasktune_fit.model

    @property
    def unseeded(self) -> Any:
        """The state of the generator for numbers that are drawn without a seed; None if unused."""
        return self._dasktune_fit.unseeded

    @unseeded.setter
    def unseeded(self, state: Any) -> None:
        self._dasktune_fit.unseeded = state

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over values that have changed."""
        before, fit = self._dasktune_values, self._dasktune_fit
        changed = {name: hp[name] for name in hp if not is_same(hp[name], before[name])}
        self._dasktune_values = {**before, **changed}
        in_fit = {name for name in changed if fit.set_argument(name, before[name], changed[name])}
        others = {name for name in changed if fit.set_option(name, before[name], changed[name])}
        if callable(tell := getattr(fit.model, "hyperparameters_changed", None)) and changed:
            tell(changed)
            fit.compile_anew()
            others |= changed.keys()
        refuse_ineffective(changed, in_fit | others, f"{name_of(type(self).make)} is called once")
        if in_fit and fit.has_begun and not self.has_ended:
            self.load_state_dict(self.state_dict())  # into a fit that has the new arguments

    def train(self) -> None:
        """Train one epoch."""
        fit = self._dasktune_fit
        if self.has_ended:
            if self.epochs >= fit.epochs:
                raise TrainerError(
                    f"all {fit.epochs} epochs of fit have been trained: give the tuner no more "
                    "steps than that, or leave epochs out"
                )
            return  # a callback has stopped it
        self._begin()
        self.has_ended = not fit.turns.go_on()
        self.epochs += 1
        self.metrics = dict(fit.logs)  # without val_*, where validation_freq leaves it out

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics that the fit has logged."""
        has_stopped = self.has_ended and self.epochs < self._dasktune_fit.epochs
        return {**self.metrics, ENDED_AT: self.epochs} if has_stopped else self.metrics

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the epoch has been validated already."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the fit where it pauses."""
        self._begin()
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, in a fit that begins with the next epoch."""
        self._dasktune_fit.begin(state["values"]["epochs"])
        super().load_state_dict(state)

    def _begin(self) -> None:
        if not self._dasktune_fit.has_begun:
            self._dasktune_fit.begin(self.epochs)

    def _attributes(self) -> dict[str, Any]:
        own = super()._attributes()
        own = {name: value for name, value in own.items() if not name.startswith("_dasktune_")}
        fit = getattr(self, "_dasktune_fit", None)
        if fit is None:  # before the end of build
            return own
        loaders = attributes.objects({"data": fit.data()})
        return {
            **own,
            "unseeded": fit.unseeded,
            "variables": fit.variables,
            **({"loaders": loaders} if loaders else {}),
            **fit.held,
        }

    def _value(self, name: str) -> Any:
        return self._dasktune_fit.held.get(name) if "." in name else super()._value(name)

    def _set_value(self, name: str, value: Any) -> None:
        if "." in name:
            self._dasktune_fit.held.put(name, value)
        else:
            super()._set_value(name, value)


class _Fit:
    """One `fit` of a model, in a thread, that pauses after it was made and before each epoch.

    Parameters
    ----------
    make
        Returns the model and the arguments of its `fit`.
    name
        The name of the user's function, for messages.
    """

    def __init__(self, make: Callable[[], Any], name: str, *, device: str, threads: int) -> None:
        self._make: Callable[[], Any] | None = make
        self._name, self._device, self._threads = name, device, threads
        self._first = 0
        self._is_leaving = False
        self.has_begun = False
        self.logs: dict[str, float] = {}
        """The metrics of the last epoch."""
        self.unseeded: Any = None
        self.turns = Turns(self._run)

    def begin(self, epoch: int) -> None:
        """Run a fit up to the beginning of an epoch; leave the fit that has begun."""
        self._first, self._is_leaving, self.has_begun = epoch, self.has_begun, True
        self.turns.go_on()

    def pause(self) -> None:
        """Give the turn to the caller where an epoch begins."""
        _refuse_uncleared(self.model)
        for each in self._callbacks:
            if getattr(each, "monitor_op", each) is None:
                # Keras does so at the end of a fit's first epoch, and changes numbers that a state
                # has. A resumed fit would change them again.
                each._set_monitor_op()
        states = framework("keras.src.backend.common.global_state", extra="keras")
        generator = states.get_global_attribute(_UNSEEDED)
        self.unseeded = None if generator is None else _number_array(generator.state)
        self.turns.pause()
        if self._is_leaving:
            self._is_leaving = False
            raise _Leaving
        if self.unseeded is not None:
            if generator is None:
                generator = _keras().random.SeedGenerator(0)
                states.set_global_attribute(_UNSEEDED, generator)
            generator.state.assign(self.unseeded)

    def data(self) -> list[Any]:
        """Return the loaders of torch among the data."""
        given = (self._arguments.get("x"), self._arguments.get("validation_data"))
        return [each for each in given if isinstance(each, torch.utils.data.DataLoader)]

    def set_argument(self, name: str, before: Value, value: Value) -> bool:
        """Set a changed argument of `fit`, or attribute of its data; return whether it is one."""
        if is_same(self._arguments.get(name), before):
            self._arguments[name] = value
            return True
        data = self._data_sets().values()
        holding = [each for each in data if is_same(vars(each).get(name), before)]
        for each in holding:
            setattr(each, name, value)
        return any(reads(type(each), name, apart_from=frozenset({"__init__"})) for each in holding)

    def set_option(self, name: str, before: Value, value: Value) -> bool:
        """Set a changed option of the optimizer, if it has the old value; return whether it has.

        Raises
        ------
        TrainerError
            If a schedule or a callback sets it, too.
        """
        option, optimizer = _OPTIONS.get(name, name), self._optimizer()
        if option == "learning_rate":
            return self._set_rate(optimizer, name, before, value)
        is_there = is_same(vars(optimizer).get(option), before)
        if is_there:
            setattr(optimizer, option, value)
            self.compile_anew()
        return is_there

    def compile_anew(self) -> None:
        """Drop what Keras has compiled: with JAX it holds old values of attributes."""
        self.model.make_train_function(force=True)
        self.model.make_test_function(force=True)

    def _set_rate(self, optimizer: Any, name: str, before: Any, value: Any) -> bool:
        keras = _keras()
        setting = (
            keras.callbacks.LearningRateScheduler,
            keras.callbacks.ReduceLROnPlateau,
            keras.optimizers.schedules.LearningRateSchedule,
        )
        for each in (*self._callbacks, optimizer._learning_rate):
            if isinstance(each, setting):
                raise TrainerError(
                    f"the value of {name!r} changes, and a {type(each).__name__} sets it, too: "
                    "remove one of the two"
                )
        now = _number_array(optimizer.learning_rate)
        is_there = bool(now == now.dtype.type(before))
        if is_there:
            optimizer.learning_rate = value
        return is_there

    # ------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        keras = _keras()
        torch.set_num_threads(self._threads)  # each thread has a number of its own
        with keras.device(self._device.replace("cuda", "gpu")):
            make, self._make = self._make, None
            self._take(None if make is None else make())
            del make
            self.turns.pause()
            pause, logs = _callback_classes()
            callbacks = [pause(self), *self._callbacks, logs(self)]
            is_leaving = True
            while is_leaving:
                with suppress(_Leaving):
                    self.model.fit(
                        **{"verbose": 0, **self._arguments},
                        epochs=self.epochs,
                        initial_epoch=self._first,
                        callbacks=callbacks,
                    )
                    is_leaving = False

    def _take(self, made: Any) -> None:
        """Take over what the user's function has made.

        Raises
        ------
        ConfigurationError
            If that is of another kind, or its fit could not go on from a state.
        """
        keras, name = _keras(), self._name
        is_pair = isinstance(made, tuple) and len(made) == 2
        if not is_pair or not isinstance(made[0], keras.Model) or not isinstance(made[1], dict):
            raise ConfigurationError(
                f"{name} must return a compiled model and a dict with the arguments of its fit, as "
                f"in `return model, dict(x=x, y=y)`, got {made!r:.80}"
            )
        self.model, self._arguments = made[0], dict(made[1])
        known = inspect.signature(keras.Model.fit).parameters.keys() - {"self", *_OURS}
        for argument in self._arguments:
            if argument in _OURS:
                raise ConfigurationError(f"{argument} must not be given: {_OURS[argument]}")
            if argument not in known:
                allowed = ", ".join(sorted(known))
                raise ConfigurationError(f"fit has no argument {argument!r}; it has {allowed}")
        self.epochs = self._arguments.pop("epochs", sys.maxsize)
        given = self._arguments.pop("callbacks", None) or []
        self._callbacks = list(given) if isinstance(given, Iterable) else [given]
        for argument in ("x", "validation_data"):
            _refuse_without_position(argument, self._arguments.get(argument))
        for each in self._callbacks:
            if isinstance(each, keras.callbacks.BackupAndRestore):
                raise ConfigurationError(
                    "BackupAndRestore must be left out: the study saves states"
                )
        self._move_checkpoints()
        self.variables = _Variables(self)
        self.held = self._held()

    def _move_checkpoints(self) -> None:
        """Give the files of `ModelCheckpoint` a folder that other trials do not write into."""
        kind = _keras().callbacks.ModelCheckpoint
        if saving := [each for each in self._callbacks if isinstance(each, kind)]:
            folder = tempfile.TemporaryDirectory(prefix="dasktune-keras-")
            weakref.finalize(self, folder.cleanup)
            for each in saving:
                each.filepath = str(Path(folder.name, Path(each.filepath).name))

    def _held(self) -> HeldAttributes:
        """Return the attributes that users have set on callbacks, data, model and optimizer."""
        keras = _keras()
        of_callback = {*vars(keras.callbacks.Callback()), "filepath"}
        of_data = {*vars(keras.utils.PyDataset())}
        holders: dict[str, tuple[Any, Collection[str]]] = {
            f"callbacks[{index}]": (each, of_callback) for index, each in enumerate(self._callbacks)
        }
        holders |= {name: (each, of_data) for name, each in self._data_sets().items()}
        if self.model.optimizer is not None:
            holders["optimizer"] = (self._optimizer(), ())
        if not _is_of_keras(self.model):
            holders["model"] = (self.model, _names_of_model())
        parts = (keras.Layer, keras.Variable, keras.optimizers.Optimizer)
        watched = (keras.callbacks.Callback, keras.utils.PyDataset)

        def skips(holder: Any, name: str, value: Any) -> bool:
            if isinstance(value, parts):
                return True
            if isinstance(holder, watched):
                # Users' own callbacks and data sets must be what they were, whatever they hold.
                return _is_of_keras(holder) and not attributes.is_value(value)
            return name.startswith("_") or not isinstance(value, (*attributes.PLAIN, np.ndarray))

        return HeldAttributes(holders, skips=skips)

    def _data_sets(self) -> dict[str, Any]:
        given = {name: self._arguments.get(name) for name in ("x", "validation_data")}
        kind = _keras().utils.PyDataset
        return {name: each for name, each in given.items() if isinstance(each, kind)}

    def _optimizer(self) -> Any:
        """Return the optimizer; the one within, if one for half precision scales the loss."""
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)


class _Variables:
    """The variables of a model, of its optimizer and of its metrics, by path."""

    def __init__(self, fit: _Fit) -> None:
        self._fit = fit

    def state_dict(self) -> dict[str, Any]:
        """Return the values as arrays."""
        return {path: _storable(_number_array(variable)) for path, variable in self._items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the values in place.

        Raises
        ------
        StateError
            If there are other variables than in the state.
        """
        own = dict(self._items())
        for path in sorted(own.keys() ^ state.keys()):
            side = "the model has no such variable" if path not in own else "not in the state"
            raise StateError(f"state['objects']['variables'][{path!r}]", side)
        for path, variable in own.items():
            like, saved = _number_array(variable), np.asarray(state[path])
            if like.dtype.kind == "V" and saved.nbytes == like.nbytes:
                saved = saved.view(like.dtype).reshape(like.shape)
            if saved.shape != like.shape or saved.dtype != like.dtype:
                raise StateError(
                    f"state['objects']['variables'][{path!r}]",
                    f"the model must have a variable of {saved.dtype} {saved.shape}, got "
                    f"{like.dtype} {like.shape}",
                )
            variable.assign(saved)

    def _items(self) -> Iterator[tuple[str, Any]]:
        model = self._fit.model
        count: Counter[str] = Counter()
        optimizer = [] if model.optimizer is None else model.optimizer.variables
        for variable in [*model.variables, *optimizer, *model.metrics_variables]:
            path = variable.path
            count[path] += 1
            yield path if count[path] == 1 else f"{path} ({count[path]})", variable


class _Leaving(BaseException):
    """Raised in a paused fit when another fit replaces it."""


class _Backend(str):
    """The name of Keras's backend; a process that unpickles it imports Keras with this backend.

    Else a worker that was started without ``KERAS_BACKEND`` would import TensorFlow.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return _chosen, (str(self),)


def _chosen(backend: str) -> str:
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = backend
    return _Backend(backend)


@cache
def _callback_classes() -> tuple[Any, Any]:
    base = _keras().callbacks.Callback

    class EpochPause(base):  # type: ignore[misc, valid-type]
        """Gives the turn to dasktune where an epoch begins, before any other callback."""

        def __init__(self, fit: _Fit) -> None:
            super().__init__()
            self.fit = fit

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Wait until the epoch shall be trained."""
            self.fit.pause()

    class Logs(base):  # type: ignore[misc, valid-type]
        """Records the metrics of an epoch, after all other callbacks."""

        def __init__(self, fit: _Fit) -> None:
            super().__init__()
            self.fit = fit

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Record the numbers."""
            self.fit.logs = {
                name: float(value) for name, value in (logs or {}).items() if np.size(value) == 1
            }

    return EpochPause, Logs


@cache
def _names_of_model() -> frozenset[str]:
    """Return the names of the attributes that Keras gives to a model itself."""
    model = _keras().Model()
    model.compile()
    return frozenset({*vars(model), "history", "stop_evaluating"})


def _refuse_without_position(argument: str, data: Any) -> None:
    home = type(data).__module__.partition(".")[0]
    if isinstance(data, Iterator) or home in _WITHOUT_POSITION:
        raise ConfigurationError(
            f"{argument} must be arrays, a keras.utils.PyDataset or a DataLoader of torch, got a "
            f"{home}.{type(data).__name__}: its position cannot be saved"
        )


def _refuse_uncleared(model: Any) -> None:
    """Refuse variables whose gradients Keras never clears: states contain no gradients.

    On torch, Keras clears the gradients of the parameters that it lists by their paths. Of two
    layers with the same name, it lists only one.

    Raises
    ------
    TrainerError
        If a model has such layers.
    """
    if _keras().backend.backend() != "torch":
        return
    cleared = {id(parameter) for parameter in model.parameters()}
    paths = [each.path for each in model.trainable_weights if id(each.value) not in cleared]
    if paths:
        layers = ", ".join(sorted({path.rpartition("/")[0] for path in paths}))
        raise TrainerError(
            f"each layer must have a name of its own, got several of {layers}: Keras on torch "
            "does not clear the gradients of one of them, so a trial could not go on exactly"
        )


def _is_of_keras(item: Any) -> bool:
    return type(item).__module__.partition(".")[0] == "keras"


def _number_array(variable: Any) -> Any:
    return np.array(_keras().ops.convert_to_numpy(variable))


def _storable(array: Any) -> Any:
    """Return an array that a state can hold: NumPy has no bfloat16 of its own."""
    return array.reshape(-1).view(np.uint8) if array.dtype.kind == "V" else array


def _keras() -> Any:
    """Return the package, which is imported on first use."""
    return framework("keras", extra="keras")
