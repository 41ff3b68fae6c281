"""Positions of the nodes of a search plan in a picture, and the choice of shown nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Step

MOST_BARS = 600
"""Most nodes drawn one by one; beyond it, those with the fewest trials are put together."""

FEW_TRIALS = 12
"""Most named trials of a bar."""


@dataclass(slots=True, kw_only=True)
class Bar:
    """A node, or several branches (`hidden` nodes) put together.

    Parameters
    ----------
    node
        The node; None for several branches.
    start, stop
        First and last step.
    trained
        Last step that is known to be trained.
    passing
        Number of trials that share it.
    ends
        The first few trials that end here.
    row
        Position from the top, in rows.
    rows
        Number of rows of its branches.
    """

    node: Node | None
    start: Step
    stop: Step
    trained: Step
    passing: int
    trials: tuple[int, ...]
    ends: tuple[int, ...] = ()
    hidden: int = 0
    row: float = 0.0
    rows: int = 1
    children: list[Bar] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The bars, each before its children; `rows` high, `steps` wide."""

    bars: tuple[Bar, ...]
    rows: int
    steps: Step
    nodes: int

    @property
    def hidden(self) -> int:
        """Number of nodes that are put together."""
        return sum(bar.hidden for bar in self.bars)


def layout(plan: SearchPlan, most: int = MOST_BARS) -> Layout:
    """Return the positions of the nodes; beyond `most`, some are put together.

    Branches keep the order of their first trials. Each leaf has a row; any other node lies in
    the middle of its branches.
    """
    nodes = list(plan)
    trials = first_trials(plan, nodes)
    ends = _ending(plan)
    trained = trained_steps(nodes)
    kept = most_shared(nodes, most)
    bars = {node: _bar(node, trained, trials, ends) for node in nodes if node in kept}
    tops = _connect(nodes, bars, trained, trials)
    ordered = _order(tops)
    rows = _place(ordered)
    return Layout(
        bars=tuple(ordered),
        rows=rows,
        steps=max((bar.stop for bar in ordered), default=0),
        nodes=len(nodes),
    )


def most_shared(nodes: Iterable[Node], most: int) -> set[Node]:
    """Return the nodes with the most trials, each with all its ancestors."""
    # A parent has at least as many trials as its child, so any prefix of this order is a tree.
    ordered = sorted(nodes, key=lambda node: (-node.passing, node.start, node.number))
    return set(ordered[:most])


def trained_steps(nodes: Iterable[Node]) -> dict[Node, Step]:
    """Return the last trained step of each node; `nodes` has parents before their children."""
    trained: dict[Node, Step] = {}
    for node in reversed(list(nodes)):
        further = any(trained[child] > child.start for child in node.children.values())
        trained[node] = node.stop if further else node.reached
    return trained


def first_trials(plan: SearchPlan, nodes: Iterable[Node]) -> dict[Node, tuple[int, ...]]:
    """Return the first few trials of each node; `nodes` has parents before their children."""
    ends = _ending(plan)
    first: dict[Node, tuple[int, ...]] = {}
    for node in reversed(list(nodes)):
        below = [trial for child in node.children.values() for trial in first[child]]
        first[node] = tuple(sorted([*ends.get(node, ()), *below])[:FEW_TRIALS])
    return first


def _ending(plan: SearchPlan) -> dict[Node, tuple[int, ...]]:
    """Return the first few trials that end at each node."""
    ending: dict[Node, list[int]] = defaultdict(list)
    for trial in sorted(plan.paths):
        trials = ending[plan.paths[trial].leaf]
        if len(trials) < FEW_TRIALS:
            trials.append(trial)
    return {node: tuple(trials) for node, trials in ending.items()}


def _bar(
    node: Node,
    trained: Mapping[Node, Step],
    trials: Mapping[Node, tuple[int, ...]],
    ends: Mapping[Node, tuple[int, ...]],
) -> Bar:
    return Bar(
        node=node,
        start=node.start,
        stop=node.stop,
        trained=trained[node],
        passing=node.passing,
        trials=trials[node],
        ends=ends.get(node, ()),
    )


def _connect(
    nodes: Iterable[Node],
    bars: Mapping[Node, Bar],
    trained: Mapping[Node, Step],
    trials: Mapping[Node, tuple[int, ...]],
) -> list[Bar]:
    """Connect bars with their children, hidden nodes as one bar; return the bars at step 0."""
    tops: list[Bar] = []
    left_out: dict[Node | None, list[Node]] = defaultdict(list)
    for node in nodes:
        above = node.parent if node.parent in bars else None
        if node in bars:
            (tops if above is None else bars[above].children).append(bars[node])
        elif above is not None or node.start == 0:
            left_out[above].append(node)
    for above, several in left_out.items():
        together = _together(several, trained, trials)
        (tops if above is None else bars[above].children).append(together)
    return tops


def _together(
    nodes: list[Node], trained: Mapping[Node, Step], trials: Mapping[Node, tuple[int, ...]]
) -> Bar:
    hidden = [below for node in nodes for below in node.below()]
    return Bar(
        node=None,
        start=nodes[0].start,
        stop=max(node.stop for node in hidden),
        trained=max(trained[node] for node in hidden),
        passing=sum(node.passing for node in nodes),
        trials=tuple(sorted(trial for node in nodes for trial in trials[node])[:FEW_TRIALS]),
        hidden=len(hidden),
    )


def _order(tops: list[Bar]) -> list[Bar]:
    """Return all bars, each before its children, hidden branches last."""
    ordered: list[Bar] = []
    waiting = sorted(tops, key=_turn, reverse=True)
    while waiting:
        bar = waiting.pop()
        ordered.append(bar)
        waiting += sorted(bar.children, key=_turn, reverse=True)
    return ordered


def _turn(bar: Bar) -> tuple[bool, tuple[int, ...]]:
    return bar.hidden > 0, bar.trials


def _place(ordered: list[Bar]) -> int:
    """Set the row of each bar, and return the number of rows."""
    rows = 0
    for bar in ordered:
        if not bar.children:
            bar.row = rows
            rows += 1
    for bar in reversed(ordered):
        if bar.children:
            bar.rows = sum(child.rows for child in bar.children)
            places = [child.row for child in bar.children]
            bar.row = (min(places) + max(places)) / 2
    return rows
