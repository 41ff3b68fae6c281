"""Recorded learning curves, for predictors and for tuners.

Files are known by how their names begin, so that ``algoperf_dev.npz`` and another file of the
same kind load alike; each makes as many sets as it has tasks. In all of them larger scores are
better: losses and error rates are negated.

===================  ============================================================
begins with          what is taken
===================  ============================================================
``algoperf``         the validation metric of each run; it ended when its target was reached
``taskset``          validation losses, the untrained network's first
``lcbench``          validation accuracy; a fitted model's, smoother than real curves
``rl``               returns, min-max normalised over all runs on the game
``own``              validation accuracy; learning rates and siblings where they are sequences
===================  ============================================================
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.curves import Branch
from dasktune.errors import ConfigurationError
from dasktune.simulate import Trace
from dasktune.traces.trace import Shared
from dasktune.types import Step

Array = NDArray[Any]

FEWEST = 5
"""A run that was measured less often had crashed at its start: it is left out."""

RANGES: Mapping[str, tuple[float, float]] = {
    "accuracy": (0.0, 1.0),
    "bleu": (0.0, 100.0),
    "mean_average_precision": (0.0, 1.0),
    "ssim": (-1.0, 1.0),
}
"""What values metrics that get better upwards can have."""

WORST = 2.0
"""A loss worse than so many times the usual first one counts as that: it has diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCurve:
    """One run, from its start to its end.

    `steps`, `scores`, `rates` and `siblings` are as in `Curve`, siblings known to their ends; NaN
    is a score that was not finite. `seconds` had been spent on training at each of the steps.
    """

    steps: tuple[Step, ...]
    scores: tuple[float, ...]
    max_steps: Step
    seconds: tuple[float, ...] = ()
    rates: tuple[tuple[Step, float], ...] = ()
    siblings: tuple[Branch, ...] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSet:
    """The runs of one task, with the range of their scores.

    Sets of one `source` go into one line of a table. Variants and repeats of a `task` are alike, so
    the tasks that chose constants are left out whole. Runs that ended at a `target` had `within`
    seconds for it.
    """

    name: str
    source: str
    task: str
    curves: tuple[RecordedCurve, ...]
    metric: str
    maximize: bool
    low: float
    high: float
    target: float | None = None
    within: float | None = None

    @property
    def scale(self) -> float:
        """The width of the scores' range, which errors are parts of."""
        return self.high - self.low


def load(folder: Path, sources: Iterable[str] = ()) -> list[RecordedSet]:
    """Return the sets in a folder, of the sources that begin so; of all of `READERS` if none."""
    every = (each for kind, path in files(folder, sources) for each in READERS[kind](path))
    sets = (
        replace(each, curves=tuple(run for run in each.curves if len(run.steps) >= FEWEST))
        for each in every
    )
    return [each for each in sets if each.curves]


def unseen(sets: Sequence[RecordedSet]) -> list[RecordedSet]:
    """Return the sets of the tasks that chose no constants of the package.

    The tasks of a source take turns; a single one chose none.
    """
    kept: list[RecordedSet] = []
    for source in dict.fromkeys(each.source for each in sets):
        of_source = [each for each in sets if each.source == source]
        tasks = sorted({each.task for each in of_source})
        wanted = tasks[1::2] or tasks
        kept += [each for each in of_source if each.task in wanted]
    return kept


def files(folder: Path, sources: Iterable[str] = ()) -> list[tuple[str, Path]]:
    """Return the files that `load` reads, each after its key in `READERS`."""
    wanted = tuple(sources) or tuple(READERS)
    paths = [
        (kind, path)
        for path in sorted(folder.glob("*.npz"))
        for kind in READERS
        if path.name.startswith(kind) and path.name.startswith(wanted)
    ]
    if not paths:
        raise ConfigurationError(
            f"a folder of recorded curves must have .npz files that begin with "
            f"{' or '.join(wanted)}, got {str(folder)!r}"
        )
    return paths


# ------------------------------------------------------------------------- their formats


