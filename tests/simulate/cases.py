"""Studies to simulate, and the naive way to see what happened in one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Sequence
from dasktune.simulate import Happening, Simulation

STEPS = 12

BRANCHING: list[Sequence] = [
    Constant(0.1),
    MultiStep(0.1, [3], 0.5),
    MultiStep(0.1, [7], 0.5),
    MultiStep(0.1, [7, 9], 0.5),
    Constant(0.4),
]
"""Five trials of 12 steps: 60 are asked for, 41 are unique."""

UNIQUE = 12 + 9 + 5 + 3 + 12


def grid() -> dt.algos.Grid:
    return dt.algos.Grid(dt.Space(lr=BRANCHING), max_steps=STEPS)


def wavy(values: Mapping[str, object], step: int) -> float:
    """Return a value without order, NaN at some steps."""
    lr = float(str(values["lr"]))
    return math.nan if step == 5 else math.cos(7 * lr + step * step)


def spans(found: Simulation) -> list[tuple[Happening, Happening]]:
    """Return the start and the end of every job."""
    starts = {one.attempt: one for one in found.events if one.kind == "started"}
    ends = [one for one in found.events if one.kind in ("ended", "dropped")]
    assert len(starts) == len(ends)
    return [(starts[end.attempt], end) for end in ends]
