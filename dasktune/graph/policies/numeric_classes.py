"""The policy of numeric classes: a trial is trained on workers that compute alike to the last bit.

Where keys name the class of some worker, the lineage of each trial has a class: that of the worker
on which it is about to begin. A worker of another class never goes on with it.
"""

from __future__ import annotations

from collections.abc import Collection

from dasktune.graph.attempts import Slot
from dasktune.graph.events import WorkerJoined
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node
from dasktune.graph.policy import Policy
from dasktune.needs import NumericClass


class OneNumericClass(Policy):
    """Has the class of a lineage chosen before its first stage begins.

    Attributes
    ----------
    is_mixed
        Whether keys name the class of some worker: then each lineage has a class.
    """

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self.is_mixed = False

    @property
    def is_open(self) -> bool:
        """Whether each lineage has a class."""
        return self.is_mixed

    def run_began(self, present: Collection[NumericClass]) -> None:
        """Note whether keys name a class of the workers with which a run begins."""
        self.is_mixed |= any(numerics.in_keys for numerics in present)

    def joined(self, slot: Slot, event: WorkerJoined) -> None:
        """Note whether keys name the class of a worker."""
        numerics = event.offer.numerics
        self.is_mixed |= numerics is not None and numerics.in_keys

    def cleared(self) -> None:
        """Forget all workers."""
        self.is_mixed = False

    def is_prepared(self, node: Node, slot: Slot) -> bool:
        """Whether the class of a stage's lineage is chosen.

        If not, it is chosen now, and the stage to begin must be chosen anew: more may be known of
        the lineage, and it may belong to other workers.
        """
        numerics = self.placing.matching.offers[slot.worker].numerics
        if numerics is None or node.numerics is not None:
            return True
        self.placing.bind(node, numerics)
        self.placing.note_change()
        return False
