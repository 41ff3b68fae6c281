"""The attempts of a study as bars in the rows of its workers."""

from __future__ import annotations

from collections.abc import Sequence

from dasktune._words import counted
from dasktune.report.formats import duration
from dasktune.storage.database.rows import StageRow

MOST_WORKERS = 48
"""Workers with a row, those that trained first."""

NARROW = 0.001
"""Share of the time in which neighbours of one worker with the same status are one bar."""

IDLE_SECONDS = 3600.0
"""Time in which no worker trains, after which a plot begins anew."""


def attempt_bars(stages: Sequence[StageRow]) -> dict[str, object]:
    """Return the attempts that have started and ended: workers, and bars as columns.

    `since` is the time at which the first worker began after the last long idle time.
    """
    ran = [(row.started, row.ended, row) for row in stages if row.started and row.ended]
    ran.sort(key=lambda each: each[0])
    if not ran:
        return {"words": "", "workers": [], "bars": {}}
    last = since = ran[0][0]
    narrow = NARROW * (max(ended for _, ended, _ in ran) - since)
    workers: dict[str, list[StageRow]] = {}
    bars: list[list[StageRow]] = []
    for started, ended, row in ran:
        since = started if started - last > IDLE_SECONDS else since
        last = max(last, ended)
        before = workers.get(row.worker)
        if before and before[-1].status == row.status and ended - before[0].started < narrow:
            before.append(row)
        else:
            workers[row.worker] = [row]
            bars.append(workers[row.worker])
    shown = {worker: place for place, worker in enumerate([*workers][:MOST_WORKERS])}
    bars = [rows for rows in bars if rows[0].worker in shown]
    words = f"{counted(len(ran), 'attempt')} on {counted(len(workers), 'worker')}"
    hidden = len(workers) - len(shown)
    return {
        "words": words + (f"; {counted(hidden, 'worker')} are not shown" if hidden else ""),
        "since": since,
        "workers": [worker.partition("://")[2] or worker for worker in shown],
        "bars": {
            "worker": [shown[rows[0].worker] for rows in bars],
            "start": [rows[0].started for rows in bars],
            "stop": [rows[-1].ended for rows in bars],
            "status": [rows[0].status for rows in bars],
            "words": [_words(rows) for rows in bars],
        },
    }


def _words(rows: Sequence[StageRow]) -> str:
    """Return the steps of a bar."""
    steps, first = counted(sum(row.steps for row in rows), "step"), rows[0]
    if len(rows) > 1:
        return f"{len(rows)} attempts, {steps}"
    took = duration((first.ended or first.started) - first.started)
    repeated = f", {counted(first.repeated, 'step')} repeated" if first.repeated else ""
    return f"steps {first.start:,}-{first.stop:,}, {steps} in {took}{repeated}"
