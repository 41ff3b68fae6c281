"""Recorded learning curves: what was measured once takes the place of training.

A trace's file is an ``.npz`` of three arrays, none of them pickled:

``curves``
    Floats, ``(configurations, steps, columns)``: ``curves[c, s - 1]`` is what was measured
    after step s of configuration c. NaN is what was not: the run had been cut off, or its
    metric was not finite.
``columns``
    The name of each column. One whose name ends in ``_s`` holds the seconds that the step
    took; all others are metrics.
``configs_jsonl``
    Bytes (``uint8``): one JSON object a line, UTF-8, the hyper-parameters of each
    configuration.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasktune.errors import ConfigurationError, StorageError, refuse, unknown
from dasktune.space import Choice, Space
from dasktune.types import Step, Value

CONFIGURATION = "configuration"
"""The one hyper-parameter of a trace's space."""

ARRAYS = ("curves", "columns", "configs_jsonl")
"""What a trace's file must hold."""

SECONDS = "_s"
"""How the name of the column of seconds ends."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Learning curves of a number of configurations, all of the same length.

    What is NaN ranks last wherever tuners compare. So a run that had been cut off looks as
    if it had diverged from there on, unless who made the trace knows better: one that ended
    because it had reached its target may be given its last value to the end.

    Parameters
    ----------
    metrics
        Their names.
    values
        ``(configurations, steps, metrics)``: what was measured after each step.
    seconds
        Seconds that a step of each configuration takes; None if nobody measured it.
    configurations
        The hyper-parameters of each.

    Raises
    ------
    ConfigurationError
        If the shapes do not fit, a name comes twice, or a time is not finite: all at once.

    Examples
    --------
    >>> import dasktune as dt
    >>> trace = Trace.from_arrays({"loss": [[0.9, 0.5], [0.8, 0.7]]})
    >>> tuner = dt.algos.Grid(trace.space(), max_steps=trace.steps)
    >>> found = dt.simulate(tuner, trace, metric="loss")
    >>> found.best_trial.params, found.best_trial.value
    ({'configuration': 0}, 0.5)
    """

    metrics: tuple[str, ...]
    values: NDArray[np.floating[Any]]
    seconds: NDArray[np.floating[Any]] | None = None
    configurations: tuple[Mapping[str, object], ...]

    def __post_init__(self) -> None:
        found = []
        count = len(self.configurations)
        shape = (count, self.values.shape[1] if self.values.ndim > 1 else 0, len(self.metrics))
        if self.values.shape != shape or 0 in shape:
            found.append(
                f"values must be (configurations, steps, metrics), none of them 0, with {count} "
                f"configurations and {len(self.metrics)} metrics, got {self.values.shape}"
            )
        if len(set(self.metrics)) < len(self.metrics):
            found.append(f"a metric may come only once, got {', '.join(self.metrics)}")
        if self.seconds is not None:
            if self.seconds.shape != (count,):
                found.append(f"seconds must be one for each of {count}, got {self.seconds.shape}")
            if not (np.isfinite(self.seconds) & (self.seconds >= 0)).all():
                found.append("seconds must be finite and >= 0")
        refuse(f"trace: {problem}" for problem in found)

    @classmethod
    def from_arrays(
        cls,
        metrics: Mapping[str, ArrayLike],
        *,
        seconds: ArrayLike | None = None,
        configurations: Iterable[Mapping[str, object]] | None = None,
    ) -> Trace:
        """Return a trace of arrays.

        Parameters
        ----------
        metrics
            For each metric an array ``(configurations, steps)``.
        seconds
            Of a step: ``(configurations,)``, or ``(configurations, steps)``, of which each
            configuration's mean is taken.
        configurations
            The hyper-parameters of each; nothing is known of them if None.

        Raises
        ------
        ConfigurationError
            If the arrays do not fit each other.
        """
        times = [name for name in metrics if name.endswith("_s")]
        refuse(f"trace: a metric's name must not end in _s, got {name!r}" for name in times)
        arrays = {name: _floats(name, array) for name, array in metrics.items()}
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) != 1 or any(len(shape) != 2 for shape in shapes):
            came = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ConfigurationError(
                f"trace: metrics must be arrays (configurations, steps) of one shape, "
                f"got {came or 'none'}"
            )
        values = np.stack(list(arrays.values()), axis=-1)
        return cls(
            metrics=tuple(arrays),
            values=values,
            seconds=None if seconds is None else _means(_floats("seconds", seconds)),
            configurations=({},) * len(values) if configurations is None else tuple(configurations),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Return the trace of a file; the module's page says what it must hold.

        Raises
        ------
        ConfigurationError
            If there is no such file, or it does not hold a trace.
        StorageError
            If it cannot be read.
        """
        arrays = _read(Path(path))
        curves, names = arrays["curves"], [str(name) for name in arrays["columns"].ravel()]
        timed = [name for name in names if name.endswith(SECONDS)]
        found = []
        if curves.ndim != 3 or curves.shape[-1] != len(names):
            found.append(
                f"curves must be (configurations, steps, {len(names)} columns), got {curves.shape}"
            )
        if len(timed) > 1:
            found.append(f"one column may end in {SECONDS!r}, got {', '.join(timed)}")
        refuse(f"{path}: {problem}" for problem in found)
        kept = [index for index, name in enumerate(names) if name not in timed]
        try:
            return cls(
                metrics=tuple(names[index] for index in kept),
                values=_floats("curves", curves[:, :, kept]),
                seconds=_means(curves[:, :, names.index(timed[0])]) if timed else None,
                configurations=_documents(arrays["configs_jsonl"]),
            )
        except ConfigurationError as error:
            raise ConfigurationError(*(f"{path}: {one}" for one in error.problems)) from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a file; return where it is."""
        curves, columns = self.values, list(self.metrics)
        if self.seconds is not None:
            seconds = np.broadcast_to(self.seconds[:, None, None], (*curves.shape[:2], 1))
            curves, columns = (
                np.concatenate([curves, seconds], axis=-1),
                [*columns, f"step{SECONDS}"],
            )
        lines = "\n".join(json.dumps(dict(one)) for one in self.configurations)
        target = Path(path)
        with target.open("wb") as file:
            np.savez_compressed(
                file,
                curves=curves,
                columns=np.array(columns),
                configs_jsonl=np.frombuffer(lines.encode(), np.uint8),
            )
        return target

    @property
    def steps(self) -> Step:
        """How many steps were recorded."""
        return int(self.values.shape[1])

    def space(self) -> Space:
        """Return the space whose points are the configurations' numbers, by which they are known.

        Its one hyper-parameter is `CONFIGURATION`.
        """
        return Space({CONFIGURATION: Choice(range(len(self.configurations)))})

    def curve(self, metric: str) -> Callable[[Mapping[str, Value], Step], float]:
        """Return the recorded metric as a function of configuration and step.

        Raises
        ------
        ConfigurationError
            If there is no such metric.
        """
        if metric not in self.metrics:
            raise ConfigurationError(unknown("metric", metric, self.metrics))
        table: list[list[float]] = self.values[:, :, self.metrics.index(metric)].tolist()

        def recorded(values: Mapping[str, Value], step: Step) -> float:
            return table[self._number(values)][step - 1]

        return recorded

    def seconds_per_step(self, values: Mapping[str, Value]) -> float:
        """Return what a step of a configuration takes; 1 if nobody measured it."""
        return 1.0 if self.seconds is None else float(self.seconds[self._number(values)])

    def _number(self, values: Mapping[str, Value]) -> int:
        number = values.get(CONFIGURATION)
        if type(number) is not int or not 0 <= number < len(self.configurations):
            raise ConfigurationError(
                f"a trial on a trace must have {CONFIGURATION!r}, an int from 0 to "
                f"{len(self.configurations) - 1} (Trace.space), got {dict(values)!r}"
            )
        return number


def _floats(name: str, array: ArrayLike) -> NDArray[np.floating[Any]]:
    try:
        found = np.asarray(array)
        return found if found.dtype.kind == "f" else found.astype(float)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"trace: {name} must be an array of numbers: {error}") from error


