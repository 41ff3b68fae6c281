"""A ready trainer for Lightning: module and data module as they are, one epoch a step.

One `Trainer.fit` of Lightning runs in a thread of its own, and pauses where an epoch begins.
There the trainer is saved; and there a saved state is loaded, in place, into a fit that has come
to the same point. So schedulers, callbacks, precision and counters go on, and no code of Lightning
for restarting is involved.
"""

from __future__ import annotations

import copy
import inspect
import io
import logging
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import torch

from dasktune.errors import ConfigurationError, TrainerError
from dasktune.integrations.arguments import (
    arguments_of,
    is_same,
    name_of,
    reads,
    refuse_ineffective,
    refuse_unknown,
)
from dasktune.integrations.csv_files import CSVFiles
from dasktune.integrations.held import HeldAttributes
from dasktune.integrations.installed import framework
from dasktune.integrations.options import content_of
from dasktune.integrations.tensorboard import TensorBoard
from dasktune.mirror import Logger
from dasktune.trainer import attributes
from dasktune.trainer.base import LOGGERS
from dasktune.trainer.generators import global_states, is_cuda, restore_global
from dasktune.trainer.torch import TorchTrainer
from dasktune.trainer.turns import Turns, TurnsEnded
from dasktune.types import ENDED_AT, Sequences, Value

_OURS = {
    "accelerator": "the device of a worker is given by dasktune",
    "devices": "the device of a worker is given by dasktune",
    "num_nodes": "the device of a worker is given by dasktune",
    "strategy": "a trial is trained on one device",
    "max_steps": "how far a trial is trained is the tuner's choice; give max_epochs if a schedule "
    "needs it",
    "max_time": "how far a trial is trained is the tuner's choice",
    "default_root_dir": "callbacks get a folder of their own, which is removed afterwards",
    "fast_dev_run": "it trains other steps than those of the trial",
}
"""Options of Lightning's trainer that users must not give, and why."""

_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "accelerator": ("auto",),
    "devices": ("auto", 1),
    "num_nodes": (1,),
    "strategy": ("auto",),
    "max_steps": (-1,),
    "max_time": (None,),
    "default_root_dir": (None,),
    "fast_dev_run": (False,),
}
"""Values of such options that scripts give all the same: with them, dasktune's part stays so."""

_QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "max_epochs": -1,
}
"""Options that dasktune gives unless the user does."""

_NOT_KEPT = frozenset(
    {"state_dict", "optimizer_states", "lr_schedulers", "pytorch-lightning_version"}
    | {"hparams_name", "hyper_parameters", "hparams_type"}
    | {f"datamodule_{name}" for name in ("hparams_name", "hyper_parameters", "hparams_type")}
)
"""Parts of a Lightning checkpoint that are made anew, or saved with the objects themselves."""

_AT_FIRST = frozenset(
    {"__init__", "configure_optimizers", "configure_model", "configure_callbacks"}
)
"""Methods that run before the first epoch only."""

_NOTES = (
    *("The `srun` command is available", r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    r"The number of training batches \(\d+\) is smaller than the logging interval",
)
"""Beginnings of warnings of Lightning about what no user can change: jobs and logs are ours."""

_FOLDER = "<folder>"

_LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "CSVLogger": CSVFiles,
    "TensorBoardLogger": TensorBoard,
}
"""Loggers of Lightning, and what writes the same for each trial of a study."""


