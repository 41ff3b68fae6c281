"""A trial's state as a plain file, readable without dasktune.

The ending of the path decides: ``.pt`` and ``.pth`` are torch's, for
``torch.load(path, weights_only=True)``; ``.npz`` is NumPy's, for ``numpy.load(path)``.
``docs/reuse.md`` describes their content.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

from dasktune._driver.numerics import may_store
from dasktune._engine.trials import trial_of
from dasktune._results.rules import other_rule
from dasktune._study.parts import StudyParts
from dasktune._study.trial_state import BEST, Training, TrialStates, best_step, chosen_step
from dasktune.errors import ConfigurationError, StorageError, unknown
from dasktune.storage.files.local import new_above, sync_folders
from dasktune.trainer.base import Trainer
from dasktune.types import Step

ABOUT = "dasktune"
"""Name of the description of the state in a file."""

_TORCH_TRAINER = frozenset({"objects", "values", "generators"})
_NEWER_PARTS = frozenset({"others"})
_MODULE = frozenset({"tensors", "buffers", "evaluating", "frozen"})
_INT_BITS = 2000
_WIDER = {"bfloat16": "float32", "complex32": "complex64"}


class TrialExports:
    """Reads the states of a study's trials, and writes them to plain files."""

    def __init__(self, parts: StudyParts) -> None:
        self._memory, self._results = parts.memory, parts.results
        self._config, self._code = parts.config, parts.code

    def trial_state(self, number: int, step: Step | str | None = None) -> Any:
        """Return the state of a trial: the trainer's ``state_dict``, copied.

        A state that is not stored (any more) is trained again in this process, on the CPU,
        from the nearest stored state. It is stored then, if the study merges and its trial was
        trained on processors like this one.

        Parameters
        ----------
        number
            Number of the trial.
        step
            After how many of its steps; all of them if None. ``"best"`` is the step with the best
            metric, the first of several.

        Raises
        ------
        ConfigurationError
            If there is no such trial, it was not trained as far, or its state is not stored
            and the study's fingerprint is of another rule.
        TrainerError
            If it had to be trained again, and failed.
        """
        return self._states(number).at(*self.chosen_state(number, step))

    def best_model(self, *, step: Step | str | None = None) -> Any:
        """Return the trainer of the best trial with its last state, in this process on the CPU.

        It is an object of the study's trainer class, as if it had just trained: its attributes are
        the model and all else. The state of a training function is that of ``trial_state``.

        Parameters
        ----------
        step
            As for `export`.

        Raises
        ------
        ConfigurationError
            If no trial has a finite value, or as `trial_state`.
        TrainerError
            If its state had to be trained again, or could not be loaded.
        """
        number, step = self.chosen_state(None, step)
        return self._states(number).trainer(number, step)

    def chosen_state(self, number: int | None, step: Step | str | None) -> tuple[int, Step]:
        """Return the trial and the step that the arguments of `export` name.

        Raises
        ------
        ConfigurationError
            If there is no such trial or step.
        """
        if step == BEST:
            return best_step(self._results, number)
        number = self._results.best_trial.number if number is None else number
        return number, chosen_step(self._results.records, number, step)

    def export(
        self,
        number: int | None = None,
        path: str | os.PathLike[str] = "model.pt",
        *,
        step: Step | str | None = None,
        only: str | None = None,
    ) -> Path:
        """Write the state of a trial (`trial_state`) to a plain file; return its path.

        Parameters
        ----------
        number
            Number of the trial; the best one if None.
        path
            The file. ``.pt`` and ``.pth`` are for ``torch.load``, ``.npz`` for
            ``numpy.load``. With an ending of the trainer's `model_endings`, such as ``.json`` for
            XGBoost, it is the framework's own file of the model.
        step
            After how many of its steps; all of them if None. ``"best"`` is the step with the best
            metric, the first of several; without a number, among all steps of all trials.
        only
            Write just this part of the state: an attribute of a `dasktune.TorchTrainer`, or
            an entry of another trainer's state.

        Raises
        ------
        ConfigurationError
            If there is no such trial, step or part, or the path has another ending.
        StorageError
            If the file cannot be written.
        """
        target = Path(path)
        trainer = self._config.trainer
        own = trainer.model_endings if trainer is not None and issubclass(trainer, Trainer) else ()
        check_target(target, own)
        if target.suffix in own and only is not None:
            raise ConfigurationError(
                f"only must be None for {target.suffix}, the file of the whole model; got {only!r}"
            )
        number, step = self.chosen_state(number, step)
        if target.suffix in own:
            model = self._states(number).trainer(number, step).model_file(target.suffix)
            with _whole(target) as file:
                file.write(model)
            return target
        state = self.trial_state(number, step)
        return write_state(target, state, self._about(number, step), only)

    def _states(self, number: int) -> TrialStates:
        """Return the states of a trial, which are stored if they have to be trained again."""
        results, config = self._results, self._config
        training = Training(
            trainer=config.known_trainer,
            config=dict(config.config or {}),
            seed=config.seed,
            problem=other_rule(results.row) or self._code.problem() or "",
        )
        from dasktune._worker.hardware import processor_numerics  # it loads Dask

        record = results.records.get(number)
        may_keep = record is None or may_store(
            results.row, results.store, record, processor_numerics()
        )
        recorder = self._memory.recorder() if config.merges and may_keep else None
        return TrialStates(results.store, results.plan, training, recorder)

    def _about(self, number: int, step: Step) -> dict[str, Any]:
        """Return the description of a state in its file; plain values."""
        results = self._results
        record = results.records[number]
        trial = trial_of(results.plan, record)
        return {
            "study": results.name,
            "trial": number,
            "step": step,
            "params": dict(record.params),
            "values": {name: sequence(step - 1) for name, sequence in record.sequences.items()},
            "metrics": dict(trial.metrics.get(step, {})),
            "seed": results.seed + record.seed,
            "key": results.plan.node_at(number, step).key_at(step),
            "fingerprint": results.row.spec["fingerprint"],
        }


