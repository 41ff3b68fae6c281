"""Stragglers and dropped jobs: ASHA against synchronous SHA, as in appendix A.1 of its paper."""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from figures import Figure, main
from given import LOSS, SPACE, random_losses, with_losses
from jobs import Jobs

import dasktune as dt
from dasktune.engine.limits import Limits
from dasktune.report.axes import AxisScale, bottom_axis, left_axis
from dasktune.report.svg import Svg, line, tag, text
from dasktune.simulate.jobs import Mishaps

ETA, LEAST, MOST, WIDTH, WORKERS = 4, 1, 256, 256, 25
"""The paper's: eta, r, R, n and the number of workers."""

RUNGS = 5
MORE = 1.25
"""As many brackets more than there is time for on average."""

REPEATS, SECONDS = 25, 2_000.0
DEVIATIONS = (0.0, 0.25, 0.56, 1.0, 1.67)
DROPS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01)
"""The grid is not in the paper's text: standard deviations, drop probabilities a time unit."""

SHORT_REPEATS, SHORT_SECONDS = 2, 400.0
SHORT_DEVIATIONS, SHORT_DROPS = (0.0, 1.0), (0.0, 0.001)

IS_HIGH = (0.5, 0.001)
"""From which deviation on, or from which drop probability on, ASHA must be ahead."""

SHA, ASHA = "synchronous SHA", "ASHA"
PANEL, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560.0, 420.0, 64.0, 24.0, 76.0, 52.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One simulated run: who, under which conditions, and for how long."""

    kind: str
    deviation: float
    drop: float
    seed: int
    seconds: float

    @property
    def tuner(self) -> dt.algos.Tuner:
        """The tuner, with trials for more brackets than there is time for."""
        slowness = 1 + math.sqrt(2 / math.pi) * self.deviation
        steps = WIDTH * LEAST * RUNGS * slowness
        brackets = math.ceil(MORE * WORKERS * self.seconds / steps) + 1
        sampler = with_losses(random_losses(WIDTH * brackets, self.seed))
        given: dict[str, Any] = {
            "max_steps": MOST,
            "min_steps": LEAST,
            "eta": ETA,
            "sampler": sampler,
        }
        if self.kind == SHA:
            return dt.algos.SHA(SPACE, trials=WIDTH, brackets=brackets, **given)
        return dt.algos.ASHA(SPACE, trials=WIDTH * brackets, brackets=[0], **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of a tuner under given conditions: means over the repeats."""

    kind: str
    deviation: float
    drop: float
    completed: float
    first: float
    without: int

    @classmethod
    def of(cls, setting: Setting, repeats: Sequence[Sequence[float]]) -> Cell:
        """Return the means; a run in which none was trained to R counts with its duration."""
        return cls(
            kind=setting.kind,
            deviation=setting.deviation,
            drop=setting.drop,
            completed=statistics.mean(map(len, repeats)),
            first=statistics.mean(times[0] if times else setting.seconds for times in repeats),
            without=sum(not times for times in repeats),
        )


Pair = tuple[Cell, Cell]
"""ASHA's cell and synchronous SHA's under the same conditions."""


def measure(short: bool, plot: Path | None = None) -> list[Figure]:
    """Run both tuners over the grid of conditions; draw what came out, if there is a path."""
    repeats, seconds = (SHORT_REPEATS, SHORT_SECONDS) if short else (REPEATS, SECONDS)
    deviations, drops = (SHORT_DEVIATIONS, SHORT_DROPS) if short else (DEVIATIONS, DROPS)
    conditions = list(product(deviations, drops))
    settings = [
        Setting(kind=kind, deviation=deviation, drop=drop, seed=seed, seconds=seconds)
        for deviation, drop in conditions
        for kind in (ASHA, SHA)
        for seed in range(repeats)
    ]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        counts = pool.map(completions, settings, chunksize=repeats)
        checked = [
            setting for setting in settings if setting.seed == 0 and _is_corner(setting, conditions)
        ]
        repeated = pool.map(_is_repeated, checked, chunksize=1)
    cells = [
        Cell.of(settings[at], counts[at : at + repeats]) for at in range(0, len(settings), repeats)
    ]
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    if plot is not None:
        draw(pairs).save(plot)
    return [
        *(_figure(pair) for pair in pairs),
        _summary(pairs, seconds, repeats),
        *_checks(zip(checked, repeated, strict=True)),
    ]


def completions(setting: Setting) -> list[float]:
    """Return when configurations had been trained to R, always from scratch."""
    mishaps = Mishaps(straggling=setting.deviation, drop=setting.drop, seed=setting.seed)
    return Jobs(setting.tuner, workers=WORKERS, mishaps=mishaps).run(setting.seconds)


def _is_corner(setting: Setting, conditions: Sequence[tuple[float, float]]) -> bool:
    (least, rare), (most, frequent) = conditions[0], conditions[-1]
    return setting.deviation in (least, most) and setting.drop in (rare, frequent)


