"""A trainer for PyTorch with automatic state, seeds and evaluation mode."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np

from dasktune.errors import ConfigurationError, StateError
from dasktune.storage.codec import encode
from dasktune.trainer import attributes
from dasktune.trainer.base import Trainer
from dasktune.trainer.contents import ContentStamp
from dasktune.trainer.fingerprint.installed import is_installed_name
from dasktune.trainer.generators import (
    global_states,
    is_generator,
    restore_generator,
    restore_global,
    seed_global,
)
from dasktune.trainer.optional_torch import IS_INSTALLED, torch
from dasktune.trainer.proof.remedies import cleared_parameters
from dasktune.trainer.settings import use_deterministic_algorithms
from dasktune.trainer.undivided import Undivided

_GIVEN = ("config", "seed", "device")
_ORIGIN = "_dasktune_origin"
_MODULES = "_dasktune_modules"
"""Attribute of a trainer: the contents of its own modules' attributes after `build`."""


class TorchTrainer(Trainer):
    """A trainer of which the user writes `build`, `setup`, `train` and `evaluate` only.

    **State.** The state covers all attributes of the object, also inside lists, tuples and
    dicts. Objects with `state_dict` and `load_state_dict` (modules, optimizers, schedulers,
    scalers, `ResumableLoader`) and random generators are saved and loaded in place, also those
    that another object holds (``self.agent.net``). Numbers,
    strings, None, and containers of them are saved. Arrays and tensors are saved if their
    contents have changed since `build`, so unchanged data are not. A module's train/eval modes,
    frozen parameters and non-persistent buffers belong to its state. Iterators are refused,
    because their position cannot be saved, also those that another object holds
    (``DataLoader(persistent_workers=True)``). All else in objects of other types cannot be
    saved: a resume is refused, with the name of the attribute, if it is not what it was when the
    state was saved. `harmless_differences` names the parts that decide nothing. Gradients are
    saved unless the code shows that each step clears them before it uses them, as one that
    begins with ``zero_grad()``.

    **Cost.** To see what has changed, `build` and each state read all arrays and tensors that
    are not parts of a module, also those of data sets: 0.45 s per GB and core, and up to the first
    change where there is one. Arrays of a file that was opened read-only
    (``np.load(path, mmap_mode="r")``) are not read.

    **Randomness.** The global generators of Python, NumPy, torch and the CUDA device are
    seeded from `seed` before `build`, are part of the state, and are loaded last.

    **Options of torch.** If `build` changes the default type of numbers, the precision of matrix
    products, the search for fast convolutions or the use of deterministic algorithms, the next
    `build` in this process begins without these changes.

    **Evaluation.** `evaluate` is called without gradients and with all modules in eval
    mode; modes and all generators are restored afterwards.

    **Device.** After `build`, modules are moved to `self.device` in place, so optimizers
    made in `build` keep the right parameters; the state of the optimizers is moved, too. Send
    batches through `to_device`.

    **Several devices.** With ``divides = True``, stages that need several GPUs (or several
    ``cores``, on workers without GPUs) are trained by as many processes together. Each of them
    builds the same trainer and makes the same calls. In `train`, call modules through `divided`,
    and take the part of this process from each batch with `share`.

    Attributes
    ----------
    divides
        Whether several devices may train it together: `train` uses `divided` and `share`.
    division
        The part of this process: ``division.rank`` of ``division.world_size`` processes.
    deterministic
        Use only algorithms that reproduce the same bits (torch raises an error if there are
        none); with False, resuming on a GPU is exact only within a tolerance.
    clears_gradients
        Whether each step clears all gradients before it uses them, though the code does not show
        it: then they are not saved.
    threads
        Threads that torch uses on the CPU. Sums depend on the number, so it belongs to the
        trainer and not to the machine.

    Notes
    -----
    Generators, determinism and thread counts belong to the process: one trainer trains
    in it at a time.

    Examples
    --------
    >>> class Line(TorchTrainer):
    ...     def build(self, hp):
    ...         self.model = torch.nn.Linear(1, 1)
    ...         self.optimizer = torch.optim.SGD(self.model.parameters(), lr=hp["lr"])
    ...     def setup(self, hp):
    ...         self.optimizer.param_groups[0]["lr"] = hp["lr"]
    ...     def train(self):
    ...         x = self.to_device(torch.rand(8, 1))
    ...         self.optimizer.zero_grad()
    ...         ((self.model(x) - 2 * x) ** 2).mean().backward()
    ...         self.optimizer.step()
    ...     def evaluate(self):
    ...         return {"slope": self.model.weight.item()}
    >>> from dasktune.trainer.lifecycle import run_alone
    >>> state = run_alone(Line, {"lr": 0.1}, 2, states_at=[2]).states[2]
    >>> sorted(state), sorted(state["objects"])
    (['generators', 'gradients', 'objects', 'values'], ['model', 'optimizer'])
    """

    requires_process: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    division: Undivided = Undivided()
    deterministic: ClassVar[bool] = True
    clears_gradients: ClassVar[bool] = False
    threads: ClassVar[int] = 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all attributes and of the global generators."""
        own = self._attributes()
        values = {
            name: attributes.detached(value)
            for name, value in attributes.values(own).items()
            if self._is_touched(name, value)
        }
        state: dict[str, Any] = {
            "objects": {
                path: attributes.state_of(item) for path, item in attributes.objects(own).items()
            },
            "values": values,
            "generators": global_states(self.device),
        }
        if numbers := self._module_values(own):
            state["modules"] = numbers
        if gradients := self._gradients(own):
            state["gradients"] = gradients
        if self.device != "cpu":
            # A state in the store does not say where its tensors were.
            state["on_host"] = [name for name in values if attributes.is_on_host(values[name])]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, in place; generators last.

        Raises
        ------
        StateError
            If the state has other objects than this trainer.
        """
        items = attributes.objects(self._attributes())
        for path in sorted(items.keys() ^ state["objects"].keys()):
            side = "the trainer has built none" if path not in items else "not in the state"
            raise StateError(f"state['objects'][{path!r}]", side)
        for path, item in items.items():
            try:
                attributes.load_into(item, state["objects"][path])
            except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
                reason = f"cannot be loaded: {type(error).__name__}: {error}"
                raise StateError(f"state['objects'][{path!r}]", reason) from error
        for path, saved in state.get("modules", {}).items():
            parts = dict(items[path].named_modules())
            for place, value in saved.items():
                name, _, attribute = place.rpartition(".")
                current = getattr(parts[name], attribute, None)
                setattr(parts[name], attribute, attributes.revived(value, current, self.device))
        for path, saved in state.get("gradients", {}).items():
            parameters = dict(items[path].named_parameters())
            for name, gradient in saved.items():
                parameters[name].grad = gradient.to(parameters[name].device)
        for name, saved in state["values"].items():
            device = "cpu" if name in state.get("on_host", ()) else self.device
            self._set_value(name, attributes.revived(saved, self._value(name), device))
        restore_global(state["generators"], self.device)

    def to_device(self, value: Any) -> Any:
        """Return a tensor, array or module, or a container of them, on `self.device`."""
        if isinstance(value, torch.nn.Module):
            return value.to(self.device)
        if isinstance(value, np.ndarray):
            return torch.as_tensor(value).to(self.device)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self.to_device(item) for item in value)
        if isinstance(value, dict):
            return {key: self.to_device(item) for key, item in value.items()}
        return attributes.mapped(value, lambda tensor: tensor.to(self.device, non_blocking=True))

    def divided(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module as `train` must call it if several devices train together.

        With one device, and outside of `train`, it is the module itself. With several it is
        torch's `DistributedDataParallel`: ``backward()`` leaves the gradients of the whole batch
        on each device. The loss must be a mean over the samples of the share. A batch norm
        sees the share alone. Noise of the modules, such as dropout, differs between devices.
        """
        return self.division.divided(module)

    def share(self, batch: Any) -> Any:
        """Return this device's part of a batch; the whole batch with one device.

        Arrays and tensors are cut along their first dimension, also those in lists, tuples and
        dicts. The parts may be unequal by one sample.

        Raises
        ------
        TrainerError
            If a batch has fewer samples than there are devices.
        """
        return self.division.share(batch)

    def common_digest(self) -> str:
        """Return a digest of all that the devices of a divided training have in common.

        That is the states of the generators, and the parameters of the modules.
        """
        items = attributes.objects(self._attributes())
        generators = {path: item for path, item in items.items() if is_generator(item)}
        modules = {path: item for path, item in items.items() if isinstance(item, torch.nn.Module)}
        common = {
            "global": global_states(self.device),
            "generators": {p: attributes.state_of(item) for p, item in generators.items()},
            "parameters": {p: dict(item.named_parameters()) for p, item in modules.items()},
        }
        return encode(attributes.detached(common)).digest

    @contextmanager
    def building(self) -> Iterator[None]:
        """Seed the generators before `build`, and move modules to the device after it."""
        seed, device = self.seed, self.device
        with prepared(seed, device, threads=self.threads, is_deterministic=self.deterministic):
            yield
        self._move_to_device()
        origin = {
            name: ContentStamp.of(value)
            for name, value in attributes.values(self._attributes()).items()
            if attributes.holds_arrays(value)
        }
        setattr(self, _ORIGIN, origin)
        values = _values_of_modules(self._attributes())
        stamps = {f"{path} {place}": ContentStamp.of(value) for path, place, value in values}
        setattr(self, _MODULES, stamps)

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in eval mode and without gradients that leaves no trace."""
        return self._evaluating()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Set eval mode without gradients, and restore modes and generators."""
        items = attributes.objects(self._attributes()).values()
        parts = [
            part for item in items if isinstance(item, torch.nn.Module) for part in item.modules()
        ]
        modes = [part.training for part in parts]
        held = [(item, attributes.state_of(item)) for item in items if is_generator(item)]
        states = global_states(self.device)
        for part in parts:
            part.training = False
        try:
            with torch.no_grad():
                yield
        finally:
            for part, mode in zip(parts, modes, strict=True):
                part.training = mode
            for item, state in held:
                restore_generator(item, state)
            restore_global(states, self.device)

    def _attributes(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in (*_GIVEN, _ORIGIN, _MODULES) and not isinstance(value, Undivided)
        }

    def _module_values(self, own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the attributes of the user's own modules that have changed since `build`."""
        origin: Mapping[str, ContentStamp] = getattr(self, _MODULES, {})
        changed: dict[str, dict[str, Any]] = {}
        for path, place, value in _values_of_modules(own):
            stamp = origin.get(f"{path} {place}")
            if stamp is None or not stamp.are_those_of(value):
                changed.setdefault(path, {})[place] = attributes.detached(value)
        return changed

    def _gradients(self, own: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
        """Return the gradients of each module that a step may use before it clears them."""
        modules = {
            path: item
            for path, item in attributes.objects(own).items()
            if isinstance(item, torch.nn.Module)
        }
        if self.clears_gradients or not any(map(_has_gradients, modules.values())):
            return {}
        cleared = cleared_parameters(self, "train")
        kept = {
            path: {
                name: parameter.grad
                for name, parameter in item.named_parameters()
                if parameter.grad is not None and id(parameter) not in cleared
            }
            for path, item in modules.items()
        }
        return {path: gradients for path, gradients in kept.items() if gradients}

    def _value(self, name: str) -> Any:
        """Return one of the attributes by its name, or None."""
        return getattr(self, name, None)

    def _set_value(self, name: str, value: Any) -> None:
        """Set one of the attributes that are values."""
        setattr(self, name, value)

    def _is_touched(self, name: str, value: Any) -> bool:
        """Return whether a value has changed since `build`; numbers alone count as changed."""
        if not attributes.holds_arrays(value):
            return True
        origin: Mapping[str, ContentStamp] = getattr(self, _ORIGIN, {})
        return name not in origin or not origin[name].are_those_of(value)

    def _move_to_device(self) -> None:
        items = attributes.objects(self._attributes()).values()
        for item in items:
            if isinstance(item, torch.nn.Module):
                before = list(item.parameters())
                item.to(self.device)
                if any(a is not b for a, b in zip(before, item.parameters(), strict=True)):
                    # An optimizer would continue to train the old parameters.
                    raise ConfigurationError(
                        f"modules cannot move to {self.device!r} in place; in build(), call "
                        "self.to_device(module) before the optimizer is made"
                    )
        for item in items:
            # Adagrad and others make their state early; loading moves it to the device.
            if isinstance(item, torch.optim.Optimizer) and item.state:
                item.load_state_dict(item.state_dict())


def _values_of_modules(own: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield path, place and value of numbers and arrays that modules of own classes hold."""
    for path, item in attributes.objects(own).items():
        if not isinstance(item, torch.nn.Module):
            continue
        for name, part in item.named_modules():
            if is_installed_name(type(part).__module__.partition(".")[0]):
                continue
            for attribute, value in vars(part).items():
                is_plain = not attribute.startswith("_") and attribute != "training"
                if is_plain and attributes.is_value(value):
                    yield path, f"{name}.{attribute}", value


def _has_gradients(module: torch.nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())


class _Options:
    """The options of torch in this process that a build has changed.

    They are not those of the next trainer: it would compute other numbers than alone.
    """

    def __init__(self) -> None:
        self._changed: dict[str, tuple[Any, Any]] = {}
        """Value before the last build and after it, by name."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Take back what the last build changed, and note what this one changes."""
        self.take_back()
        began = self._now()
        try:
            yield
        finally:
            ended = self._now()
            self._changed = {
                name: (began[name], value) for name, value in ended.items() if value != began[name]
            }

    def take_back(self) -> None:
        """Take back what the last build changed and nothing else has changed since."""
        for name, before in self.before_last_build().items():
            self._set(name, before)
        self._changed = {}

    def before_last_build(self) -> dict[str, Any]:
        """Return by name the options that the last build has left changed, as they were before."""
        now = self._now() if self._changed else {}
        return {
            name: before
            for name, (before, after) in self._changed.items()
            if now[name] == after and after is not None
        }

    def _now(self) -> dict[str, Any]:
        if not IS_INSTALLED:
            return {}
        return {
            "dtype": torch.get_default_dtype(),
            "benchmark": torch.backends.cudnn.benchmark,
            "precision": _precision(),
            "algorithms": (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
        }

    def _set(self, name: str, value: Any) -> None:
        match name:
            case "dtype":
                torch.set_default_dtype(value)
            case "benchmark":
                torch.backends.cudnn.benchmark = value
            case "precision":
                torch.set_float32_matmul_precision(value)
            case "algorithms":
                use_deterministic_algorithms(value[0], warns=value[1])


_OPTIONS = _Options()


@contextmanager
def prepared(seed: int, device: str, *, threads: int, is_deterministic: bool) -> Iterator[None]:
    """Seed the generators and set the options of this process for what a trainer builds."""
    with _OPTIONS.changing():
        if is_deterministic and IS_INSTALLED:
            _use_deterministic_algorithms()
        torch.set_num_threads(threads)
        seed_global(seed, device)
        yield


def _precision() -> str | None:
    """Return the precision of matrix products; None if it was set in torch's newer way."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _use_deterministic_algorithms() -> None:
    # cuBLAS reads this once, when it is first used; torch insists on it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
