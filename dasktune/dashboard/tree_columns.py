"""The stage tree as columns: the page lays it out, so that folding needs no request."""

from __future__ import annotations

from collections.abc import Iterable

from dasktune.engine.trials import TrialRecord
from dasktune.graph.plan import Node, SearchPlan
from dasktune.report.formats import number
from dasktune.report.tree_layout import first_trials


def tree_columns(plan: SearchPlan, records: Iterable[TrialRecord]) -> dict[str, object]:
    """Return the nodes of a plan, each after its parent, with the trials that pass through.

    Parameters
    ----------
    plan
        The plan, with the trials registered.
    records
        The trials: their steps say how far a node is trained.
    """
    nodes = list(plan)
    places = {node: at for at, node in enumerate(nodes)}
    trials = first_trials(plan, nodes)
    trained = {node: node.start for node in nodes}
    for record in records:
        for node in plan.nodes_of(record.number):
            trained[node] = max(trained.get(node, 0), min(node.stop, record.steps))
    return {
        "parent": [-1 if node.parent is None else places.get(node.parent, -1) for node in nodes],
        "start": [node.start for node in nodes],
        "stop": [node.stop for node in nodes],
        "trained": [trained[node] for node in nodes],
        "passing": [node.passing for node in nodes],
        "trials": [trials[node] for node in nodes],
        "values": [_changed(node) for node in nodes],
        "count": len(plan.paths),
    }


def _changed(node: Node) -> str:
    """Return the values of a node's first step that differ from those of the step before."""
    above = node.parent
    before = {} if above is None or above.parent is None else above.sequences
    texts = []
    for name, function in node.sequences.items():
        value = function(node.start)
        if name not in before or before[name](node.start - 1) != value:
            texts.append(f"{name.removeprefix('dasktune:')} = {number(value)}")
    return ", ".join(texts)