def trainer(
    module: Callable[..., Any], data: Callable[..., Any] | None = None, **options: Any
) -> type[LightningTrainer]:
    """Return a trainer class that trains a LightningModule, one epoch a step.

    Its metrics are what the module logs: after each epoch, those of ``trainer.callback_metrics``.

    Parameters
    ----------
    module
        A LightningModule class, or a function that returns a module. It is called with the
        hyper-parameters, and the entries of the study's config, that its parameters name.
    data
        A LightningDataModule class, called likewise; or a function that returns a data module, a
        DataLoader for training, or one for training and one for validation. None if the module
        has its own loaders.
    options
        Options of ``lightning.Trainer``, such as ``callbacks``, ``precision``,
        ``gradient_clip_val``, ``limit_train_batches``. Each trial gets copies. A function without
        parameters is called for each trial. ``max_epochs`` is what schedules may ask for; no
        trial is trained beyond it. For ``logger``, a CSVLogger or a TensorBoardLogger, the study
        gets loggers that write each trial to a folder.

    Raises
    ------
    ConfigurationError
        If an argument is of another kind, or an option is unknown or dasktune's own.

    Examples
    --------
    A study then is ``dasktune.create_study(trainer(Net, Digits), metric="val_accuracy", ...)``.
    """
    L = _lightning()  # noqa: N806
    known = inspect.signature(L.Trainer.__init__).parameters.keys() - {"self"}
    for name, maker in (("module", module), ("data", data)):
        if maker is not None and not (isinstance(maker, type) or inspect.isroutine(maker)):
            raise ConfigurationError(
                f"{name} must be a class or a function, which each trial calls, got {maker!r:.80}"
            )
    options = {name: each for name, each in options.items() if not _says_nothing(name, each)}
    for name in options:
        if name in _OURS:
            raise ConfigurationError(f"{name} must not be given: {_OURS[name]}")
        if name not in known:
            allowed = ", ".join(sorted(known - _OURS.keys()))
            raise ConfigurationError(f"lightning.Trainer has no option {name!r}; it has {allowed}")
    loggers = _study_loggers(options.pop("logger", None))
    members = {
        LOGGERS: loggers,
        "__module__": module.__module__,
        "__qualname__": f"trainer({module.__qualname__})",
        "__doc__": module.__doc__,
        "make_module": staticmethod(module),
        "make_data": None if data is None else staticmethod(data),
        "options": content_of(options),
        "_dasktune_options": options,
    }
    return type(module.__name__, (LightningTrainer,), members)


