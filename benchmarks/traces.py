"""Recorded curves of other people's, as traces; each function is given the folder they are in.

One that ended before the longest is NaN from there on, as one that diverged, unless it ended
because it had reached its target: then its last value stands for the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.errors import ConfigurationError, unknown
from dasktune.simulate import Trace

Array = NDArray[Any]


def own_mlp(folder: Path) -> Trace:
    """Return 320 random configurations of a small network on MNIST, 30 epochs."""
    return Trace.load(folder / "own_mlp_mnist.npz")


def own_stage(folder: Path) -> Trace:
    """Return 108 configurations whose hyper-parameters are sequences, 30 epochs."""
    return Trace.load(folder / "own_stage_mnist.npz")


def taskset(folder: Path, task: int) -> Trace:
    """Return 1000 configurations of Adam on a text task: the losses, every 200 iterations.

    The value before any training, the first of the record, is left out.
    """
    with np.load(folder / "taskset_imdb_dev.npz", allow_pickle=False) as held:
        losses = held["loss"][task, :, :, 1:]
        return Trace.from_arrays(
            {f"{split}_loss": losses[:, index] for index, split in enumerate(held["splits"])},
            configurations=_named(held["hparam_names"], held["hparams"]),
        )


def lcbench(folder: Path, task: int) -> Trace:
    """Return 1000 configurations of a network on tabular data, 52 epochs; a fitted model's."""
    metrics = ("val_accuracy", "val_cross_entropy", "test_balanced_accuracy")
    with np.load(folder / "lcbench_surrogate_dev.npz", allow_pickle=False) as held:
        return Trace.from_arrays(
            {name: held[name][task] for name in metrics},
            seconds=np.diff(held["cum_time_s"][task], axis=1, prepend=0),
            configurations=_named(held["hparam_names"], held["hparams"]),
        )


def algoperf(folder: Path, workload: str, variant: str = "") -> Trace:
    """Return the runs of AlgoPerf submissions on a workload; a step is one evaluation.

    `configurations` are what is known of each run: its metric, `target` and so on. A run
    ended when its targets were reached: it stays there. One that did not reach them was cut
    off or crashed, and is NaN from there on.
    """
    columns, chosen = ("val", "val_loss", "test", "train"), (workload, variant)
    with np.load(folder / "algoperf_dev.npz", allow_pickle=False) as held:
        offsets = held["offsets"]
        about = _documents(held["meta_jsonl"])
        names = [(each["workload"], each["variant"]) for each in about]
        runs = [(about[at], slice(*offsets[at : at + 2])) for at in _where(names, chosen)]
        holds = [bool(each["hit_target"]) for each, _ in runs]
        arrays = {name: held[name] for name in columns}
        times = held["sub_time"]
        return Trace.from_arrays(
            {
                name: _padded([array[where] for _, where in runs], holds)
                for name, array in arrays.items()
            },
            seconds=[times[where][-1] / (where.stop - where.start) for _, where in runs],
            configurations=[run for run, _ in runs],
        )


def rl(folder: Path, game: str) -> Trace:
    """Return the return per iteration of every agent's runs on an Atari game."""
    with np.load(folder / "rl_dopamine_dev.npz", allow_pickle=False) as held:
        offsets, returns = held["offsets"], held["ret"]
        about = _documents(held["meta_jsonl"])
        games = [each["game"] for each in about]
        runs = [(about[at], returns[slice(*offsets[at : at + 2])]) for at in _where(games, game)]
    return Trace.from_arrays(
        {"return": _padded([run for _, run in runs], [False] * len(runs))},
        configurations=[each for each, _ in runs],
    )


def _where(names: Sequence[object], chosen: object) -> list[int]:
    """Return where a name is among others; it must be somewhere."""
    places = [at for at, name in enumerate(names) if name == chosen]
    if not places:
        raise ConfigurationError(unknown("record", chosen, sorted({str(name) for name in names})))
    return places


def _padded(runs: Sequence[Array], holds: Sequence[bool]) -> Array:
    """Return runs of different lengths as one array; what `holds` keeps its last value."""
    longest = max(map(len, runs), default=0)
    padded = np.full((len(runs), longest), np.nan)
    for row, run, hold in zip(padded, runs, holds, strict=True):
        row[: len(run)] = run
        if hold:
            row[len(run) :] = run[-1]
    return padded


def _named(names: Array, values: Array) -> list[Mapping[str, object]]:
    return [dict(zip(names.tolist(), row, strict=True)) for row in values.tolist()]


def _documents(packed: Array) -> list[dict[str, Any]]:
    lines: Iterable[str] = packed.tobytes().decode().splitlines()
    return [json.loads(line) for line in lines]
