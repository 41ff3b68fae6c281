"""Where the nodes of a search plan go in a picture, and which of very many are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dasktune.graph.plan import Node, SearchPlan
from dasktune.types import Step

MOST_BARS = 600
"""Nodes drawn one by one; the least shared of more are put together."""

FEW_TRIALS = 12
"""How many trials of a bar are named."""


@dataclass(slots=True, kw_only=True)
class Bar:
    """A node, or the branches (`hidden` nodes) that are put together at one place.

    Parameters
    ----------
    node
        None for branches that are put together.
    start, stop
        Steps.
    trained
        Step up to which it is known to have been trained.
    passing
        How many trials share it.
    trials
        The first few of them.
    ends
        The first few of those that end here.
    row
        Its height in the picture, in rows from the top.
    rows
        How many rows its branches take.
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
    """The bars in order, each before its children; `rows` high, `steps` wide."""

    bars: tuple[Bar, ...]
    rows: int
    steps: Step
    nodes: int

    @property
    def hidden(self) -> int:
        """How many nodes are not drawn one by one."""
        return sum(bar.hidden for bar in self.bars)


def layout(plan: SearchPlan, most: int = MOST_BARS) -> Layout:
    """Return where each node goes; beyond `most`, the least shared are put together.

    Branches keep the order of their first trials. A leaf has a row of its own; any other
    node lies in the middle between the first and the last of its branches.
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
    """Return the nodes that most trials share, every one with all its ancestors."""
    # No node is passed by more trials than its parent, so any prefix of this order is a tree.
    ordered = sorted(nodes, key=lambda node: (-node.passing, node.start, node.number))
    return set(ordered[:most])


def trained_steps(nodes: Iterable[Node]) -> dict[Node, Step]:
    """Return up to which step each node is known to have been trained.

    Parameters
    ----------
    nodes
        Parents before their children.
    """
    found: dict[Node, Step] = {}
    for node in reversed(list(nodes)):
        known = max(node.latest_checkpoint(), max(node.metrics, default=0), node.start)
        further = any(found[child] > child.start for child in node.children.values())
        found[node] = node.stop if further else known
    return found


def first_trials(plan: SearchPlan, nodes: Iterable[Node]) -> dict[Node, tuple[int, ...]]:
    """Return the first few trials that pass each node; `nodes` has parents first."""
    ends = _ending(plan)
    found: dict[Node, tuple[int, ...]] = {}
    for node in reversed(list(nodes)):
        below = [trial for child in node.children.values() for trial in found[child]]
        found[node] = tuple(sorted([*ends.get(node, ()), *below])[:FEW_TRIALS])
    return found


def _ending(plan: SearchPlan) -> dict[Node, tuple[int, ...]]:
    """Return the first few trials that end at each node."""
    found: dict[Node, list[int]] = defaultdict(list)
    for trial in sorted(plan.paths):
        ending = found[plan.paths[trial].leaf]
        if len(ending) < FEW_TRIALS:
            ending.append(trial)
    return {node: tuple(trials) for node, trials in found.items()}


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
    """Give every bar its children, those left out as one; return the bars at step 0."""
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
    below = [one for node in nodes for one in node.below()]
    return Bar(
        node=None,
        start=nodes[0].start,
        stop=max(one.stop for one in below),
        trained=max(trained[one] for one in below),
        passing=sum(node.passing for node in nodes),
        trials=tuple(sorted(trial for node in nodes for trial in trials[node])[:FEW_TRIALS]),
        hidden=len(below),
    )


def _order(tops: list[Bar]) -> list[Bar]:
    """Return all bars, each before its children; branches put together come last."""
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
    """Give every bar its row; return how many there are."""
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