def _algoperf(path: Path) -> Iterator[RecordedSet]:
    """A run may go on to its hint of steps; one with another schedule went further."""
    with np.load(path, allow_pickle=False) as held:
        arrays = {name: held[name] for name in ("step", "val", "sub_time", "offsets")}
        about = _documents(held["meta_jsonl"])
    for (workload, variant), places in _grouped(about, "workload", "variant"):
        runs = [slice(*arrays["offsets"][place : place + 2]) for place in places]
        first = about[places[0]]
        values = [arrays["val"][run].astype(float) for run in runs]
        scores, low, high = _scores(values, first["metric"], first["maximize"])
        yield RecordedSet(
            name=" ".join(filter(None, ("algoperf", workload, variant))),
            source="algoperf",
            task=workload,
            curves=tuple(
                RecordedCurve(
                    steps=tuple(steps),
                    scores=tuple(of_run.tolist()),
                    max_steps=max(about[place]["step_hint"], steps[-1]),
                    seconds=tuple(arrays["sub_time"][run].tolist()),
                )
                for place, run, of_run in zip(places, runs, scores, strict=True)
                for steps in [arrays["step"][run].tolist()]
            ),
            metric=first["metric"],
            maximize=first["maximize"],
            low=low,
            high=high,
            target=first["target"] if first["maximize"] else -first["target"],
            within=max(about[place]["max_runtime_s"] for place in places),
        )


def _taskset(path: Path) -> Iterator[RecordedSet]:
    """A step is that between two measurements."""
    with np.load(path, allow_pickle=False) as held:
        losses = held["loss"][:, :, held["splits"].tolist().index("valid")].astype(float)
        tasks = held["tasks"].tolist()
    for task, of_task in zip(tasks, losses, strict=True):
        scores, low, high = _scores(list(of_task), "valid_loss", False)
        yield RecordedSet(
            name=f"taskset {task}",
            source="taskset",
            task=task,
            curves=_even(scores, first=0),
            metric="valid_loss",
            maximize=False,
            low=low,
            high=high,
        )


def _lcbench(path: Path) -> Iterator[RecordedSet]:
    with np.load(path, allow_pickle=False) as held:
        tasks, accuracies = held["tasks"].tolist(), held["val_accuracy"].astype(float)
        seconds = held["cum_time_s"].astype(float)
    for task, of_task, times in zip(tasks, accuracies, seconds, strict=True):
        curves = tuple(
            replace(curve, seconds=tuple(of_run.tolist()))
            for curve, of_run in zip(_even(of_task), times, strict=True)
        )
        yield _accuracies(f"lcbench {task}", "lcbench", task, curves)


def _rl(path: Path) -> Iterator[RecordedSet]:
    with np.load(path, allow_pickle=False) as held:
        offsets, returns = held["offsets"], held["ret"].astype(float)
        about = _documents(held["meta_jsonl"])
    for (game,), places in _grouped(about, "game"):
        runs = [returns[slice(*offsets[place : place + 2])] for place in places]
        low = min(float(np.nanmin(run)) for run in runs)
        width = max(float(np.nanmax(run)) for run in runs) - low or 1.0
        yield RecordedSet(
            name=f"rl {game}",
            source="rl",
            task=game,
            curves=_even((run - low) / width for run in runs),
            metric="normalised return",
            maximize=True,
            low=0.0,
            high=1.0,
        )


def _own(path: Path) -> Iterator[RecordedSet]:
    """Learning rates are those of sequences; siblings share all of their first values."""
    kind, task = path.stem.rsplit("_", 1)
    trace = Trace.load(path)
    curves = _even(_metric(trace, "val_accuracy"))
    if trace.seconds is not None:
        curves = tuple(
            replace(curve, seconds=tuple(np.cumsum(np.broadcast_to(of_steps, steps)).tolist()))
            for curve, of_steps in zip(curves, trace.seconds, strict=True)
            for steps in [len(curve.steps)]
        )
    curves = tuple(
        replace(curve, configuration=configuration)
        for curve, configuration in zip(curves, trace.configurations, strict=True)
    )
    if all(isinstance(each.get("lr"), list) for each in trace.configurations):
        curves = tuple(_with_siblings(curves, trace.configurations))
    yield _accuracies(f"{kind} {task}", kind, task, curves)


READERS: Mapping[str, Callable[[Path], Iterator[RecordedSet]]] = {
    "algoperf": _algoperf,
    "taskset": _taskset,
    "lcbench": _lcbench,
    "rl": _rl,
    "own": _own,
}
"""By how a file's name begins: what reads it."""