def _means(seconds: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return each configuration's mean time; that of all where nothing was measured."""
    if seconds.ndim != 2:
        return seconds
    is_known = np.isfinite(seconds)
    totals, counts = np.where(is_known, seconds, 0.0).sum(axis=1), is_known.sum(axis=1)
    overall = totals.sum() / max(1, counts.sum())
    means: NDArray[np.floating[Any]] = np.where(counts > 0, totals / np.maximum(1, counts), overall)
    return means


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ConfigurationError(f"a trace must be an .npz file, got {str(path)!r}")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            held = loaded.files if isinstance(loaded, np.lib.npyio.NpzFile) else []
            missing = [name for name in ARRAYS if name not in held]
            if missing:
                raise ConfigurationError(
                    f"{path}: a trace must hold {', '.join(ARRAYS)}, "
                    f"got {', '.join(held) or 'none'}"
                )
            return {name: loaded[name] for name in ARRAYS}
    except ConfigurationError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(f"{path} cannot be read as a trace: {error}") from error


def _documents(packed: NDArray[Any]) -> tuple[Mapping[str, object], ...]:
    try:
        found = tuple(map(json.loads, packed.astype(np.uint8).tobytes().decode().splitlines()))
    except ValueError as error:
        raise ConfigurationError(f"configs_jsonl must be lines of JSON: {error}") from error
    if not all(isinstance(one, dict) for one in found):
        raise ConfigurationError("configs_jsonl must be JSON objects, one a line")
    return found
