"""Traces: recorded learning curves, which can take the place of training.

A trace comes from a study (`dasktune._study.study.Study.trace`) or from arrays
(`Trace.from_arrays`). `dasktune.traces.files` describes its files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.graph.kept_speeds import Model
from dasktune.graph.speeds import model_of
from dasktune.needs import GivenNeeds
from dasktune.sequences import Constant, Piecewise, Sequence, as_sequence, sequence_from_json
from dasktune.space import Branch, Choice, Space
from dasktune.traces.classes import ClassSeconds, class_problems
from dasktune.traces.files import floats, load, save
from dasktune.traces.timing import MeasuredPace, Overheads
from dasktune.types import Direction, Objective, Sequences, Step, Value

CONFIGURATION = "configuration"
"""The hyper-parameter of a trace's space that identifies a recorded configuration."""

Shared = tuple[int, Step]
"""An earlier configuration, and the number of first steps in common."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """Learning curves of several configurations, all of the same length.

    NaN ranks last wherever tuners compare. So a run that was cut off looks as if it had diverged
    from there on. Whoever makes a trace may fill the rest, such as with the last value of a run
    that ended at its target.

    Parameters
    ----------
    metrics
        Names of the metrics.
    values
        ``(configurations, steps, metrics)``: the values after each step; NaN where missing.
    seconds
        ``(configurations, steps)``: seconds of each step, evaluation included; NaN where
        missing, and None if all are.
    measured
        ``(configurations, steps)``: whether the metrics were measured at a step. In between, a
        metric keeps its last measured value. None if unknown.
    configurations
        The hyper-parameters of each configuration: JSON. A changing one is the document of a
        sequence, or a list of its values at all steps.
    directions
        Directions of the metrics that were optimised.
    shared
        For each configuration the earlier one with which it shares most of its first steps,
        and their number; ``(0, 0)`` for no shared steps. Empty if there are none at all.
    overheads
        Times beside the steps.
    classes
        The names of the compute classes that measured the seconds; empty if there was one class
        alone, or if they are unknown.
    kinds
        ``(configurations, steps)``: for each step the number of its class in `classes`, -1 if
        it is unknown. None without classes.

    Raises
    ------
    ConfigurationError
        If the shapes do not fit, a name comes twice, or a time is infinite or negative: all
        problems at once.

    Examples
    --------
    >>> import dasktune as dt
    >>> trace = Trace.from_arrays({"loss": [[0.9, 0.5], [0.8, 0.7]]})
    >>> tuner = dt.algos.Grid(trace.space(), max_steps=trace.steps)
    >>> found = dt.simulate(tuner, trace)
    >>> found.best_trial.params, found.best_trial.value
    ({'configuration': 0}, 0.5)

    References
    ----------
    Rasley et al., "HyperDrive", section 7.
    """

    metrics: tuple[str, ...]
    values: NDArray[np.floating[Any]]
    seconds: NDArray[np.floating[Any]] | None = None
    measured: NDArray[np.bool_] | None = None
    configurations: tuple[Mapping[str, object], ...]
    directions: Mapping[str, Direction] = field(default_factory=dict)
    shared: tuple[Shared, ...] = ()
    overheads: Overheads = field(default_factory=Overheads)
    classes: tuple[str, ...] = ()
    kinds: NDArray[np.integer[Any]] | None = None

    def __post_init__(self) -> None:
        refuse(f"trace: {problem}" for problem in _problems(self))

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
            Seconds of a step: ``(configurations,)``, or ``(configurations, steps)``.
        configurations
            The hyper-parameters of each configuration; None if unknown.

        Raises
        ------
        ConfigurationError
            If the arrays do not fit each other.
        """
        arrays = {name: floats(name, array) for name, array in metrics.items()}
        shapes = {array.shape for array in arrays.values()}
        if len(shapes) != 1 or any(len(shape) != 2 for shape in shapes):
            given = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ConfigurationError(
                f"trace: metrics must be arrays (configurations, steps) of one shape, "
                f"got {given or 'none'}"
            )
        values = np.stack(list(arrays.values()), axis=-1)
        return cls(
            metrics=tuple(arrays),
            values=values,
            seconds=None if seconds is None else _of_steps(floats("seconds", seconds), values),
            configurations=({},) * len(values) if configurations is None else tuple(configurations),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Return the trace of a file or a zarr store.

        Raises
        ------
        ConfigurationError
            If there is no such file, or it does not hold a trace.
        StorageError
            If it cannot be read.
        """
        path = Path(path)
        fields = load(path)
        try:
            return cls(**_parsed(fields))
        except ConfigurationError as error:
            raise ConfigurationError(
                *(f"{path}: {problem}" for problem in error.problems)
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{path}: attributes must be those of a trace: {error!r}"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace to a new file or folder; return its path.

        Parameters
        ----------
        path
            Ends in ``.zarr`` (a folder), ``.zarr.zip``, or ``.npz``, which holds only the curves
            and times.

        Raises
        ------
        ConfigurationError
            If the path has another ending, or exists.
        StorageError
            If it cannot be written.
        """
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        fields["directions"] = {name: each.value for name, each in self.directions.items()}
        fields["shared"] = np.array(self.shared, dtype=np.int64) if self.shared else None
        fields["overheads"] = self.overheads.to_json()
        return save(fields, Path(path))

    @property
    def steps(self) -> Step:
        """Number of recorded steps."""
        return int(self.values.shape[1])

    @property
    def complete(self) -> int:
        """Number of configurations that have a value after the last step."""
        return int(np.isfinite(self.values[:, -1]).any(axis=-1).sum())

    def space(
        self, *, order: int | None = None, needs: Iterable[GivenNeeds | None] | None = None
    ) -> Space:
        """Return the space whose points are the configurations.

        `CONFIGURATION` is the number of a configuration, and its hyper-parameters come with it:
        so tuners see the same learning rates as live. Where configurations share their first
        steps, the number is a sequence: at each step the first configuration that shares it.

        Parameters
        ----------
        order
            Seed of a random order of the configurations, for tuners that try them in order
            (``sampler="grid"``); None keeps the recorded order.
        needs
            The needs of each configuration, such as ``{"GPU": 1}``, beside those that
            `dasktune.simulate` gets; None if they have none.
        """
        own = repeat(None) if needs is None else needs
        branches = [
            Branch(number, Space(recorded) if recorded else None, needs=need)
            if recorded or need is not None
            else number
            for number, recorded, need in zip(self._sequences, self.sequences, own, strict=False)
        ]
        if order is not None:
            places = np.random.default_rng(order).permutation(len(branches))
            branches = [branches[place] for place in places]
        return Space({CONFIGURATION: Choice(branches)})

    def check(self, sequences: Sequences) -> None:
        """Refuse hyper-parameters that change differently from all recorded configurations."""
        refuse(
            f"{name} must not change on recorded curves but as it was recorded, got {function!r}"
            for name, function in sequences.items()
            if function.constant_until(0) is not None and function not in self._changing
        )

    def objective(
        self, metric: str | None = None, direction: str | Direction | None = None
    ) -> Objective:
        """Return the objective of tuners on the trace; by default the recorded objective.

        Parameters
        ----------
        metric
            Another metric. If None, the optimised one, or the only one.
        direction
            Another direction. If None, the recorded one, or ``minimize``.

        Raises
        ------
        ConfigurationError
            If the metric is ambiguous.
        """
        known = [metric] if metric is not None else list(self.directions) or self.metrics
        if len(known) > 1:
            raise ConfigurationError(f"metric must be one of {', '.join(sorted(known))}")
        (name,) = known
        return Objective.single(name, direction or self.directions.get(name, Direction.MINIMIZE))

    def curve(self, metric: str) -> Callable[[Mapping[str, Value], Step], float]:
        """Return the recorded metric as a function of configuration and step.

        Raises
        ------
        ConfigurationError
            If there is no such metric.
        """
        if metric not in self.metrics:
            raise ConfigurationError(unknown("metric", metric, self.metrics))
        values = self.values[:, :, self.metrics.index(metric)]
        if self.measured is not None:
            values = _held(values, self.measured)
        table: list[list[float]] = values.tolist()

        def recorded(values: Mapping[str, Value], step: Step) -> float:
            return table[self._number(values)][step - 1]

        return recorded

    def pace(self, sequences: Sequences, stop: Step, kind: str = "") -> MeasuredPace:
        """Return the pace of a trial up to `stop`; 1 second a step if none was measured.

        A step without a measured time takes the mean time of its configuration.

        Parameters
        ----------
        kind
            The class of the worker. On a class of the trace, a step that another class measured
            takes the time that `dasktune.traces.classes` estimates. On all other workers each
            step takes the time that was measured, whatever its class.
        """
        values = {name: function(max(0, stop - 1)) for name, function in sequences.items()}
        return self._paces[kind if kind in self.classes else ""][self._number(values)]

    def hyper_parameters(self, sequences: Sequences, step: Step) -> dict[str, Value]:
        """Return the recorded hyper-parameters of a trial at a step."""
        number = self._number({name: function(step) for name, function in sequences.items()})
        return {name: function(step) for name, function in self.sequences[number].items()}

    @cached_property
    def sequences(self) -> list[dict[str, Sequence]]:
        """The recorded hyper-parameters of each configuration, as sequences by name."""
        return [_sequences_of(configuration, self.steps) for configuration in self.configurations]

    @cached_property
    def _changing(self) -> set[Sequence]:
        """All sequences that a hyper-parameter may have on the trace."""
        recorded = (function for functions in self.sequences for function in functions.values())
        return {*self._sequences, *recorded}

    @cached_property
    def _paces(self) -> dict[str, list[MeasuredPace]]:
        """The paces of all configurations by class; without a name as they were measured."""
        shape = self.values.shape[:2]
        seconds = np.full(shape, np.nan) if self.seconds is None else self.seconds
        paces = {"": _paces_of(seconds)}
        if self.kinds is not None:
            on_classes = ClassSeconds(seconds, self.kinds, self.classes, self._models)
            paces |= {name: _paces_of(on_classes.on(name)) for name in self.classes}
        return paces

    @property
    def _models(self) -> list[Model]:
        """The hyper-parameters of each configuration at its first step, without the floats."""
        recorded = ({name: each(0) for name, each in row.items()} for row in self.sequences)
        return [model_of(values) for values in recorded]

    @cached_property
    def _sequences(self) -> tuple[Sequence, ...]:
        """The configurations as sequences of configuration numbers, one for each step."""
        parts: list[list[tuple[Step, int]]] = []
        for number in range(len(self.configurations)):
            other, steps = self.shared[number] if self.shared else (0, 0)
            before = [part for part in parts[other] if part[0] < steps] if steps else []
            parts.append([*before, (steps, number)])
        return tuple(map(_sequence, parts))

    def _number(self, values: Mapping[str, Value]) -> int:
        number = values.get(CONFIGURATION)
        if type(number) is not int or not 0 <= number < len(self.configurations):
            raise ConfigurationError(
                f"a trial on a trace must have {CONFIGURATION!r}, an int from 0 to "
                f"{len(self.configurations) - 1} (Trace.space), got {dict(values)!r}"
            )
        return number


def _paces_of(seconds: NDArray[np.floating[Any]]) -> list[MeasuredPace]:
    """Return the pace of each configuration, with every gap filled."""
    is_known = np.isfinite(seconds)
    known = np.where(is_known, seconds, 0.0).astype(float)
    totals, counts = known.sum(axis=1), is_known.sum(axis=1)
    overall = totals.sum() / counts.sum() if counts.any() else 1.0
    means = np.where(counts > 0, totals / np.maximum(1, counts), overall)
    rows: list[list[float]] = np.where(is_known, known, means[:, None]).tolist()
    return [MeasuredPace(tuple(accumulate(row, initial=0.0)), min(row)) for row in rows]


def _parsed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a trace that was loaded."""
    return {
        **fields,
        "directions": {
            str(name): Direction.parse(each) for name, each in fields["directions"].items()
        },
        "shared": tuple((int(other), int(steps)) for other, steps in fields["shared"]),
        "overheads": Overheads(**fields["overheads"]),
    }


def _of_steps(
    seconds: NDArray[np.floating[Any]], values: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Return the seconds of all steps; a single number counts for all steps."""
    if seconds.shape == values.shape[:1]:
        return np.broadcast_to(seconds[:, None], values.shape[:2])
    return seconds


def _sequences_of(configuration: Mapping[str, object], steps: Step) -> dict[str, Sequence]:
    """Return the recorded hyper-parameters that are sequences or plain values, as sequences."""
    sequences: dict[str, Sequence] = {}
    for name, value in configuration.items():
        if name == CONFIGURATION:
            continue
        try:
            if isinstance(value, Mapping):
                sequences[name] = sequence_from_json(value)
            elif isinstance(value, list) and len(value) == steps:
                changes = [at for at in range(steps) if at == 0 or value[at] != value[at - 1]]
                sequences[name] = _sequence([(at, value[at]) for at in changes])
            else:
                sequences[name] = as_sequence(value)
        except (ConfigurationError, LookupError, TypeError, ValueError):
            continue
    return sequences


def _sequence(parts: Iterable[tuple[Step, Any]]) -> Sequence:
    """Return the sequence that has each value from its step on."""
    starts, values = zip(*parts, strict=True)
    return Constant(values[0]) if len(values) == 1 else Piecewise(values, starts[1:])


def _held(
    values: NDArray[np.floating[Any]], measured: NDArray[np.bool_]
) -> NDArray[np.floating[Any]]:
    """Return the values with gaps between two measured values filled with the earlier one."""
    steps = np.arange(values.shape[1])
    last = np.maximum.accumulate(np.where(measured, steps, -1), axis=1)
    ends = np.where(measured, steps, -1).max(axis=1, keepdims=True)
    is_between = (last >= 0) & (steps < ends)
    held = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where(is_between, held, values)


def _problems(trace: Trace) -> list[str]:
    count, values, steps = len(trace.configurations), trace.values, 0
    problems = []
    if values.ndim > 1:
        steps = values.shape[1]
    shape = (count, steps, len(trace.metrics))
    if values.shape != shape or 0 in shape:
        problems.append(
            f"values must be (configurations, steps, metrics), none of them 0, with {count} "
            f"configurations and {len(trace.metrics)} metrics, got {values.shape}"
        )
    if len(set(trace.metrics)) < len(trace.metrics):
        problems.append(f"a metric may come only once, got {', '.join(trace.metrics)}")
    for name, array in (("seconds", trace.seconds), ("measured", trace.measured)):
        if array is not None and array.shape != shape[:2]:
            problems.append(f"{name} must be one for each of {shape[:2]}, got {array.shape}")
    if trace.seconds is not None and ((trace.seconds < 0) | np.isinf(trace.seconds)).any():
        problems.append("seconds must be finite and >= 0, or NaN where nobody measured them")
    problems += [
        unknown("metric with a direction", name, trace.metrics)
        for name in trace.directions
        if name not in trace.metrics
    ]
    problems += class_problems(trace.classes, trace.kinds, shape[:2])
    return [*problems, *_sharing_problems(trace.shared, count, steps)]


def _sharing_problems(shared: tuple[Shared, ...], count: int, steps: Step) -> list[str]:
    if shared and len(shared) != count:
        return [f"shared must be one for each of {count}, got {len(shared)}"]
    return [
        f"configuration {number} must share 0 to {steps} steps with an earlier one, "
        f"got {most} with {other}"
        for number, (other, most) in enumerate(shared)
        if not 0 <= most <= steps or (most and not 0 <= other < number)
    ]