def _scores(
    values: Sequence[Array], metric: str, maximize: bool
) -> tuple[list[Array], float, float]:
    """Return values as scores, and the range that these have."""
    if maximize:
        low, high = RANGES.get(metric) or _span(values)
        return list(values), low, high
    worst = WORST * float(np.nanmedian([value[0] for value in values]))
    return [-np.minimum(each, worst) for each in values], -worst, 0.0


def _span(values: Sequence[Array]) -> tuple[float, float]:
    together = np.concatenate(values)
    low, high = float(np.nanmin(together)), float(np.nanmax(together))
    return low, high if high > low else low + 1


def _even(rows: Iterable[Array], first: Step = 1) -> tuple[RecordedCurve, ...]:
    """Return curves that were measured after every step."""
    return tuple(
        RecordedCurve(
            steps=tuple(range(first, first + len(row))),
            scores=tuple(row.tolist()),
            max_steps=first + len(row) - 1,
        )
        for row in rows
    )


def _accuracies(
    name: str, source: str, task: str, curves: tuple[RecordedCurve, ...]
) -> RecordedSet:
    low, high = RANGES["accuracy"]
    return RecordedSet(
        name=name,
        source=source,
        task=task,
        curves=curves,
        metric="val_accuracy",
        maximize=True,
        low=low,
        high=high,
    )


def _with_siblings(
    curves: Sequence[RecordedCurve], configurations: Sequence[Mapping[str, Any]]
) -> Iterator[RecordedCurve]:
    """Give every curve its learning rates, and the curves that begin like it."""
    values = [_by_step(each, len(curves[0].steps)) for each in configurations]
    rates = [_changes(configuration["lr"]) for configuration in configurations]
    for place, curve in enumerate(curves):
        shared = [_shared(values[place], other) for other in values]
        siblings = tuple(
            Branch(at=at, steps=other.steps, scores=other.scores, rates=rates[number])
            for number, (other, at) in enumerate(zip(curves, shared, strict=True))
            if number != place and at > 0
        )
        yield replace(curve, rates=rates[place], siblings=siblings)


def shared_steps(configurations: Sequence[Mapping[str, object]], steps: Step) -> tuple[Shared, ...]:
    """Return with which earlier configuration each begins alike for longest, as in `Trace`."""
    values = [_by_step(configuration, steps) for configuration in configurations]
    shared = []
    for number, own in enumerate(values):
        alike = [_shared(own, other) for other in values[:number]]
        most = max(alike, default=0)
        shared.append((alike.index(most) if most else 0, most))
    return tuple(shared)


def _by_step(configuration: Mapping[str, Any], steps: int) -> list[tuple[object, ...]]:
    columns = [
        value if isinstance(value, list) else [value] * steps for value in configuration.values()
    ]
    return list(zip(*columns, strict=True))


def _shared(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _changes(values: Sequence[float]) -> tuple[tuple[Step, float], ...]:
    """Return the values and where each of them begins."""
    changes = []
    for rate, steps in groupby(enumerate(values), key=lambda pair: pair[1]):
        changes.append((next(iter(steps))[0], rate))
    return tuple(changes)


def with_rates(of: RecordedSet) -> RecordedSet:
    """Return the set, each curve with its learning rates by step as its configuration."""
    return replace(
        of,
        curves=tuple(
            replace(curve, configuration={"lr": _rates_by_step(curve)}) for curve in of.curves
        ),
    )


def _rates_by_step(curve: RecordedCurve) -> list[float]:
    starts, rates = zip(*curve.rates, strict=True)
    return [rates[bisect_right(starts, step) - 1] for step in range(curve.max_steps)]


def _metric(trace: Trace, name: str) -> Array:
    if name not in trace.metrics:
        raise ConfigurationError(f"a trace must have {name}, got {', '.join(trace.metrics)}")
    return trace.values[:, :, trace.metrics.index(name)].astype(float)


def _grouped(
    about: Sequence[Mapping[str, Any]], *names: str
) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return where documents have the same values under some names."""
    places: dict[tuple[str, ...], list[int]] = {}
    for place, document in enumerate(about):
        places.setdefault(tuple(document[name] for name in names), []).append(place)
    return sorted(places.items())


def _documents(packed: Array) -> list[dict[str, Any]]:
    return [json.loads(line) for line in packed.tobytes().decode().splitlines()]
