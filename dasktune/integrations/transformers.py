"""A ready trainer for Hugging Face's `Trainer`, one epoch a step.

One ``train()`` of Hugging Face runs in a thread of its own, and pauses before each epoch. There the
trainer is saved; and there a saved state is loaded, in place, into one that has come to the same
point. Its loop over the epochs is replaced by one that does not end by itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch

from dasktune.errors import ConfigurationError, TrainerError
from dasktune.integrations.arguments import (
    arguments_of,
    name_of,
    refuse_ineffective,
    refuse_unknown,
)
from dasktune.integrations.installed import framework
from dasktune.trainer.generators import is_cuda
from dasktune.trainer.torch import TorchTrainer
from dasktune.trainer.turns import Turns
from dasktune.types import ENDED_AT, Value

_OPTIONS = {"learning_rate": "lr"}
"""Options of optimizers that Hugging Face's arguments name otherwise."""

_LOSSES = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")
"""Sums of a Hugging Face trainer that decide what it logs."""

_TIMES = ("_runtime", "_per_second", "total_flos")
"""Ends of the names of logged numbers that say how fast a machine is."""


def trainer(make: Callable[..., Any]) -> type[TransformersTrainer]:
    """Return a trainer class that trains a `transformers.Trainer`, one epoch a step.

    Its metrics are what the trainer logs, evaluation after each epoch included.

    Parameters
    ----------
    make
        A function that returns a `transformers.Trainer`. It is called with the hyper-parameters,
        and the entries of the study's config, that its parameters name. ``num_train_epochs`` of
        its arguments is the length of its schedule: no trial is trained beyond it.

    Raises
    ------
    ConfigurationError
        If it is not a function, or transformers is missing or too old.
    """
    if not inspect.isroutine(make):
        raise ConfigurationError(
            f"make must be a function that returns a transformers.Trainer, got {make!r:.80}"
        )
    if not hasattr(_transformers().Trainer, "_run_epoch"):
        raise ConfigurationError(
            f"transformers must be of version 5 or newer, got {_transformers().__version__}"
        )
    members = {
        "__module__": make.__module__,
        "__qualname__": make.__qualname__,
        "__doc__": make.__doc__,
        "make": staticmethod(make),
    }
    return type(make.__name__, (TransformersTrainer,), members)


