"""A Gantt chart: one row per worker, one bar per attempt, coloured by its status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dasktune.report.axes import AxisScale
from dasktune.report.axes import ticks as round_ticks
from dasktune.report.formats import duration
from dasktune.report.svg import Svg, legend, tag, text, title
from dasktune.storage.database.schema import StageRow
from dasktune.words import counted

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 190.0, 40.0, 44.0, 48.0
ROW = 22.0
MOST_WORKERS = 48
IDLE_LABEL = 76.0
"""Width that the words of a cut idle time need; if it is less, a tooltip alone has them."""

IDLE_SHARE = 0.1
"""An idle time of all workers is cut if it is longer than this share."""

CUT_SHARE = 0.02
"""The share that remains of a cut idle time."""

LOOKS = {
    "trained": "k2",
    "stopped": "k3",
    "running": "s2",
    "lost": "k5",
    "failed": "k1",
    "superseded": "k4",
    "skipped": "k6",
}
"""Class by status; other statuses look like skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Wall time with long idle times cut: pieces of (begin, end, shown begin)."""

    pieces: tuple[tuple[float, float, float], ...]
    gap: float

    @property
    def length(self) -> float:
        """Shown seconds from the first beginning to the last end."""
        begin, end, shown = self.pieces[-1]
        return shown + end - begin

    def __call__(self, moment: float) -> float:
        """Return the shown time of a moment, in seconds after the first."""
        for begin, end, shown in self.pieces:
            if moment <= end:
                return shown + max(0.0, moment - begin)
        return self.length


def draw_gantt(stages: Sequence[StageRow]) -> Svg | None:
    """Return the chart of all attempts that have started, or None."""
    ran = [row for row in stages if row.started and row.ended is not None]
    if not ran:
        return None
    clock = clock_of([(row.started, row.ended or row.started) for row in ran])
    workers = list(dict.fromkeys(row.worker for row in sorted(ran, key=lambda row: row.started)))
    shown = workers[:MOST_WORKERS]
    bottom = TOP + ROW * len(shown) + 4
    scale = AxisScale(low=0, high=max(clock.length, 1e-3), start=LEFT, end=WIDTH - RIGHT)
    marks = [_axis(scale, clock, bottom), _legend(ran)]
    for index, worker in enumerate(shown):
        y = TOP + ROW * index
        name = worker.partition("://")[2] or worker
        short = name if len(name) <= 26 else "…" + name[-25:]
        marks.append(tag("g", title(worker), text(LEFT - 10, y + 15, short, text_anchor="end")))
        own = [row for row in ran if row.worker == worker]
        marks += [_bar(rows, clock, scale, y) for rows in joined(own, clock, scale)]
    if len(workers) > len(shown):
        words = f"{len(workers) - len(shown):,} more workers are not shown"
        marks.append(text(LEFT, bottom + 38, words, class_="note"))
    label = f"{counted(len(ran), 'attempt')} on {counted(len(workers), 'worker')}"
    return Svg(marks="".join(marks), width=WIDTH, height=bottom + BOTTOM, label=label)


def clock_of(spans: Iterable[tuple[float, float]]) -> Clock:
    """Return the clock that cuts the long idle times.

    Examples
    --------
    >>> clock = clock_of([(0.0, 10.0), (1000.0, 1010.0)])
    >>> clock(5.0), round(clock.length, 2)
    (5.0, 20.4)
    """
    busy: list[list[float]] = []
    for begin, end in sorted(spans):
        if busy and begin <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], end)
        else:
            busy.append([begin, end])
    total = sum(end - begin for begin, end in busy)
    pieces: list[list[float]] = []
    for begin, end in busy:
        if pieces and begin - pieces[-1][1] <= IDLE_SHARE * total:
            pieces[-1][1] = end
            continue
        last = pieces[-1] if pieces else None
        shown = 0.0 if last is None else last[2] + last[1] - last[0] + CUT_SHARE * total
        pieces.append([begin, end, shown])
    return Clock(pieces=tuple((a, b, c) for a, b, c in pieces), gap=CUT_SHARE * total)


def joined(rows: Iterable[StageRow], clock: Clock, scale: AxisScale) -> list[list[StageRow]]:
    """Return the rows of a worker in order; very small neighbours form one group."""
    groups: list[list[StageRow]] = []
    edge = 0.0
    for row in sorted(rows, key=lambda row: row.started):
        start, end = scale(clock(row.started)), scale(clock(row.ended or row.started))
        same = bool(groups) and groups[-1][-1].status == row.status
        if same and end - scale(clock(groups[-1][0].started)) < 2.0 and start - edge < 1.0:
            groups[-1].append(row)
        else:
            groups.append([row])
        edge = end
    return groups


def _bar(rows: Sequence[StageRow], clock: Clock, scale: AxisScale, y: float) -> str:
    first, last = rows[0], rows[-1]
    start, end = scale(clock(first.started)), scale(clock(last.ended or last.started))
    width = max(1.0, end - start - (0.8 if end - start > 3 else 0))
    look = LOOKS.get(first.status, "k6")
    size = {"x": start, "y": y + 3, "width": width, "height": ROW - 6, "rx": 2.0}
    return tag("rect", title(_tooltip(rows)), **size, class_=f"attempt {look}")


def _tooltip(rows: Sequence[StageRow]) -> str:
    first = rows[0]
    steps = counted(sum(row.steps for row in rows), "step")
    if len(rows) > 1:
        return f"{len(rows)} attempts, {first.status}, {steps}"
    took = duration((first.ended or first.started) - first.started)
    repeated = f"\n{counted(first.repeated, 'step')} repeated" if first.repeated else ""
    lines = f"steps {first.start:,}-{first.stop:,}, {first.status}\n{steps} in {took}"
    return f"{lines}{repeated}\nkey {first.key[:16]}\nattempt {first.attempt}"


def _axis(scale: AxisScale, clock: Clock, bottom: float) -> str:
    marks = []
    if len(clock.pieces) == 1:
        for tick in round_ticks(0, clock.length, 9):
            x = scale(tick)
            marks.append(tag("path", d=f"M{x:.1f} {TOP:.1f}V{bottom:.1f}", class_="grid"))
            words = duration(tick) if tick else "0"
            marks.append(text(x, bottom + 16, words, class_="tick", text_anchor="middle"))
    edge = 0.0
    for before, after in zip(clock.pieces, clock.pieces[1:], strict=False):
        x = scale(after[2] - clock.gap / 2)
        idle = f"idle {duration(after[0] - before[1])}"
        cut = f"M{x:.1f} {TOP:.1f}V{bottom:.1f}"
        marks.append(tag("path", title(idle), d=cut, class_="more"))
        if x - edge >= IDLE_LABEL:
            marks.append(text(x, bottom + 16, idle, class_="tick", text_anchor="middle"))
            edge = x
    name = "time since the first stage began"
    if len(clock.pieces) > 1:
        name = f"{duration(clock.length)} in all, long idle times cut"
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(marks) + text(middle, bottom + 34, name, class_="name", text_anchor="middle")


def _legend(rows: Iterable[StageRow]) -> str:
    present = {row.status for row in rows}
    ordered = [*(status for status in LOOKS if status in present), *sorted(present - LOOKS.keys())]
    return legend(((LOOKS.get(status, "k6"), status) for status in ordered), LEFT, 14.0)[0]
