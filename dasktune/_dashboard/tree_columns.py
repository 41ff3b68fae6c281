"""The stage tree as columns: the page lays it out, so that folding needs no request."""

from __future__ import annotations

from dasktune._dashboard.lineage import StudyPlan
from dasktune.graph.plan import Node
from dasktune.report.formats import number


def tree_columns(planned: StudyPlan) -> dict[str, object]:
    """Return the nodes of a study's plan, each after its parent, with the trials below."""
    nodes = list(planned.plan)
    places = {node: at for at, node in enumerate(nodes)}
    trained = {node: node.start for node in nodes}
    for record in planned.records:
        for node in planned.plan.nodes_of(record.number):
            trained[node] = max(trained.get(node, 0), min(node.stop, record.steps))
    return {
        "parent": [-1 if node.parent is None else places.get(node.parent, -1) for node in nodes],
        "start": [node.start for node in nodes],
        "stop": [node.stop for node in nodes],
        "trained": [trained[node] for node in nodes],
        "passing": [node.passing for node in nodes],
        "trials": [planned.first[node] for node in nodes],
        "values": [_changed(node) for node in nodes],
        "count": len(planned.plan.paths),
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
