"""The steps at which trials part, whatever number of devices trains each of them.

The plan splits an edge where two trials part that are trained on the same devices. A trial that
waits may still have another number of them: it takes those of the steps that it shares only when
it asks for its training, see `dasktune._engine.scaling`. By then these steps may be trained. So a
stage also saves its state where such a trial will part from it.
"""

from __future__ import annotations

from dasktune.graph.devices import without_devices
from dasktune.graph.plan import Node, alike_until
from dasktune.types import Sequences, Step


def partings(node: Node, start: Step) -> set[Step]:
    """Return the steps in (start, node.stop) at which other trials part from the way to a node.

    Examples
    --------
    >>> from dasktune.graph.devices import with_devices
    >>> from dasktune.graph.plan import SearchPlan
    >>> from dasktune.sequences import Constant, Piecewise
    >>> plan = SearchPlan("root")
    >>> _ = plan.register(0, {"lr": Piecewise([0.1, 0.3], boundaries=[6])}, 8)
    >>> trunk = plan.register(1, with_devices({"lr": Constant(0.1)}, [(0, 1), (2, 2)]), 8)
    >>> partings(trunk, 2)
    {6}
    """
    steps: set[Step] = set()
    waiting = [node.lineage.parent or node]
    while waiting:
        at = waiting.pop()
        for child in at.children.values():
            if not child.passing:
                continue  # its trials have taken other devices
            limit = min(child.stop, node.stop)
            part = parting(node, child.sequences, at.stop, limit)
            if part < limit:
                steps.add(part)
            elif part < node.stop:
                waiting.append(child)
    return {step for step in steps if start < step}


def parting(node: Node, sequences: Sequences, start: Step, limit: Step) -> Step:
    """Return the first step from `start` at which a path parts from the way to a node; or `limit`.

    Paths with other hyper-parameters part at once.
    """
    if without_devices(node.sequences).keys() != without_devices(sequences).keys():
        return start
    return alike_until(node.sequences, sequences, start, limit)
