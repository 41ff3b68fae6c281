"""The policy of a trainer that is being checked: what needs the verdict waits for it.

A stage from step 0 is right whatever the check finds, so it trains beside the check. One that
loads a stored state waits. What raises is no trial's fault as long as the check may find the same:
then it says so for all trials, and nothing more begins before it has ended.
"""

from __future__ import annotations

from collections.abc import Collection

from dasktune.graph.attempts import Slot
from dasktune.graph.events import Event, StagesHeld
from dasktune.graph.frontier import start_of
from dasktune.graph.placement import Placing
from dasktune.graph.plan import Node, NodeStep
from dasktune.graph.policy import Policy
from dasktune.types import Step


class UncheckedTrainer(Policy):
    """Holds back stages until the check of the trainer has ended."""

    def __init__(self, placing: Placing) -> None:
        self.placing = placing
        self._event = StagesHeld(which="none")
        self._has_raised = False

    @property
    def is_open(self) -> bool:
        """Whether the check still runs."""
        return self._event.which != "none"

    def cleared(self) -> None:
        """Hold nothing back any more: the run is over, and the next one says anew what waits."""
        self._event, self._has_raised = StagesHeld(which="none"), False

    def received(self, event: Event) -> None:
        """Take what the check holds back from now on."""
        if isinstance(event, StagesHeld):
            self._event = event
            self._has_raised = self._has_raised and self.is_open
            self.placing.note_all_idle()

    def raised(self, worker: str, at: NodeStep, message: str, now: float) -> Collection[NodeStep]:
        """Note that a stage raised: the check may find why."""
        self._has_raised = self.is_open
        return ()

    def may_start(self, node: Node) -> bool:
        """Whether anything may begin."""
        return self._event.which == "resumes" and not self._has_raised

    def may_run(self, node: Node, slot: Slot) -> bool:
        """Whether a stage loads no state: it begins at step 0, or where its worker will be."""
        last, start = slot.queue[-1].node if slot.queue else slot.last, start_of(node)
        is_next = last is node.parent and start == node.start
        return self.may_start(node) and (start == 0 or is_next)

    def is_hopeless(self, node: Node, step: Step) -> bool | None:
        """Whether trials fail by what raised: not before the check has ended."""
        return False if self.is_open else None
