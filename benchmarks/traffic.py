"""Traffic: what a trial that does nothing costs in syncs, objects, messages and submits.

And what a small state costs that is stored: most last states of such trials are not.

Counts, which no noise of the machine moves: all workers are in this process, where each call is
counted. Times are in `overhead.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
import sqlalchemy as sa
from figures import Figure, main
from pairs import released
from spaces import all_different
from threads import client_of_threads
from trainers import Nothing

import dasktune as dt
from dasktune.cluster.local import LOCAL_SETTINGS
from dasktune.storage import CheckpointStore, encode

TRIALS, SHORT_TRIALS = 500, 100
WORKERS = 2

BOUNDS = {
    "syncs": 0.2,
    "objects": 0.3,
    "messages from workers to the driver": 1.2,
    "graphs sent to the scheduler": None,
    "transactions": None,
}
"""What is counted a trial, and how much of it there may be."""

STORED_BOUNDS = {"syncs": 3.1, "objects": 1.0}
"""What is counted a small state that is stored."""

RELEASED = Path(__file__).with_name("traffic.json")
"""The figures of the last release."""


def measure(short: bool) -> list[Figure]:
    """Count while trials run that have nothing in common."""
    trials = SHORT_TRIALS if short else TRIALS
    counts = counts_of(trials)
    before = released(RELEASED)
    figures = []
    for name, bound in BOUNDS.items():
        title = f"{name} of a no-op trial"
        note = f"{counts[name]:,} in {trials} trials"
        if title in before:
            note += f"; the last release had {before[title]:.3g}"
        value = counts[name] / trials
        figures.append(Figure(name=title, value=value, at_most=bound, note=note))
    stored = counts_of_stored(SHORT_TRIALS)
    for name, bound in STORED_BOUNDS.items():
        title = f"{name} of a small state that is stored"
        figures.append(Figure(name=title, value=stored[name] / SHORT_TRIALS, at_most=bound))
    return figures


def counts_of_stored(states: int) -> Counter[str]:
    """Return the counts of so many small states, whose keys lie in one folder."""
    counts: Counter[str] = Counter()

    def add(*_: object) -> None:
        counts["syncs"] += 1

    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(folder)
        with _calling(os, "fsync", add):
            for number in range(states):
                snapshot = encode({"weight": float(number), "more": b"x" * 1000})
                store.save(snapshot, key=f"ab{number:04}", attempt="1-aa", step=1)
        counts["objects"] = sum(path.is_file() for path in Path(folder).rglob("*"))
    return counts


def counts_of(trials: int) -> Counter[str]:
    """Return the counts of a run with so many trials."""
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(LOCAL_SETTINGS),
        client_of_threads(WORKERS) as client,
        ExitStack() as stack,
    ):
        store = Path(folder) / "store"
        study = dt.create_study(
            Nothing, name="traffic", storage=store, metric="value", direction="minimize"
        )
        tuner = dt.algos.Random(all_different(), trials=trials, max_steps=1)

        def note(name: str) -> Callable[..., None]:
            def add(*_: object) -> None:
                counts[name] += 1

            return add

        for owner, method, name in (
            (os, "fsync", "syncs"),
            (distributed.Worker, "log_event", "messages from workers to the driver"),
            (distributed.Client, "_graph_to_futures", "graphs sent to the scheduler"),
        ):
            stack.enter_context(_calling(owner, method, note(name)))
        sa.event.listen(sa.Engine, "commit", note("transactions"))
        study.optimize(tuner, client=client, progress=False, check=False)
        study.close()
        counts["objects"] = sum(path.is_file() for path in store.rglob("*"))
    return counts


@contextmanager
def _calling(owner: Any, method: str, also: Callable[[], None]) -> Iterator[None]:
    """Call a function with each call of a method."""
    original = getattr(owner, method)

    def both(*arguments: Any, **keywords: Any) -> Any:
        also()
        return original(*arguments, **keywords)

    setattr(owner, method, both)
    try:
        yield
    finally:
        setattr(owner, method, original)


if __name__ == "__main__":
    sys.exit(main("traffic", measure))
