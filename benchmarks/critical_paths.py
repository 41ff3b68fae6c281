"""How close the dispatcher comes to list scheduling of whole paths with full knowledge.

The list scheduler knows all stages from the beginning. Whenever a worker is free, it takes the
longest path whose first state exists, and trains that path to its end. The *tree bound* is a lower
bound for every scheduler; no scheduler may reach it.

References
----------
Shin et al., "Hippo", section 4.3 (critical paths).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from statistics import fmean

import numpy as np
from figures import Figure, main
from spaces import drawn_hippo

import dasktune as dt
from dasktune.graph.cost import tree_bound
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Step

WORKERS, SHORT_WORKERS = (2, 8, 40, 128, 512), (8, 40)
GRIDS = {108: 120, 240: 200}
"""Steps of a trial by the number of trials."""

SPACES, SHORT_SPACES = 20, 2
RATIO = 1.02
RESAMPLES = 2000


def measure(short: bool) -> list[Figure]:
    """Simulate grids of drawn schedules, and schedule the same stages by full knowledge."""
    spaces, workers = (SHORT_SPACES, SHORT_WORKERS) if short else (SPACES, WORKERS)
    return [
        figure
        for trials, steps in GRIDS.items()
        for drawn in [_drawn(trials, steps, spaces)]
        for count in workers
        for figure in _figures(drawn, steps, f"{trials} trials, {count} workers", count)
    ]


def _drawn(trials: int, steps: Step, count: int) -> list[dt.Space]:
    rng = np.random.default_rng(trials)
    return [drawn_hippo(rng, trials, steps) for _ in range(count)]


def _figures(spaces: list[dt.Space], steps: Step, of: str, workers: int) -> list[Figure]:
    """Return the ratios of the dispatcher's time to the list scheduler's and to the bound."""
    ours, listed, bounds = [], [], []
    for space in spaces:
        tuner = dt.algos.Grid(space, max_steps=steps)
        ran = dt.simulate(tuner, lambda values, step: 1 / step, workers=workers, report_every=steps)
        nodes = list(_plan(space, steps))
        ours.append(ran.seconds)
        listed.append(list_scheduled(nodes, workers))
        bounds.append(tree_bound(nodes, workers))
    return [
        _ratio(f"{of}: time over list scheduling of whole paths", ours, listed, at_most=RATIO),
        _ratio(f"{of}: time over the tree bound", ours, bounds),
        _ratio(f"{of}: list scheduling over the tree bound", listed, bounds),
    ]


def _ratio(
    name: str, times: list[float], others: list[float], *, at_most: float | None = None
) -> Figure:
    """Return the mean ratio over spaces, with its interval of 95% by resampling."""
    ratios = [time / other for time, other in zip(times, others, strict=True)]
    rng = np.random.default_rng(0)
    means = [fmean(rng.choice(ratios, size=len(ratios))) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    note = f"{low:.4f} to {high:.4f}; {len(ratios)} spaces: {min(ratios):.4f} to {max(ratios):.4f}"
    return Figure(name=name, value=fmean(ratios), unit="x", at_most=at_most, note=note)


def _plan(space: dt.Space, steps: Step) -> SearchPlan:
    plan = SearchPlan(root_key("critical paths", 0))
    for number, configuration in enumerate(space.configurations()):
        plan.register(number, configuration.sequences, steps)
    return plan


def list_scheduled(nodes: Iterable[Node], workers: int) -> float:
    """Return the time, in steps, in which a list scheduler of whole paths trains all stages."""
    lengths: dict[Node, Step] = {}
    for node in sorted(nodes, key=lambda node: -node.start):
        below = max((lengths[child] for child in node.children.values()), default=0)
        lengths[node] = node.stop - node.start + below

    def entry(node: Node) -> tuple[Step, int, Node]:
        return -lengths[node], node.number, node

    ready = [entry(node) for node in lengths if node.start == 0]
    heapify(ready)
    due: list[tuple[Step, int, Node | None]] = []  # stages that become ready; None: a worker
    now, idle = 0, workers
    while ready or due:
        while ready and idle:
            idle -= 1
            *_, node = heappop(ready)
            for at, event in _trained_path(node, now, entry):
                heappush(due, (at, -1 if event is None else event.number, event))
        now = due[0][0]
        while due and due[0][0] == now:
            *_, event = heappop(due)
            if event is None:
                idle += 1
            else:
                heappush(ready, entry(event))
    return float(now)


def _trained_path(
    node: Node, now: Step, order: Callable[[Node], tuple[Step, int, Node]]
) -> Iterable[tuple[Step, Node | None]]:
    """Yield the other stages that become ready along the longest path, and its end, with times."""
    while True:
        now += node.stop - node.start
        children = sorted(node.children.values(), key=order)
        if not children:
            yield now, None
            return
        node = children[0]
        yield from ((now, child) for child in children[1:])


if __name__ == "__main__":
    sys.exit(main("critical_paths", measure))
