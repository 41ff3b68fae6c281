"""The tables of the four papers, ours beside theirs; what is simulated, and what is unlike.

A row is a figure that a paper prints. Grids of Hippo are simulated here; the other rows are those
of the benchmarks `early_stopping.py`, `promotions.py`, `stragglers.py`, `shadho.py` and, with the
recorded curves of ``--data``, `time_to_target.py`, which run in processes of their own. No row is
live. For HyperDrive's rows `time_to_target.py` runs with fewer orders, slots and policies than by
itself, so that the whole takes a quarter of an hour on 2 cores.

References
----------
Shin et al., "Hippo"; Li et al., "A System for Massively Parallel Hyperparameter Tuning";
Rasley et al., "HyperDrive"; Kinnison et al., "SHADHO".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from all import run
from figures import Figure, main
from spaces import hippo_40, hippo_144, hippo_240

import dasktune as dt
from dasktune.sequences import Constant, Piecewise

GPUS = 40
"""As many as Hippo's studies had."""

GRIDS = {
    "MobileNetV2": (hippo_240, 200, GPUS, 3.144, 944.88 / 291.48, 30.29 / 10.43),
    # A trial needs several GPUs there; how many is not said.
    "BERT": (hippo_40, 300, GPUS // 4, 2.045, 808.21 / 404.21, 24.1 / 11.93),
}
"""Space, steps of a trial, workers, and the paper's merge rate, saved GPU hours and saved time."""

ANOTHER_STUDY = (
    Constant(64),
    Piecewise([128, 1024], boundaries=[60]),
    Piecewise([64, 128], boundaries=[40]),
    Piecewise([64, 512], boundaries=[100]),
)
"""Batch sizes of a second study, one of which begins like those of `hippo_144`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of a paper and where ours is found.

    Parameters
    ----------
    paper
        Paper and table.
    benchmark
        The benchmark that measures ours.
    name
        Name of the figure there.
    printed
        What the paper has.
    unlike
        How ours came about, and what differs from the paper's setting.
    """

    paper: str
    benchmark: str
    name: str
    printed: str
    unlike: str


ROWS = (
    Row(
        paper="Hippo, Table 5, ResNet56 with SHA: work without merging over with it",
        benchmark="early_stopping",
        name="SHA: steps trained without merging over with it, decisions of its own",
        printed="4.84 (404.95 and 83.7 GPU hours)",
        unlike="simulated; a space with the paper's merge rate; errors are made up",
    ),
    Row(
        paper="Hippo, Table 5, ResNet56 with ASHA: work without merging over with it",
        benchmark="early_stopping",
        name="ASHA: steps trained without merging over with it, decisions of its own",
        printed="2.70 (374.82 and 139.03 GPU hours)",
        unlike="simulated; a space with the paper's merge rate; errors are made up",
    ),
    Row(
        paper="Hippo, Table 5, ResNet56 with SHA: time without merging over with it",
        benchmark="early_stopping",
        name="SHA: time without merging over with it, 40 workers",
        printed="2.24 (12.89 and 5.76 hours)",
        unlike="simulated; the same decisions on both sides",
    ),
    Row(
        paper="Hippo, Table 5, ResNet56 with ASHA: time without merging over with it",
        benchmark="early_stopping",
        name="ASHA: time without merging over with it, 40 workers",
        printed="1.84 (13.58 and 7.4 hours)",
        unlike="simulated; the same decisions on both sides",
    ),
    Row(
        paper="ASHA, section 3.3: the first configuration trained to R, from scratch",
        benchmark="promotions",
        name="first configuration trained to R, 9 machines, R 9, eta 3, from scratch",
        printed="13/9 time(R)",
        unlike="simulated, as in the paper",
    ),
    Row(
        paper="ASHA, section 3.3: the same, resumed",
        benchmark="promotions",
        name="first configuration trained to R, 9 machines, R 9, eta 3, resumed",
        printed="1 time(R)",
        unlike="simulated, as in the paper",
    ),
    Row(
        paper="ASHA, Fig. 7: conditions in which synchronous SHA is ahead",
        benchmark="stragglers",
        name="conditions with std >= 0.5 or drop >= 0.001 in which "
        "synchronous SHA trains more to R, or one as early",
        printed="0",
        unlike="simulated, as in the paper; its text has no grid of conditions",
    ),
    Row(
        paper="ASHA, Fig. 7: more configurations trained to R than SHA, std 1, drop 0.001",
        benchmark="stragglers",
        name="ASHA's lead in configurations trained to R, std 1, drop 0.001",
        printed="a curve; in words, many more when the standard deviation is high",
        unlike="simulated, as in the paper; its text has no grid of conditions",
    ),
    Row(
        paper="SHADHO, Fig. 5: tasks an hour over first come, first served",
        benchmark="shadho",
        name="tasks an hour over first come, forest and placement, waves alike",
        printed="2.0 (463 and 227)",
        unlike="simulated with measured times of four kernels; the best plan has 1.74",
    ),
)

ORDERS, SLOTS = 10, 4
"""Orders of configurations and slots, as many as HyperDrive's runs and GPUs for CIFAR-10."""

SOURCES = ("algoperf", "lcbench", "own", "rl")
"""The recorded curves of accuracies and of returns, which are the metrics of HyperDrive's tasks."""

WITH_DATA = tuple(
    Row(
        paper=f"HyperDrive, {place}: POP's {of} time to target over {policy}'s",
        benchmark="time_to_target",
        name=f"{kind}: POP's {of} time to target over {policy}'s",
        printed=printed,
        unlike="simulated on recorded curves of other tasks than the paper's, "
        f"{ORDERS} orders of 100 configurations on {SLOTS} slots",
    )
    for kind, of, place, ratios in (
        ("accuracy", "mean", "CIFAR-10", {"Bandit": "1 / 1.6", "EarlyTerm": "1 / 2.1"}),
        ("rl", "median", "LunarLander", {"Bandit": "1 / 2.07", "EarlyTerm": "1 / 1.26"}),
    )
    for policy, printed in ratios.items()
)


def measure(short: bool, data: Path | None = None) -> list[Figure]:
    """Return all rows."""
    rows = ROWS if data is None else (*ROWS, *WITH_DATA)
    documents: dict[str, Mapping[str, Any]] = {}
    for name in dict.fromkeys(row.benchmark for row in rows):
        options = ["--short"] if short else []
        if name == "time_to_target":
            options += _time_to_target(short, data)
        documents[name] = run(name, options) or {"figures": ()}
    return [*_grids(), *_two_studies(), *(_figure(row, documents) for row in rows)]


def _time_to_target(short: bool, data: Path | None) -> list[str]:
    """Return the options with which time to target is measured for HyperDrive's rows."""
    options = ["--data", str(data), "--sources", *SOURCES]
    options += ["--policies", "POP", "Bandit", "EarlyTerm"]
    options += ["--processes", str(len(os.sched_getaffinity(0)))]
    return options if short else [*options, "--orders", str(ORDERS), "--slots", str(SLOTS)]


def _figure(row: Row, documents: Mapping[str, Mapping[str, Any]]) -> Figure:
    figures = documents[row.benchmark]["figures"]
    known = {each["name"]: each for each in figures}
    if row.name not in known:
        raise LookupError(f"{row.benchmark} must have a figure {row.name!r}, got {list(known)}")
    figure = known[row.name]
    note = f"paper: {row.printed}; {row.unlike}; here {figure['note']}"
    return Figure(name=row.paper, value=figure["value"], unit=figure["unit"], note=note)


def _grids() -> Iterator[Figure]:
    """Simulate the two grids with merging and without."""
    for model, (space, steps, workers, rate, saved, faster) in GRIDS.items():
        merged, alone = (
            dt.simulate(
                dt.algos.Grid(space(), max_steps=steps),
                lambda values, step: 1.0 / step,
                workers=workers,
                report_every=steps,
                merge=merge,
            )
            for merge in (True, False)
        )
        bound = dt.preview(space(), max_steps=steps, workers=workers)
        yield Figure(
            name=f"Hippo, Table 5, {model} grid: work without merging over with it",
            value=alone.steps_executed / merged.steps_executed,
            unit="x",
            equals=bound.merge_rate,
            note=f"paper: {saved:.2f}, merge rate {rate}; simulated; the paper does not print the "
            "space",
        )
        yield Figure(
            name=f"Hippo, Table 5, {model} grid: time without merging over with it",
            value=alone.seconds / merged.seconds,
            unit="x",
            note=f"paper: {faster:.2f}; simulated on {workers} workers; with merging "
            f"{merged.seconds / bound.bound_steps:.3f} times the tree bound",
        )


def _two_studies() -> Iterator[Figure]:
    spaces = [hippo_144(), hippo_144(ANOTHER_STUDY)]
    both = dt.preview(spaces, max_steps=120)
    rates = ", ".join(f"{study.merge_rate:.2f}" for study in both.studies)
    yield Figure(
        name="Hippo, Fig. 13: steps of two studies over those that differ (q)",
        value=both.merge_rate,
        unit="x",
        note=f"paper: 2.26 (p of each 1.5 to 2.73); counted; two spaces of 144 trials "
        f"with p {rates}, as the paper does not print its spaces",
    )


if __name__ == "__main__":
    sys.exit(main("papers", measure, data="folder of recorded curves, for HyperDrive's rows"))