def check_target(path: Path, own: tuple[str, ...] = ()) -> None:
    """Refuse a path that no state can be written to; `own` are endings of the trainer's own files.

    Raises
    ------
    ConfigurationError
        If its ending is not one of `FORMATS` or `own`, torch is missing for it, or it is a folder.
    """
    known = (*FORMATS, *own)
    if path.suffix not in known:
        raise ConfigurationError(f"{path}: {unknown('ending', path.suffix, known)}")
    if path.is_dir():
        raise ConfigurationError(f"path must be a file, got the folder {str(path)!r}")
    if FORMATS.get(path.suffix) is _write_torch and find_spec("torch") is None:
        hint = f"; {', '.join(own)} for the model alone" if own else ""
        raise ConfigurationError(
            f"{path.suffix} needs torch: pip install 'dasktune[torch]'; .npz needs only NumPy{hint}"
        )


def write_state(
    path: Path, state: Mapping[str, Any], about: Mapping[str, Any], only: str | None = None
) -> Path:
    """Write a state to a file, whole or not at all; return the path.

    `about` describes the state in plain values, and is written under `ABOUT`; `only` names a part,
    which is written without it. A file that exists is replaced; folders are created.

    Raises
    ------
    ConfigurationError
        If the path is invalid (`check_target`), or there is no such part.
    StorageError
        If the file cannot be written.
    """
    check_target(path)
    if only is not None:
        content: Any = _part(state, only)
    elif ABOUT in state:
        raise ConfigurationError(
            f"the state has a part named {ABOUT!r} of its own; export single parts with only="
        )
    else:
        content = {**state, ABOUT: dict(about)}
    with _whole(path) as file:
        FORMATS[path.suffix](file, content, only or "state")
    return path