class LightningTrainer(TorchTrainer):
    """The trainer of a LightningModule; made by `trainer`.

    **State.** Besides what `dasktune.TorchTrainer` saves of the module, the optimizers, the
    schedulers and the generators: Lightning's checkpoint (loops, callbacks, precision, data module,
    what ``on_save_checkpoint`` adds), and attributes of module, data module and callbacks that
    hold numbers, strings, arrays or tensors.

    **Changed values** are set, where the old one was, in the optimizers' options, and in attributes
    and ``hparams`` of module and data module; loaders are made anew if the data module takes
    it. A module with a method ``hyperparameters_changed(changed)`` is told. A value that nothing
    takes over is refused.

    Attributes
    ----------
    make_module, make_data
        Make the module and the data module; None for a module with its own data.
    options, options_text
        The options of `lightning.Trainer`, and their text in the fingerprint.
    module
        The module that is trained.
    metrics
        The metrics of the last step.
    """

    # Lightning's own checkpoint has what its loops and callbacks need.
    harmless_differences = ("trainer.module._trainer", "trainer.held")
    model_endings = (".ckpt",)

    make_module: ClassVar[Callable[..., Any]]
    make_data: ClassVar[Callable[..., Any] | None]
    options: ClassVar[tuple[Any, ...]]
    """What the options of Lightning's trainer are made of: part of the fingerprint."""
    _dasktune_options: ClassVar[Mapping[str, Any]]

    module: Any
    metrics: Mapping[str, float]
    held: HeldAttributes
    """What module, data module and callbacks hold in attributes that users have set."""

    @classmethod
    def change_problems(
        cls, sequences: Sequences, changing: Collection[str], config: Mapping[str, object]
    ) -> Iterator[str]:
        """Yield the hyper-parameters that a scheduler of the module sets, too.

        A module is made for it. Where that fails outside of a fit, nothing is said: the check
        beside the first run asks again.
        """
        values, make = {name: each(0) for name, each in sequences.items()}, cls.make_module
        states = global_states()
        try:
            module = make(**arguments_of(make, values, config))
            optimizers, schedulers, _ = _optimizer()._configure_optimizers(
                module.configure_optimizers()
            )
        except Exception:  # noqa: BLE001 - the user's code, which may need the trainer
            return
        finally:
            restore_global(states)
        given = [each if isinstance(each, dict) else {"scheduler": each} for each in schedulers]
        by_epoch = [each["scheduler"] for each in given if each.get("interval") in (None, "epoch")]
        length = cls._dasktune_options.get("max_epochs", -1)
        for name in sorted(changing):
            if given and _is_scheduled(name, optimizers):
                yield _two_courses(name, values[name], by_epoch, length)

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make module and data, and run Lightning's fit up to its first epoch."""
        kind, L = type(self), _lightning()  # noqa: N806
        make_data = kind.make_data or _no_data
        refuse_unknown(hp, kind.make_module, make_data)
        module = kind.make_module(**arguments_of(kind.make_module, hp, self.config))
        if not isinstance(module, L.LightningModule):
            raise ConfigurationError(
                f"{name_of(kind.make_module)} must make a lightning.LightningModule, "
                f"got {type(module).__name__}"
            )
        self.module = module
        self._dasktune_data = _as_data_module(make_data(**arguments_of(make_data, hp, self.config)))
        self.metrics = {}
        self.has_ended = False
        self._dasktune_values = dict(hp)
        self._dasktune_trainer, self._dasktune_folder = self._lightning_trainer()
        self._begin()
        self._refuse_persistent_workers()
        self.optimizers = self._dasktune_trainer.optimizers
        self.schedulers = [each.scheduler for each in self._dasktune_trainer.lr_scheduler_configs]
        self.held = _held(module, self._dasktune_data, self._dasktune_trainer.callbacks)

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over values that have changed."""
        before = self._dasktune_values
        changed = {name: value for name, value in hp.items() if not is_same(value, before[name])}
        self._dasktune_values = {**before, **hp}
        in_optimizers = {name for name in changed if self._set_option(name, before[name])}
        in_module = {name for name in changed if _set(self.module, name, before[name], hp[name])}
        in_data = self._set_in_data(changed, before)
        if callable(tell := getattr(self.module, "hyperparameters_changed", None)) and changed:
            tell(changed)
            in_module |= changed.keys()
        where = f"{type(self.module).__name__} reads it only where it is made"
        refuse_ineffective(changed, in_optimizers | in_module | in_data, where)
        if in_data or (self._dasktune_data is None and in_module - in_optimizers):
            self._reload()

    def train(self) -> None:
        """Train one epoch."""
        if self.has_ended:
            if self._is_at_end:
                raise TrainerError(
                    f"all {self._epochs} epochs of max_epochs have been trained: give the "
                    "tuner no more steps than that"
                )
            return  # a callback has stopped it
        self.has_ended = not self._dasktune_turns.go_on()
        self.metrics = {
            name: float(value) for name, value in self._dasktune_trainer.callback_metrics.items()
        }

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics that the module has logged."""
        if not self.metrics:
            raise TrainerError(
                f"{type(self.module).__name__} must log its metrics, as in "
                "self.log('val_loss', loss) within validation_step"
            )
        if not self.has_ended or self._is_at_end:
            return self.metrics
        return {**self.metrics, ENDED_AT: self._epochs}

    def model_file(self, ending: str) -> bytes:
        """Return the module as a checkpoint for ``load_from_checkpoint`` of its class."""
        content = self._dasktune_trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
        file = io.BytesIO()
        torch.save(content, file)
        return file.getvalue()

    @property
    def _epochs(self) -> int:
        """The number of epochs that were trained."""
        return int(self._dasktune_trainer.fit_loop.epoch_progress.current.processed)

    @property
    def _is_at_end(self) -> bool:
        """Whether all epochs of max_epochs were trained."""
        return bool(0 <= self._dasktune_trainer.max_epochs <= self._epochs)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the epoch has been validated already."""
        return nullcontext()

    # ------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the objects and of Lightning's trainer."""
        checkpoint = self._dasktune_trainer._checkpoint_connector.dump_checkpoint(
            weights_only=False
        )
        kept = {name: part for name, part in checkpoint.items() if name not in _NOT_KEPT}
        logged = dict(self._dasktune_trainer.callback_metrics)
        return {
            **super().state_dict(),
            "checkpoint": _replaced(kept, self._dasktune_folder, _FOLDER),
            "logged": logged,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, while the fit pauses."""
        fit = self._dasktune_trainer
        connector = fit._checkpoint_connector
        connector._loaded_checkpoint = {
            **_replaced(state["checkpoint"], _FOLDER, self._dasktune_folder),
            "state_dict": self.module.state_dict(),
            "optimizer_states": [],
            "lr_schedulers": [],
            "pytorch-lightning_version": _lightning().__version__,
        }
        connector.restore_datamodule()
        connector.restore_model()
        connector.restore_callbacks()
        connector.restore_training_state()
        for each in fit.checkpoint_callbacks:  # which leave this number as it was
            saved = connector._loaded_checkpoint["callbacks"].get(each.state_key, {})
            if "current_score" in saved:
                each.current_score = saved["current_score"]
        connector._loaded_checkpoint = {}
        # The fit has come to this very point by itself: it does not restart.
        fit.fit_loop.restarting = False
        fit.fit_loop.on_iteration_done()
        fit.callback_metrics.update(
            {name: value.to(self.device) for name, value in state["logged"].items()}
        )
        super().load_state_dict(state)

    def _attributes(self) -> dict[str, Any]:
        if not hasattr(self, "schedulers"):  # before the end of build
            return {"module": self.module}
        fit = self._dasktune_trainer
        # Generators of samplers, and loaders that can save their position.
        loaders = attributes.objects({"train": fit.train_dataloader, "val": fit.val_dataloaders})
        return {
            "module": self.module,
            "optimizers": self.optimizers,
            "schedulers": self.schedulers,
            "metrics": self.metrics,
            "has_ended": self.has_ended,
            **({"loaders": loaders} if loaders else {}),
            **self.held,
        }

    def _value(self, name: str) -> Any:
        return self.held.get(name) if "." in name else super()._value(name)

    def _set_value(self, name: str, value: Any) -> None:
        if "." in name:
            self.held.put(name, value)
        else:
            super()._set_value(name, value)

    # --------------------------------------------------------------------------------- fit

    def _lightning_trainer(self) -> tuple[Any, str]:
        """Return Lightning's trainer, and the folder for files of its callbacks."""
        L = _lightning()  # noqa: N806
        environments = framework("lightning.pytorch.plugins.environments", extra="lightning")
        given = {**_QUIET, **self._dasktune_options}
        options = {name: _made(option) for name, option in given.items()}
        callbacks = options.pop("callbacks", None) or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        saving = [each for each in callbacks if isinstance(each, L.callbacks.ModelCheckpoint)]
        options.setdefault("enable_checkpointing", bool(saving))
        folder = tempfile.TemporaryDirectory(prefix="dasktune-lightning-")
        weakref.finalize(self, folder.cleanup)
        for each in saving:
            # Names of files must not depend on those that other trials have left.
            each.dirpath, each._enable_version_counter = folder.name, False
        plugins = options.pop("plugins", None) or []
        _be_quiet()
        made = L.Trainer(
            **options,
            # A stage does not know its trials: the study's loggers write, and code that uses the
            # module's logger runs as it is.
            logger=L.loggers.logger.DummyLogger() if getattr(self, LOGGERS) else False,
            **_device_options(self.device),
            callbacks=[_pause_class()(), *callbacks],
            plugins=[
                *(plugins if isinstance(plugins, list) else [plugins]),
                # Lightning must not take over the job in which the worker runs.
                environments.LightningEnvironment(),
            ],
            default_root_dir=folder.name,
        )
        return made, folder.name

    def _begin(self) -> None:
        """Run the fit up to its first epoch."""
        fit, module, data, threads = (
            self._dasktune_trainer,
            self.module,
            self._dasktune_data,
            self.threads,
        )

        def body() -> None:
            torch.set_num_threads(threads)  # each thread has a number of its own
            fit.fit(module, datamodule=data)

        self._dasktune_turns = turns = Turns(body)
        next(each for each in fit.callbacks if isinstance(each, _pause_class())).turns = turns
        # The thread does not know the trainer: it would keep it alive, and wait for ever.
        weakref.finalize(self, turns.close)
        self.has_ended = not turns.go_on()

    def _refuse_persistent_workers(self) -> None:
        fit = self._dasktune_trainer
        loaders = attributes.items_within("", [fit.train_dataloader, fit.val_dataloaders], set())
        if any(getattr(each, "persistent_workers", False) for _, each in loaders):
            raise ConfigurationError(
                "persistent_workers must be False: the generators of worker processes that stay "
                "cannot be saved"
            )

    def _reload(self) -> None:
        """Make the loaders anew."""
        fit = self._dasktune_trainer
        fit.fit_loop._combined_loader = None
        fit.fit_loop.setup_data()
        if fit.val_dataloaders is not None:
            fit.validating = True
            fit.fit_loop.epoch_loop.val_loop._combined_loader = None
            fit.fit_loop.epoch_loop.val_loop.setup_data()
            fit.training = True

    # ------------------------------------------------------------------------------ values

    def _set_option(self, name: str, before: Value) -> bool:
        """Set a changed value in optimizers where the old one was; return whether it was there."""
        groups = [group for each in self.optimizers for group in each.param_groups if name in group]
        if self.schedulers and _is_scheduled(name, self.optimizers):
            fit = self._dasktune_trainer
            by_epoch = [c.scheduler for c in fit.lr_scheduler_configs if c.interval == "epoch"]
            raise ConfigurationError(_two_courses(name, before, by_epoch, fit.max_epochs))
        matching = [group for group in groups if group[name] == before]
        for group in matching:
            group[name] = self._dasktune_values[name]
        return bool(matching)

    def _set_in_data(self, changed: Mapping[str, Value], before: Mapping[str, Value]) -> set[str]:
        """Give changed values to what makes the loaders; return the names of those."""
        maker = type(self).make_data
        if maker is None:
            return set()
        if not isinstance(self._dasktune_data, _loaders_class()):
            return {
                name
                for name in changed
                if _set(self._dasktune_data, name, before[name], changed[name])
            }
        arguments = arguments_of(maker, self._dasktune_values, self.config)
        if taken := changed.keys() & arguments.keys():
            self._dasktune_data.loaders = _as_data_module(maker(**arguments)).loaders
        return set(taken)


def _is_scheduled(name: str, optimizers: Iterable[Any]) -> bool:
    """Return whether a scheduler sets an option of optimizers."""
    return any(f"initial_{name}" in group for each in optimizers for group in each.param_groups)


def _two_courses(name: str, value: Value, schedulers: list[Any], length: int) -> str:
    """Return why a hyper-parameter cannot change, and what to write.

    Parameters
    ----------
    name, value
        The hyper-parameter, and its value at the first step.
    schedulers
        Those that count epochs.
    length
        The number of epochs; -1 if it is not known.
    """
    written = [text for each in schedulers if (text := _as_sequence(each, value, length))]
    course = f"{name}={written[0]}" if written else f"a sequence of {name!r}"
    return (
        f"the value of {name!r} changes, and a scheduler of configure_optimizers sets it, too: "
        f"keep it constant, as in {name}=[{value!r}], or remove the scheduler, whose course is "
        f"{course}"
    )


def _as_sequence(scheduler: Any, value: Value, length: int) -> str:
    """Return the sequence that is the course of a scheduler; empty if there is none for it."""
    match type(scheduler).__name__:
        case "StepLR":
            size, steps = scheduler.step_size, length if length and length > 0 else 0
            milestones = ", ".join(map(str, range(size, steps, size))) or f"{size}, {2 * size}, ..."
            return f"MultiStep({value!r}, [{milestones}], gamma={scheduler.gamma!r})"
        case "MultiStepLR":
            counted = sorted(scheduler.milestones.elements())
            return f"MultiStep({value!r}, {counted}, gamma={scheduler.gamma!r})"
        case "ExponentialLR":
            return f"Exponential({value!r}, gamma={scheduler.gamma!r})"
        case "CosineAnnealingLR":
            return f"Cosine({value!r}, {scheduler.T_max}, final={scheduler.eta_min!r})"
        case _:
            return ""


def _optimizer() -> Any:
    """Return the module of Lightning that reads what ``configure_optimizers`` returns."""
    return framework("lightning.pytorch.core.optimizer", extra="lightning")


def _says_nothing(name: str, option: Any) -> bool:
    """Return whether an option leaves to dasktune what is dasktune's part."""
    return isinstance(option, (str, int, type(None))) and option in _SAYS_NOTHING.get(name, ())


def _study_loggers(given: Any) -> tuple[Logger, ...]:
    """Return the loggers of the study that write what loggers of Lightning would.

    Raises
    ------
    ConfigurationError
        If there is none for a logger.
    """
    loggers = _lightning().loggers
    given = given() if isinstance(given, FunctionType) else given
    if given is None or given is False:
        return ()
    if given is True:  # Lightning's own folder for it
        return (CSVFiles("lightning_logs"),)
    made = []
    for each in given if isinstance(given, (list, tuple)) else (given,):
        kind = next(
            (our for name, our in _LOGGERS.items() if isinstance(each, getattr(loggers, name))),
            None,
        )
        if kind is None:
            raise ConfigurationError(
                f"logger must be a {' or a '.join(_LOGGERS)}, got {type(each).__name__}: a stage "
                "does not know its trials; give create_study(loggers=[...]) one of dasktune's "
                "loggers, for MLflow, W&B or your own"
            )
        made.append(kind(Path(each.root_dir)))
    return tuple(made)


def _held(module: Any, data: Any, callbacks: list[Any]) -> HeldAttributes:
    """Return the attributes that users have set on module, data module and callbacks."""
    L = _lightning()  # noqa: N806
    # Others save themselves, and are part of Lightning's checkpoint.
    saves_nothing = L.Callback.state_dict
    plain = [each for each in callbacks if type(each).state_dict is saves_nothing]
    holders = {"module": module, "data": data}
    holders |= {f"callbacks[{index}]": each for index, each in enumerate(plain)}
    return HeldAttributes(
        {
            path: (each, _own_names(each))
            for path, each in holders.items()
            if each is not None and not isinstance(each, _pause_class())
        },
        skips=lambda holder, name, value: isinstance(value, L.Trainer),
    )


def _lightning() -> Any:
    """Return the package, which is imported on first use."""
    return framework("lightning.pytorch", extra="lightning")


@cache
def _pause_class() -> Any:
    class Pause(_lightning().Callback):  # type: ignore[misc]
        """Gives the turn to dasktune where an epoch begins, before any other callback."""

        turns: Turns

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            """Wait until the epoch shall be trained."""
            try:
                self.turns.pause()
            except TurnsEnded:
                # The end of this process's part is none of the training: nobody needs to know.
                trainer.callbacks.clear()
                raise

    return Pause


@cache
def _loaders_class() -> Any:
    class Loaders(_lightning().LightningDataModule):  # type: ignore[misc]
        """The loaders that a function has returned, for training and validation."""

        def __init__(self, loaders: tuple[Any, ...]) -> None:
            super().__init__()
            self.loaders = loaders
            if len(loaders) > 1:
                self.val_dataloader = lambda: self.loaders[1]

        def train_dataloader(self) -> Any:
            """Return the loader for training."""
            return self.loaders[0]

    return Loaders


def _as_data_module(made: Any) -> Any:
    """Return a data module for what the user's function has made.

    Raises
    ------
    ConfigurationError
        If it is of another kind.
    """
    if made is None or isinstance(made, _lightning().LightningDataModule):
        return made
    loaders = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(loaders) <= 2 or not all(hasattr(each, "__iter__") for each in loaders):
        raise ConfigurationError(
            "data must make a LightningDataModule, a DataLoader, or two: for training and for "
            f"validation, got {made!r:.80}"
        )
    return _loaders_class()(loaders)


def _no_data() -> None:
    """Make no data: the module has loaders."""


def _set(holder: Any, name: str, before: Value, value: Value) -> bool:
    """Set a changed attribute and entry of hparams; return whether the old value had an effect."""
    is_held = False
    if is_same(getattr(holder, name, None), before):
        setattr(holder, name, value)
        is_held = True
    if name in holder.hparams and is_same(holder.hparams[name], before):
        holder.hparams[name] = value
        is_held = True
    return is_held and reads(type(holder), name, apart_from=_AT_FIRST)


def _own_names(holder: Any) -> frozenset[str]:
    """Return the names of the attributes that Lightning gives to an object itself."""
    L = _lightning()  # noqa: N806
    kinds = (L.LightningModule, L.LightningDataModule, L.Callback)
    made = next(kind() for kind in kinds if isinstance(holder, kind))
    hparams = ("_hparams", "_hparams_initial", "_hparams_name")
    return frozenset({*vars(made), *hparams, "val_dataloader"})


def _made(option: Any) -> Any:
    """Return a trial's own copy of an option; what a function makes for a function."""
    return option() if isinstance(option, FunctionType) else copy.deepcopy(option)


def _replaced(value: Any, old: str, new: str) -> Any:
    """Return a state with a folder replaced in all its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {_replaced(key, old, new): _replaced(v, old, new) for key, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_replaced(item, old, new) for item in value)
    return value


def _device_options(device: str) -> dict[str, Any]:
    if not is_cuda(device):
        return {"accelerator": "cpu", "devices": 1}
    return {"accelerator": "gpu", "devices": [int(device.partition(":")[2] or 0)]}


def _be_quiet() -> None:
    """Silence what Lightning says about each trainer, unless the user has chosen a level."""
    for note in _NOTES:
        warnings.filterwarnings("ignore", message=note)
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)