class TransformersTrainer(TorchTrainer):
    """The trainer of a `transformers.Trainer`; made by `trainer`.

    **State.** Model, optimizer, scheduler, scaler and generators, as in `dasktune.TorchTrainer`;
    ``TrainerState`` without the times in its log, the state of callbacks that export one, and the
    sums of losses that are not logged yet.

    **Changed values** are set, where the old one was, in the optimizer's options. A changed
    learning rate is the new base of the scheduler, which multiplies it by its factor.

    Attributes
    ----------
    make
        Makes the `transformers.Trainer` from the hyper-parameters.
    metrics
        The metrics of the last step.
    epochs
        The number of epochs that have been trained.
    """

    make: ClassVar[Callable[..., Any]]
    metrics: Mapping[str, float]
    epochs: int

    def build(self, hp: Mapping[str, Value]) -> None:
        """Make the trainer, and run it up to its first epoch."""
        make = type(self).make
        values = {name: hp[name] for name in hp}
        refuse_unknown(values, make)
        made = make(**arguments_of(make, values, self.config))
        self._refuse(made)
        self.metrics, self.epochs, self.has_ended = {}, 0, False
        self._dasktune_values = values
        self._dasktune_trainer = made
        self._begin()
        self.model = made.model
        self.optimizer = getattr(made.optimizer, "optimizer", made.optimizer)
        self.scheduler = made.lr_scheduler
        if made.accelerator.scaler is not None:
            self.scaler = made.accelerator.scaler

    def setup(self, hp: Mapping[str, Value]) -> None:
        """Take over values that have changed."""
        before = self._dasktune_values
        changed = {
            name: hp[name]
            for name in hp
            if type(hp[name]) is not type(before[name]) or hp[name] != before[name]
        }
        self._dasktune_values = {**before, **changed}
        used = {name for name in changed if self._set_option(name, before[name], changed[name])}
        refuse_ineffective(changed, used, f"{name_of(type(self).make)} is called only once")

    def train(self) -> None:
        """Train one epoch."""
        made = self._dasktune_trainer
        if self.epochs >= made.state.num_train_epochs:
            raise TrainerError(
                f"all {made.state.num_train_epochs} epochs of num_train_epochs have been trained: "
                "give the tuner no more steps than that"
            )
        if self.has_ended:
            return  # a callback has stopped it
        made._dasktune_epoch = self.epochs
        logged = len(made.state.log_history)
        self._dasktune_turns.go_on()
        self.epochs += 1
        self.has_ended = bool(made.control.should_training_stop)
        news = [_without_times(entry) for entry in made.state.log_history[logged:]]
        numbers = {name: value for entry in news for name, value in entry.items()}
        self.metrics = {
            name: float(value) for name, value in numbers.items() if name not in ("epoch", "step")
        }

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics that the trainer has logged in the last epoch."""
        made = self._dasktune_trainer
        if not self.metrics:
            raise TrainerError(
                f"the trainer of {name_of(type(self).make)} logs nothing in an epoch: give it an "
                "eval_dataset, or logging_strategy='epoch'"
            )
        has_stopped = self.has_ended and self.epochs < made.state.num_train_epochs
        return {**self.metrics, ENDED_AT: self.epochs} if has_stopped else self.metrics

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the epoch has been evaluated already."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the objects and of the Hugging Face trainer."""
        made = self._dasktune_trainer
        progress = dataclasses.asdict(dataclasses.replace(made.state, stateful_callbacks=[]))
        progress["log_history"] = [_without_times(entry) for entry in progress["log_history"]]
        del progress["stateful_callbacks"]
        return {
            **super().state_dict(),
            "progress": progress,
            "callbacks": [each.state()["attributes"] for each in self._exporting()],
            "losses": {name: getattr(made, name) for name in _LOSSES},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, while the training pauses."""
        made = self._dasktune_trainer
        for name, value in state["progress"].items():
            setattr(made.state, name, value)
        for each, saved in zip(self._exporting(), state["callbacks"], strict=True):
            for name, value in saved.items():
                setattr(each, name, value)
        for name, value in state["losses"].items():
            is_tensor = isinstance(value, torch.Tensor)
            setattr(made, name, value.to(self.device) if is_tensor else value)
        super().load_state_dict(state)

    def _attributes(self) -> dict[str, Any]:
        own = super()._attributes()
        return {name: value for name, value in own.items() if not name.startswith("_dasktune_")}

    def _exporting(self) -> list[Any]:
        """Return the callbacks, and the control, that export a state."""
        made = self._dasktune_trainer
        exports = framework("transformers.trainer_callback", extra="transformers").ExportableState
        known = [*made.callback_handler.callbacks, made.control]
        return [each for each in known if isinstance(each, exports)]

    def _refuse(self, made: Any) -> None:
        """Refuse a trainer that this one cannot train, and change what would disturb it."""
        package, name = _transformers(), name_of(type(self).make)
        if not isinstance(made, package.Trainer):
            raise ConfigurationError(
                f"{name} must return a transformers.Trainer, got {type(made).__name__}"
            )
        if made.args.load_best_model_at_end:
            raise ConfigurationError(
                "load_best_model_at_end must be False: the study keeps the best state"
            )
        if (made.args.device.type == "cuda") != is_cuda(self.device):
            raise ConfigurationError(
                f"the trainer of {name} must train on {self.device}, got {made.args.device}: give "
                f"TrainingArguments use_cpu={not is_cuda(self.device)}"
            )
        strategy = package.trainer_utils.IntervalStrategy
        made.args.save_strategy = package.trainer_utils.SaveStrategy.NO
        if made.eval_dataset is not None and made.args.eval_strategy == strategy.NO:
            made.args.eval_strategy = strategy.EPOCH
        made.remove_callback(package.ProgressCallback)
        made.remove_callback(package.PrinterCallback)

    def _begin(self) -> None:
        """Run the training up to its first epoch."""
        made, threads = self._dasktune_trainer, self.threads
        run_epoch = made._run_epoch

        def epochs(**given: Any) -> None:
            while True:
                turns.pause()
                made.control = made.callback_handler.on_epoch_begin(
                    made.args, made.state, made.control
                )
                run_epoch(**{**given, "epoch": made._dasktune_epoch})

        def body() -> None:
            torch.set_num_threads(threads)  # each thread has a number of its own
            made._run_epoch = epochs
            made.train()

        self._dasktune_turns = turns = Turns(body)
        # The thread does not know the trainer: it would keep it alive, and wait for ever.
        weakref.finalize(self, turns.close)
        if not turns.go_on():
            raise TrainerError("the training ended before its first epoch: is there no data?")

    def _set_option(self, name: str, before: Value, value: Any) -> bool:
        """Set a changed value in the optimizer where the old one was; return whether it was."""
        option = _OPTIONS.get(name, name)
        groups = [group for group in self.optimizer.param_groups if option in group]
        if f"initial_{option}" not in self.optimizer.param_groups[0]:
            matching = [group for group in groups if group[option] == before]
            for group in matching:
                group[option] = value
            return bool(matching)
        schedule = self.scheduler
        if not isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):
            raise TrainerError(
                f"the value of {name!r} changes, and a {type(schedule).__name__} sets it, too: "
                "remove one of the two"
            )
        if any(group[f"initial_{option}"] != before for group in groups):
            return False
        schedule.base_lrs = [value for _ in schedule.base_lrs]
        for group, factor in zip(groups, schedule.lr_lambdas, strict=True):
            group[f"initial_{option}"] = value
            group[option] = value * factor(schedule.last_epoch)
        return True


def _transformers() -> Any:
    """Return the package, which is imported on first use."""
    return framework("transformers", extra="transformers")


def _without_times(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not name.endswith(_TIMES)}