def parts_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a state that `write_state` can write alone, by name.

    For a `dasktune.TorchTrainer` these are its attributes, modules as their own
    ``state_dict``, and what else a subclass adds to its state; for any other trainer, the
    entries of its state.

    Examples
    --------
    >>> parts_of({"net": {"weight": 1.0}, "epoch": 3})
    {'net': {'weight': 1.0}, 'epoch': 3}
    """
    if not state.keys() >= _TORCH_TRAINER:
        return dict(state)
    own_parts = _TORCH_TRAINER | _NEWER_PARTS
    added = {name: part for name, part in state.items() if name not in own_parts}
    own = {
        name: saved["tensors"] if isinstance(saved, dict) and saved.keys() == _MODULE else saved
        for name, saved in state["objects"].items()
    }
    return {**added, **state["values"], **own}


def _part(state: Mapping[str, Any], name: str) -> Any:
    parts = parts_of(state)
    if name not in parts:
        raise ConfigurationError(unknown("part of the state", name, map(str, parts)))
    return parts[name]


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Give a temporary file, which gets the name of `path` once it is complete."""
    aside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        above = new_above(path.absolute().parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
            sync_folders([path.absolute().parent, *above])
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


# ------------------------------------------------------------------------------- torch


def _write_torch(file: BinaryIO, content: Any, name: str) -> None:
    import torch

    torch.save(_for_torch(content, {}), file)


def _for_torch(value: Any, done: dict[int, Any]) -> Any:
    """Return a value as one that ``torch.load`` takes with ``weights_only=True``.

    `done` has tensors by the identity of what they were made from: tied weights stay tied.
    """
    if isinstance(value, dict):
        pairs = ((_key(key), _for_torch(item, done)) for key, item in value.items())
        if not isinstance(value, OrderedDict):
            return dict(pairs)
        made = OrderedDict(pairs)
        vars(made).update(vars(value))  # the versions of a module's parts
        return made
    if type(value) in (list, tuple, set):
        return type(value)(_for_torch(item, done) for item in value)
    if isinstance(value, int) and value.bit_length() > _INT_BITS:
        return hex(value)  # torch reads none that is longer
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, bytes | np.ndarray) or hasattr(value, "untyped_storage"):
        if id(value) not in done:
            done[id(value)] = _tensor(value)
        return done[id(value)]
    return value


def _key(key: Any) -> Any:
    return hex(key) if isinstance(key, int) and key.bit_length() > _INT_BITS else key


def _tensor(value: Any) -> Any:
    """Return bytes, an array or a tensor as a tensor; an array that can be none as lists."""
    import torch

    if isinstance(value, bytes):
        return torch.tensor(list(value), dtype=torch.uint8)
    if isinstance(value, torch.Tensor):
        is_whole = value.untyped_storage().nbytes() == value.nbytes
        # All of the memory that a tensor lies in would go into the file.
        return value.detach() if is_whole else value.detach().clone()
    if value.dtype.kind not in "biufc" or value.dtype.char in "gG":
        return np.array([str(item) for item in value.ravel()], str).reshape(value.shape).tolist()
    return torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))


def _scalar(value: np.generic) -> Any:
    if value.dtype.kind in "biufc" and value.dtype.char not in "gG":
        return value.item()
    return str(value)


# ------------------------------------------------------------------------------- NumPy


def _write_numpy(file: BinaryIO, content: Any, name: str) -> None:
    """Write arrays as `numpy.savez` does, which takes not every name."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for path, array in _arrays(content, name).items():
            with archive.open(f"{path}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _arrays(content: Any, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a value by the names that lead to them, with dots between."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    about = content.get(ABOUT) if isinstance(content, dict) else None
    if about is not None:
        content = {**content, ABOUT: json.dumps(about)}
    is_nested = isinstance(content, dict | list | tuple)
    for path, array in _leaves("" if is_nested else name, content):
        if path in arrays:
            raise ConfigurationError(
                f"the state has two values named {path!r}; export it to .pt, which keeps them apart"
            )
        arrays[path] = array
    return arrays


def _leaves(path: str, value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif value is not None:
        yield path, _array(value)


def _array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array: text where there is no other way."""
    if hasattr(value, "untyped_storage"):
        return _array_of_tensor(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, bool | float | complex | np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return np.asarray(value)
    if isinstance(value, set):
        return np.asarray(json.dumps(sorted(map(str, value))))
    return np.asarray(str(value))


def _array_of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array; types that NumPy lacks get the next one that holds them."""
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    wider = "float32" if dtype.startswith("float8") else _WIDER.get(dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    array: np.ndarray[Any, Any] = (
        tensor if wider is None else tensor.to(getattr(torch, wider))
    ).numpy()
    return array


FORMATS: Mapping[str, Callable[[BinaryIO, Any, str], None]] = {
    ".pt": _write_torch,
    ".pth": _write_torch,
    ".npz": _write_numpy,
}
"""What writes a state, by the ending of the path."""