def _is_repeated(setting: Setting) -> bool:
    ran = dt.simulate(
        setting.tuner,
        lambda values, step: values[LOSS],
        workers=WORKERS,
        report_every=MOST,
        merge=False,
        resume=False,
        straggling=setting.deviation,
        drop=setting.drop,
        seed=setting.seed,
        limits=Limits(seconds=setting.seconds),
    )
    return ran.completed == completions(setting)


def _checks(runs: Iterable[tuple[Setting, bool]]) -> list[Figure]:
    """Return how many runs `dasktune.simulate` repeats to the last bit.

    It orders jobs of one priority by how long they seem to take, and stragglers move its
    estimates: then two that wait may change places, and all that comes later is another draw.
    """
    compared = list(runs)
    return [
        Figure(
            name=f"runs {how} stragglers that dasktune.simulate does not repeat to the last bit",
            value=[same for setting, same in compared if bool(setting.deviation) is slow].count(
                False
            ),
            equals=None if slow else 0,
            note=f"of {sum(bool(setting.deviation) is slow for setting, _ in compared)}",
        )
        for how, slow in (("without", False), ("with", True))
    ]


def is_ahead(pair: Pair) -> bool:
    """Whether ASHA trained at least as many to R, and the first one earlier."""
    asha, sha = pair
    return asha.completed >= sha.completed and asha.first < sha.first


def _figure(pair: Pair) -> Figure:
    asha, sha = pair
    none = f"; none in {asha.without} and {sha.without} runs" if asha.without + sha.without else ""
    return Figure(
        name=f"ASHA's lead in configurations trained to R, std {asha.deviation:g}, "
        f"drop {asha.drop:g}",
        value=asha.completed - sha.completed,
        note=f"{asha.completed:.2f} and {sha.completed:.2f}; the first after {asha.first:.0f} "
        f"and {sha.first:.0f} time units{none}",
    )


def _summary(pairs: Sequence[Pair], seconds: float, repeats: int) -> Figure:
    high = [pair for pair in pairs if pair[0].deviation >= IS_HIGH[0] or pair[0].drop >= IS_HIGH[1]]
    return Figure(
        name=f"conditions with std >= {IS_HIGH[0]:g} or drop >= {IS_HIGH[1]:g} in which "
        "synchronous SHA trains more to R, or one as early",
        value=sum(not is_ahead(pair) for pair in high),
        at_most=0,
        note=f"of {len(high)}; {repeats} runs of {seconds:,.0f} time units each, "
        f"{WORKERS} workers, eta {ETA}, r {LEAST}, R {MOST}, n {WIDTH}, never resumed",
    )


# --------------------------------------------------------------------------- the drawing


def draw(pairs: Sequence[Pair]) -> Svg:
    """Return both panels over the drop probability: ASHA in full lines, SHA in broken ones."""
    counts = _panel(pairs, [[each.completed for each in pair] for pair in pairs], "trained to R")
    times = _panel(
        pairs, [[each.first for each in pair] for pair in pairs], "time until the first (mean)"
    )
    return Svg(
        marks=_legend(pairs) + counts + tag("g", times, transform=f"translate({PANEL:.0f} 0)"),
        width=2 * PANEL,
        height=HEIGHT,
        label="ASHA and synchronous SHA with stragglers and dropped jobs",
    )


def _panel(pairs: Sequence[Pair], values: Sequence[Sequence[float]], name: str) -> str:
    drops = [pair[0].drop for pair in pairs]
    across = AxisScale(low=min(drops), high=max(drops), start=LEFT, end=PANEL - RIGHT)
    highest = max(max(both) for both in values)
    up = AxisScale(low=0, high=1.05 * highest or 1, start=HEIGHT - BOTTOM, end=TOP)
    lines = []
    for index, deviation in enumerate(_deviations(pairs), 1):
        for which, dashes in ((0, None), (1, "5 4")):
            points = [
                (across(pair[0].drop), up(both[which]))
                for pair, both in zip(pairs, values, strict=True)
                if pair[0].deviation == deviation
            ]
            lines.append(
                tag("path", d=line(points), class_=f"curve l{index}", stroke_dasharray=dashes)
            )
    return "".join(
        [
            left_axis(up, LEFT, PANEL - RIGHT, name),
            bottom_axis(across, TOP, HEIGHT - BOTTOM, "drop probability", whole=False),
            *lines,
        ]
    )


def _legend(pairs: Sequence[Pair]) -> str:
    marks, x = [], LEFT
    entries: list[tuple[str, str, str | None]] = [
        (f"std {deviation:g}", f"curve l{index}", None)
        for index, deviation in enumerate(_deviations(pairs), 1)
    ]
    entries += [(ASHA, "faint", None), (SHA, "faint", "5 4")]
    for words, look, dashes in entries:
        marks.append(tag("path", d=f"M{x:.0f} 16h22", class_=look, stroke_dasharray=dashes))
        marks.append(text(x + 28, 20, words, class_="tick"))
        x += 48 + 6.3 * len(words)
    return "".join(marks)


def _deviations(pairs: Iterable[Pair]) -> list[float]:
    return list(dict.fromkeys(pair[0].deviation for pair in pairs))


if __name__ == "__main__":
    sys.exit(main("stragglers", measure, plot="also draw the two panels there, as SVG"))
